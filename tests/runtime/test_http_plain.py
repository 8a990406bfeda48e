"""Handlers in front of Starlette: keep-alive, pipelines, limits, errors, TLS, shutdown."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from stele.runtime import http as http_server
from stele.runtime.http import Health, HttpAnswer, HttpError, bind, build_app, json_answer, serving
from stele.runtime.http_tls import server_tls
from tests.certificates import Authority
from tests.polling import until

LIMIT_BYTES = 100_000
DEADLINE_S = 240.0


class Echo:
    """Answers ``wait`` after ``go_on``, and everything else at once."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answered = 0
        self.go_on = asyncio.Event()

    async def echo(self, body: bytes, authorization: str) -> HttpAnswer:
        self.asked.append(body)
        if body == b"refuse":
            raise HttpError(409, "stale_term", "Term 3 is over.", hint="Read again.")
        if body == b"break":
            raise ZeroDivisionError
        if body == b"wait":
            await self.go_on.wait()
        self.answered += 1
        return json_answer({"size": len(body)}, headers=(("retry-after", "1"),))


class Line:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))

    async def head(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        first, *lines = (await self.head()).decode().strip().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        async with asyncio.timeout(DEADLINE_S):
            body = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, json.loads(body)

    async def ended(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read() == b""

    def close(self) -> None:
        self._writer.close()


def app_of(echo: Echo) -> Starlette:
    return build_app(
        "trial",
        [],
        lambda: Health(ok=True),
        max_body_bytes=LIMIT_BYTES,
        plain={"/echo": echo.echo},
    )


async def open_line(url: str) -> Line:
    host, _, port = url.removeprefix("http://").partition(":")
    return Line(*await asyncio.open_connection(host, int(port)))


@asynccontextmanager
async def line_to(echo: Echo) -> AsyncIterator[Line]:
    async with serving(app_of(echo), bind("127.0.0.1", 0)) as url:
        line = await open_line(url)
        yield line
        line.close()


def post(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    head = b"POST /echo HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n"
    return head % (version, len(body), lines) + body


def chunked(body: bytes) -> bytes:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


async def test_connection_serves_requests_one_after_the_other() -> None:
    echo, bodies = Echo(), (b"", b"one", b"x" * LIMIT_BYTES)
    async with line_to(echo) as line:
        for body in bodies:
            line.send(post(body))
            status, headers, answer = await line.answer()
            assert (status, answer) == (200, {"size": len(body)})
            assert headers["content-type"] == "application/json"
            assert headers["retry-after"] == "1"
            assert "date" in headers
    assert echo.asked == [*bodies]


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (post(b"refuse"), 409, "stale_term"),
        (chunked(b"refuse"), 409, "stale_term"),
        (post(b"break"), 500, "internal"),
        (post(b"x" * (LIMIT_BYTES + 1)), 413, "body_too_large"),
        (chunked(b"x" * 50 * LIMIT_BYTES), 413, "body_too_large"),
        (post(b"abc").replace(b"POST", b"PUT"), 405, "method_not_allowed"),
    ],
)
async def test_connection_stays_usable_after_an_error(
    request_bytes: bytes, status: int, code: str
) -> None:
    async with line_to(Echo()) as line:
        for _ in range(3):
            line.send(request_bytes)
            found, _, error = await line.answer()
            assert (found, error["code"]) == (status, code)
            assert set(error) == {"code", "message", "hint", "details"}
            line.send(post(b"abc"))
            assert (await line.answer())[0] == 200


async def test_body_over_the_limit_is_refused_before_it_arrives() -> None:
    async with line_to(Echo()) as line:
        line.send(post(b"x" * (LIMIT_BYTES + 1))[: -LIMIT_BYTES - 1])
        status, _, error = await line.answer()
        assert status == 413
        assert error["details"] == {"size_bytes": LIMIT_BYTES + 1, "limit_bytes": LIMIT_BYTES}


@pytest.mark.parametrize("path", [b"/echo", b"/healthz"])
@pytest.mark.parametrize("length", [b"content-length: %d\r\n", b"transfer-encoding: chunked\r\n"])
async def test_a_body_with_an_upgrade_is_refused_and_nothing_in_it_is_executed(
    path: bytes, length: bytes
) -> None:
    echo, hidden = Echo(), post(b"hidden")
    length = length % len(hidden) if b"%" in length else length
    async with line_to(echo) as line:
        offer = b"connection: upgrade\r\nupgrade: h2c\r\n"
        line.send(b"POST ", path, b" HTTP/1.1\r\n", offer, length, b"\r\n", hidden)
        status, headers, error = await line.answer()
        assert (status, error["code"], headers["connection"]) == (400, "malformed_http", "close")
        assert "HTTP_1_1" in error["hint"]
        assert await line.ended()
    assert echo.asked == []


async def test_disconnect_of_a_client_does_not_cancel_its_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    echo = Echo()
    async with serving(app_of(echo), bind("127.0.0.1", 0)) as url:
        waiting, half = await open_line(url), await open_line(url)
        waiting.send(post(b"wait"))
        half.send(post(b"abc")[:-1])
        await until(lambda: bool(echo.asked), "the request")
        waiting.close()
        half.close()
        echo.go_on.set()
        await until(lambda: echo.answered == 1, "the end of the command")
    assert echo.asked == [b"wait"]
    assert not caplog.records


async def test_metrics_count_requests_by_handler_and_status() -> None:
    async with (
        serving(app_of(Echo()), bind("127.0.0.1", 0)) as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
    ):
        await http.post("/echo", content=b"refuse")
        text = (await http.get("/metrics")).text
    assert 'stele_http_request_seconds_count{handler="echo",method="POST",status="409"}' in text


async def test_requests_work_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.give("one")
    tls = server_tls(str(certificate), str(key))
    trusted = ssl.create_default_context(cafile=authority.file)
    async with (
        serving(app_of(Echo()), bind("127.0.0.1", 0), tls=tls) as url,
        httpx.AsyncClient(
            base_url=url,
            timeout=DEADLINE_S,
            verify=trusted,
        ) as http,
    ):
        assert url.startswith("https://")
        for body in (b"abc", b"refuse", b"x" * LIMIT_BYTES, b"x" * (LIMIT_BYTES + 1)):
            answer = await http.post("/echo", content=body)
            assert answer.status_code == {3: 200, 6: 409, LIMIT_BYTES: 200}.get(len(body), 413)


async def test_requests_over_the_connection_limit_are_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    async with serving(app_of(Echo()), bind("127.0.0.1", 0)) as url:
        first = await open_line(url)
        first.send(post(b"abc"))
        assert (await first.answer())[0] == 200
        second = await open_line(url)
        second.send(post(b"abc"))
        assert (await second.head()).startswith(b"HTTP/1.1 503")
        second.close()
        first.close()


def test_limit_of_open_files_is_raised_to_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"soft": 1024, "hard": 4096}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(
        resource, "setrlimit", lambda _, wanted: limits.update(soft=wanted[0], hard=wanted[1])
    )
    http_server._allow_open_files()
    assert limits == {"soft": 4096, "hard": 4096}
