"""Who opens connections and asks for nothing keeps nobody out, and takes no file that a process needs."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stele.runtime import http_server
from stele.runtime.connections import MOST, Connections, most_connections
from stele.runtime.http import Health, bind, build_app, serving

DEADLINE_S = 90.0
ASK = b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.aborted = False
        self.unsent = 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


def of(count: int) -> list[Transport]:
    return [Transport() for _ in range(count)]


def test_who_waits_longest_makes_room_and_who_is_answered_does_not() -> None:
    known, made = Connections(3), of(5)
    a, b, c, d, e = made
    for each in (a, b, c):
        assert known.add(each)  # type: ignore[arg-type]
    known.is_answered(a)  # type: ignore[arg-type]
    known.is_answered(b)  # type: ignore[arg-type]
    known.waits(b)  # type: ignore[arg-type]
    assert known.add(d)  # type: ignore[arg-type]
    assert [each.aborted for each in made] == [False, False, True, False, False]
    assert known.add(e)  # type: ignore[arg-type]
    assert b.aborted and not a.aborted


def test_who_is_being_sent_an_answer_makes_room_only_where_there_is_nobody_else() -> None:
    known, made = Connections(2), of(4)
    a, b, c, d = made
    a.unsent = 1
    for each in (a, b, c):
        assert known.add(each)  # type: ignore[arg-type]
    assert [each.aborted for each in made] == [False, True, False, False]
    c.unsent = 1
    assert known.add(d)  # type: ignore[arg-type]
    assert [each.aborted for each in made] == [True, True, False, False]


def test_where_all_are_answered_there_is_no_room_until_one_has_ended() -> None:
    known = Connections(1)
    first, second, third = of(3)
    assert known.add(first)  # type: ignore[arg-type]
    known.is_answered(first)  # type: ignore[arg-type]
    assert not known.add(second)  # type: ignore[arg-type]
    known.remove(second)  # type: ignore[arg-type]
    known.remove(first)  # type: ignore[arg-type]
    assert known.add(third)  # type: ignore[arg-type]
    assert not any(each.aborted for each in (first, second, third))


def test_some_files_are_left_and_more_are_asked_for_where_they_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits, asked = [1024, 4096], list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: asked.append(to))
    assert most_connections() == 3072
    assert asked == [(4096, 4096)]
    limits[:] = [1024, 1 << 20]
    assert most_connections() <= MOST
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert 0 < most_connections() <= MOST

    def refused(_: int, __: object) -> None:
        raise ValueError("not allowed")

    limits[:] = [100, 200]
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert most_connections() == 75


def app() -> Starlette:
    async def endless(_: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun"
            await asyncio.Event().wait()

        return StreamingResponse(parts())

    return build_app("few", [Route("/endless", endless)], lambda: Health(ok=True))


class Caller:
    """Connections of somebody."""

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._writers = list[asyncio.StreamWriter]()

    async def open(self, said: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._writers.append(writer)
        writer.write(said)
        return reader

    async def asked(self, path: bytes) -> bytes:
        reader = await self.open(ASK % path)
        async with asyncio.timeout(DEADLINE_S):
            return await reader.readline()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def caller(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Caller]:
    monkeypatch.setattr(http_server, "most_connections", lambda: 3)
    async with serving(app(), bind("127.0.0.1", 0), grace_s=0) as url:
        caller = Caller(url)
        yield caller
        caller.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /healthz HT",
        b"POST /x HTTP/1.1\r\ncontent-length: 9\r\n\r\n1",
        ASK % b"/healthz" + b"POST /x HTTP/1.1\r\ncontent-length: 9\r\n\r\n1",
    ],
)
async def test_connections_that_ask_for_nothing_or_in_part_keep_nobody_out(
    caller: Caller, said: bytes
) -> None:
    for _ in range(20):
        await caller.open(said)
    for _ in range(5):
        assert (await caller.asked(b"/healthz")).startswith(b"HTTP/1.1 200")


async def test_whoever_asks_for_a_websocket_is_counted_out_again(caller: Caller) -> None:
    offer = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    offer += b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    for _ in range(10):
        said = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n"
        async with asyncio.timeout(DEADLINE_S):
            assert (await (await caller.open(said)).readline()).startswith(b"HTTP/1.1 200")
        caller.close()
    streams = [await caller.open(ASK % b"/endless") for _ in range(3)]
    async with asyncio.timeout(DEADLINE_S):
        for stream in streams:
            await stream.readuntil(b"begun")


async def test_one_too_many_is_told_so_and_open_streams_go_on(caller: Caller) -> None:
    streams = [await caller.open(ASK % b"/endless") for _ in range(3)]
    async with asyncio.timeout(DEADLINE_S):
        for stream in streams:
            await stream.readuntil(b"begun")
        refused = await caller.open()
        assert (await refused.readline()).startswith(b"HTTP/1.1 503")
        assert b"As many connections" in await refused.read()
    for stream in streams:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                assert await stream.read(1), "it was cut off"
