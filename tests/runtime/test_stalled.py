"""A connection holds memory and a file only while it uses them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.runtime import http_direct
from stele.runtime.http import Health, bind, build_app, serving
from stele.runtime.stalled import Stalled
from tests.services.world import until

LIMIT_S = 0.05
LONG_S = 600.0
DEADLINE_S = 20.0
LARGE = bytes(64 * 1024 * 1024)
"""More than the sockets of both sides hold."""


class Transport:
    """Says how much is left to be taken, look by look."""

    def __init__(self, *left: int) -> None:
        self._left = [*left]
        self.looks = 0
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        self.looks += 1
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    def abort(self) -> None:
        self.aborted.set()


async def test_who_takes_a_little_each_time_is_waited_for_and_who_takes_nothing_is_not() -> None:
    transport = Transport(9, 8, 7, 7)
    stalled = Stalled(transport, LIMIT_S)  # type: ignore[arg-type]
    stalled.begin()
    async with asyncio.timeout(DEADLINE_S):
        await transport.aborted.wait()
    assert transport.looks > len((9, 8, 7))


async def test_who_has_taken_enough_is_not_looked_at_any_more() -> None:
    transport, other = Transport(9), Transport(9)
    stalled = Stalled(transport, LIMIT_S)  # type: ignore[arg-type]
    stalled.begin()
    stalled.end()
    Stalled(other, 2 * LIMIT_S).begin()  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        await other.aborted.wait()
    assert not transport.aborted.is_set()


def large_app() -> Starlette:
    async def large(_: Request) -> Response:
        return Response(LARGE)

    return build_app("large", [Route("/large", large)], lambda: Health(ok=True))


def with_limits(
    monkeypatch: pytest.MonkeyPatch, arrival_s: float, stalled_s: float
) -> list[asyncio.Transport]:
    """The connections' transports as they come."""
    seen = list[asyncio.Transport]()

    def make(transport: asyncio.Transport) -> Stalled:
        seen.append(transport)
        return Stalled(transport, stalled_s)

    monkeypatch.setattr(http_direct, "Stalled", make)
    monkeypatch.setattr(http_direct, "ARRIVAL_S", arrival_s)
    return seen


async def until_closing(seen: list[asyncio.Transport]) -> None:
    await until(
        lambda: bool(seen) and seen[0].is_closing(), "the connection to be ended", DEADLINE_S
    )


async def test_a_large_answer_that_nobody_takes_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_limits(monkeypatch, LONG_S, LIMIT_S)
    async with serving(large_app(), bind("127.0.0.1", 0), grace_s=0) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await until_closing(seen)
        assert seen[0].get_write_buffer_size() == 0
        found = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                while piece := await reader.read(1 << 20):
                    found += len(piece)
        assert found < len(LARGE)
        writer.close()


async def test_a_connection_that_asks_for_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_limits(monkeypatch, LIMIT_S, LONG_S)
    async with serving(large_app(), bind("127.0.0.1", 0), grace_s=0) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await until_closing(seen)
        writer.close()


async def test_a_connection_that_has_asked_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_limits(monkeypatch, LIMIT_S * 20, LONG_S)
    async with serving(large_app(), bind("127.0.0.1", 0), grace_s=0) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        silent, other = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                assert not await silent.read()
        assert len(seen) == 2
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        rest = await reader.readuntil(b"HTTP/1.1 200")
        assert rest
        writer.close()
        other.close()
