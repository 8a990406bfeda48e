"""Checks for the producer examples in all languages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.deployment.process import Service

Send = Callable[..., Awaitable[tuple[int, list[str]]]]
"""Takes name and value of a setting, and a request id. Returns exit status and words of the last line."""


async def check_one_outcome(send: Send, service: Service) -> None:
    """Check that a command is applied, and that a retry gets the same outcome."""
    code, (request_id, *result) = await send("colour", "blue")
    assert (code, result[0]) == (0, "applied")
    found = await service.get("/v1/settings?level=barrier")
    assert found["settings"]["colour"] == "blue"
    assert await send("colour", "blue", request_id) == (0, [request_id, *result]), "same outcome"
