"""Proxies between real sockets: cut connections wait, others pass, each direction independently."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stele_harness.stack.ports import LOOPBACK
from stele_simulator.live.peers import CLIENT, Peers
from stele_simulator.live.tcp_proxies import Rule, TcpProxies

SOON_S = 240.0
HELD_S = 0.3


class Line:
    """A connection through the proxy, and the bytes that its server received."""

    def __init__(self, proxies: TcpProxies) -> None:
        self.proxies = proxies
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while line := await reader.readline():
                await self.heard.put(line)
                writer.write(b"echo " + line)
                await writer.drain()
        await self.heard.put(b"")
        writer.close()


@asynccontextmanager
async def _line(source: str = "a") -> AsyncIterator[Line]:
    async def name_of(_: int) -> str:
        return source

    proxies = TcpProxies(name_of, seed=1)
    line = Line(proxies)
    server = await asyncio.start_server(line.serve, LOOPBACK, 0)
    line.port = proxies.front("b", server.sockets[0].getsockname()[1])
    try:
        yield line
    finally:
        await proxies.close()
        server.close()


async def _connect(line: Line) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(LOOPBACK, line.port)


async def _soon(queue: asyncio.Queue[bytes]) -> bytes:
    return await asyncio.wait_for(queue.get(), SOON_S)


async def test_undisturbed_connection_passes_bytes_and_its_end() -> None:
    async with _line() as line:
        reader, writer = await _connect(line)
        writer.write(b"hello\n")
        assert await _soon(line.heard) == b"hello\n"
        assert await asyncio.wait_for(reader.readline(), SOON_S) == b"echo hello\n"
        writer.write_eof()
        assert await _soon(line.heard) == b""
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        writer.close()


async def test_cut_delays_bytes_until_it_ends() -> None:
    async with _line() as line:
        reader, writer = await _connect(line)
        writer.write(b"first\n")
        await asyncio.wait_for(reader.readline(), SOON_S)
        await _soon(line.heard)
        cut = [Rule(sources=frozenset({"a"}), cut=True)]
        line.proxies.impose(cut)
        writer.write(b"second\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.heard.get(), HELD_S)
        line.proxies.lift(cut)
        assert await _soon(line.heard) == b"second\n"
        writer.close()


async def test_one_direction_can_be_cut() -> None:
    async with _line() as line:
        reader, writer = await _connect(line)
        writer.write(b"first\n")
        await asyncio.wait_for(reader.readline(), SOON_S)
        await _soon(line.heard)
        line.proxies.impose([Rule(targets=frozenset({"a"}), cut=True)])
        writer.write(b"second\n")
        assert await _soon(line.heard) == b"second\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), HELD_S)
        line.proxies.heal()
        assert await asyncio.wait_for(reader.readline(), SOON_S) == b"echo second\n"
        writer.close()


async def test_new_connection_waits_for_the_end_of_a_cut() -> None:
    async with _line() as line:
        line.proxies.impose([Rule(targets=frozenset({"b"}), cut=True)])
        _, writer = await _connect(line)
        writer.write(b"hello\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.heard.get(), HELD_S)
        line.proxies.heal()
        assert await _soon(line.heard) == b"hello\n"
        writer.close()


async def test_cut_does_not_disturb_other_connections() -> None:
    async with _line("somebody") as line:
        line.proxies.impose([Rule(sources=frozenset({"a"}), cut=True)])
        _, writer = await _connect(line)
        writer.write(b"hello\n")
        assert await _soon(line.heard) == b"hello\n"
        writer.close()


async def test_delay_loses_nothing() -> None:
    async with _line() as line:
        line.proxies.impose([Rule(sources=frozenset({"a"}), delay_s=0.2)])
        _, writer = await _connect(line)
        began = time.monotonic()
        for number in range(5):
            writer.write(b"%d\n" % number)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert [await _soon(line.heard) for _ in range(5)] == [b"%d\n" % n for n in range(5)]
        assert time.monotonic() - began > 0.02
        writer.close()


async def test_loss_resends_or_resets_but_never_reorders() -> None:
    async with _line() as line:
        line.proxies.impose([Rule(sources=frozenset({"a"}), loss=0.5)])
        broken = 0
        for _ in range(6):
            reader, writer = await _connect(line)
            try:
                for number in range(3):
                    writer.write(b"%d\n" % number)
                    await asyncio.sleep(0.01)
                writer.write_eof()
                found = await asyncio.wait_for(reader.read(), 240)
                whole = b"".join(b"echo %d\n" % n for n in range(3))
                assert whole.startswith(found)
                broken += found != whole
            except OSError:  # reset, or not connected any more
                broken += 1
            writer.close()
        assert line.proxies.lost > 0
        assert broken < 6


async def test_missing_server_resets_the_connection() -> None:
    async def name_of(_: int) -> str:
        return "a"

    proxies = TcpProxies(name_of, seed=1)
    port = proxies.front("b", 1)
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.readexactly(1), SOON_S)
    writer.close()
    await proxies.close()


async def test_connection_is_attributed_to_the_process_that_opened_it() -> None:
    ports: asyncio.Queue[int] = asyncio.Queue()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ports.put(writer.get_extra_info("peername")[1])

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    code = (
        f"import socket, time; s = socket.create_connection(('{LOOPBACK}', {port})); time.sleep(60)"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=subprocess.DEVNULL
    )
    try:
        peers = Peers(lambda: {child.pid: "the child"})
        assert await peers.name_of(await asyncio.wait_for(ports.get(), 240)) == "the child"
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        assert await peers.name_of(await asyncio.wait_for(ports.get(), SOON_S)) == CLIENT
        writer.close()
    finally:
        child.kill()
        await child.wait()
        server.close()


async def test_refusing_process_keeps_open_connections() -> None:
    async with _line() as line:
        reader, writer = await _connect(line)
        writer.write(b"first\n")
        assert await asyncio.wait_for(reader.readline(), SOON_S) == b"echo first\n"
        line.proxies.refuse("b")
        with pytest.raises(ConnectionRefusedError):
            await _connect(line)
        writer.write(b"open before\n")
        assert await asyncio.wait_for(reader.readline(), SOON_S) == b"echo open before\n"

        await line.proxies.accept("b")
        reader, writer = await _connect(line)
        writer.write(b"again\n")
        assert await asyncio.wait_for(reader.readline(), SOON_S) == b"echo again\n"
