"""Who opens connections to a service that speaks HTTPS, and does not go on with TLS, keeps nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from stele.runtime import http_server
from stele.runtime.http import bind, serving
from stele.runtime.http_tls import server_tls
from tests.certificates import Authority
from tests.runtime.test_connections import ASK, app

DEADLINE_S = 90.0
MOST = 3
LAST = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

both_loops = pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Loop = Callable[[Any], None]


class Caller:
    """Connections of somebody, each with blocking calls."""

    def __init__(self, url: str, authority: Authority, held: contextlib.ExitStack) -> None:
        host, port = url.removeprefix("https://").split(":")
        self._place = host, int(port)
        self._held = held
        self._context = ssl.create_default_context(cafile=authority.file)

    def open(self, said: bytes = b"") -> socket.socket:
        """Without TLS."""
        sock = self._held.enter_context(socket.create_connection(self._place, DEADLINE_S))
        sock.sendall(said)
        return sock

    def secured(self, said: bytes) -> ssl.SSLSocket:
        sock = self._context.wrap_socket(self.open(), server_hostname=self._place[0])
        self._held.enter_context(sock)
        sock.sendall(said)
        return sock

    def status(self, said: bytes = ASK % b"/healthz") -> bytes:
        return self.secured(said).recv(12)

    def secured_at_once(self, said: bytes) -> bytes:
        """The answer to what is sent together with the end of the handshake."""
        sock, come, gone = self.open(), ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(come, gone, server_hostname=self._place[0])
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(gone.read())
                come.write(sock.recv(1 << 16))
        tls.write(said)
        sock.sendall(gone.read())
        while True:
            try:
                return tls.read(12)
            except ssl.SSLWantReadError:
                come.write(sock.recv(1 << 16))


@contextmanager
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(http_server, "most_connections", lambda: MOST)
        yield


async def served(folder: Path, trial: Callable[[Caller], Awaitable[None]]) -> None:
    authority = Authority(folder, "authority")
    tls = server_tls(*map(str, authority.give("one")))
    async with serving(app(), bind("127.0.0.1", 0), tls=tls, grace_s=0) as url:
        with contextlib.ExitStack() as held:
            await trial(Caller(url, authority, held))


@both_loops
@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET /healthz HTTP/1.1\r\n\r\n"]
)
def test_handshakes_that_do_not_end_keep_nobody_out(
    loop: Loop, said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trial(caller: Caller) -> None:
        opened = [await asyncio.to_thread(caller.open, said) for _ in range(20)]
        for _ in range(5):
            assert await asyncio.to_thread(caller.status) == b"HTTP/1.1 200"
        ended = 0
        for each in opened:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                ended += each.recv(1) == b""
        assert ended >= 20 - MOST, "they are there, and hold a file each"

    with few(monkeypatch):
        loop(served(tmp_path, trial))


@both_loops
def test_whoever_does_not_say_that_he_closes_too_keeps_nobody_out(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trial(caller: Caller) -> None:
        for _ in range(20):
            assert await asyncio.to_thread(caller.status, LAST) == b"HTTP/1.1 200"

    with few(monkeypatch):
        loop(served(tmp_path, trial))


@both_loops
def test_handshakes_that_have_failed_are_counted_out(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trial(caller: Caller) -> None:
        for said in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n") * 3:
            (await asyncio.to_thread(caller.open, said)).close()
        assert await asyncio.to_thread(caller.status, LAST) == b"HTTP/1.1 200"
        streams = [await asyncio.to_thread(caller.secured, ASK % b"/endless") for _ in range(MOST)]
        for stream in streams:
            assert await asyncio.to_thread(stream.recv, 12) == b"HTTP/1.1 200"
        with pytest.raises(OSError):
            await asyncio.to_thread(caller.status)
        streams.pop().close()
        while True:
            with contextlib.suppress(OSError):
                assert await asyncio.to_thread(caller.status) == b"HTTP/1.1 200"
                break

    with few(monkeypatch):
        loop(served(tmp_path, trial))


@both_loops
def test_what_comes_with_the_end_of_the_handshake_is_answered(loop: Loop, tmp_path: Path) -> None:
    async def trial(caller: Caller) -> None:
        for _ in range(20):
            said = ASK % b"/healthz"
            assert await asyncio.to_thread(caller.secured_at_once, said) == b"HTTP/1.1 200"

    loop(served(tmp_path, trial))
