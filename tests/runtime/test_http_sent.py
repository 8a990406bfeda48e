"""Whoever asks for much and does not read it costs a bounded amount, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.runtime.http import Health, HttpError, bind, build_app, serving
from stele.runtime.http_sent import Sending

BODY = bytes(16 * 1024 * 1024)
"""More than the buffers of both ends of a connection take."""
WELL = Health(ok=True)
PATIENT_S = 60.0
TAKEN_S = 5.0
"""Whoever reads has it all in a second, also on a busy machine."""


class Large:
    """A service with one large answer; ``made`` counts how often it was made."""

    def __init__(self, sending: Sending) -> None:
        self.made = 0
        self._sending = sending

    async def get(self, _: Request) -> Response:
        return await self._sending.answer(self._body, "avro/binary")

    async def fail(self, _: Request) -> Response:
        async def body() -> bytes:
            raise HttpError(404, "epoch_not_archived", "not here")

        return await self._sending.answer(body, "avro/binary")

    async def _body(self) -> bytes:
        self.made += 1
        return BODY

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        routes = [Route("/large", self.get), Route("/fail", self.fail)]
        async with serving(build_app("trial", routes, lambda: WELL), bind("127.0.0.1", 0)) as url:
            yield url


async def asks_and_does_not_read(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(b"GET /large HTTP/1.1\r\nhost: trial\r\n\r\n")
    await reader.readline()
    return reader, writer


async def test_who_does_not_read_takes_a_place_and_loses_it() -> None:
    large = Large(Sending(most=2, wait_s=0.1, taken_s=TAKEN_S))
    async with large.serving() as url, httpx.AsyncClient(timeout=PATIENT_S) as client:
        slow = [await asks_and_does_not_read(url) for _ in range(2)]
        refused = await client.get(f"{url}/large")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert large.made == 2, "what nobody has room for is not made"
        async with asyncio.timeout(PATIENT_S):
            while (answer := await client.get(f"{url}/large")).status_code == 503:
                pass  # it waits for a place itself
        assert answer.content == BODY
        for reader, writer in slow:
            with pytest.raises(asyncio.IncompleteReadError):
                await reader.readexactly(len(BODY))
            writer.close()


async def test_a_place_is_free_again_after_each_answer_and_each_error() -> None:
    large = Large(Sending(most=1, wait_s=0.1, taken_s=PATIENT_S))
    async with large.serving() as url, httpx.AsyncClient(timeout=PATIENT_S) as client:
        for path, status in (("/large", 200), ("/fail", 404), ("/fail", 404), ("/large", 200)):
            assert (await client.get(url + path)).status_code == status
        reader, writer = await asks_and_does_not_read(url)
        writer.close()
        del reader
        async with asyncio.timeout(PATIENT_S):
            while (await client.get(f"{url}/large")).status_code == 503:
                pass  # until it is noticed that nobody is there any more
