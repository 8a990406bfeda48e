"""Requests that skip ASGI are answered as all others are, in their order, and the unusual ones too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stele.runtime import http_direct
from stele.runtime.http import (
    Answer,
    Health,
    HttpError,
    Respond,
    bind,
    build_app,
    json_answer,
    serving,
)
from stele.runtime.http_direct import MOST_AHEAD, PIECE_BYTES, SHORT_BODY_BYTES
from stele.runtime.http_refusals import MAX_HEAD_BYTES
from stele.runtime.stalled import Stalled
from tests.services.world import until

LIMIT_BYTES = 2 * SHORT_BODY_BYTES
CLIENTS_KEEP_S = 5.0  # httpx; others keep connections for longer
KEEP_ALIVE_S = 5.0  # uvicorn's


class Echo:
    """Answers ``wait`` when told to, and everything else at once."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.authorized: list[str] = []
        self.go_on = asyncio.Event()
        self.waiting = set[asyncio.Task[None]]()

    def echo(self, body: bytes, authorization: str, respond: Respond) -> None:
        self.asked.append(body)
        self.authorized.append(authorization)
        if body == b"refuse":
            raise HttpError(409, "stale_term", "Term 3 is over.", hint="Read again.")
        if body == b"large":
            respond(lambda: json_answer("x" * 30_000_000))
            return
        if body == b"break":
            raise ZeroDivisionError

        def answer() -> Answer:
            if body == b"refuse later":
                raise HttpError(503, "busy", "Busy.", hint="Try again.")
            if body == b"break later":
                raise ZeroDivisionError
            return json_answer({"size": len(body)}, headers=(("retry-after", "1"),))

        if body == b"at once":
            respond(answer)
            return
        waiting = asyncio.create_task(self._respond(body, answer, respond))
        self.waiting.add(waiting)
        waiting.add_done_callback(self.waiting.discard)

    async def _respond(self, body: bytes, answer: Callable[[], Answer], respond: Respond) -> None:
        if body == b"wait":
            await self.go_on.wait()
        respond(answer)


class Line:
    """One connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        async with asyncio.timeout(90):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
            }
            body = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, json.loads(body)

    async def ended(self) -> bool:
        async with asyncio.timeout(90):
            return await self._reader.read() == b""

    async def drained(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def line_to(echo: Echo) -> AsyncIterator[Line]:
    app = build_app(
        "trial",
        [],
        lambda: Health(ok=True),
        max_body_bytes=LIMIT_BYTES,
        direct={"/echo": echo.echo},
    )
    async with serving(app, bind("127.0.0.1", 0)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        line = Line(*await asyncio.open_connection(host, int(port)))
        yield line
        line.close()


def post(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    head = b"POST /echo HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n"
    return head % (version, len(body), lines) + body


def chunked(body: bytes) -> bytes:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


async def test_one_connection_serves_one_request_after_the_other() -> None:
    echo = Echo()
    async with line_to(echo) as line:
        for body in (b"", b"at once", b"two", b"x" * SHORT_BODY_BYTES):
            line.send(post(body))
            status, headers, answer = await line.answer()
            assert (status, answer) == (200, {"size": len(body)})
            assert headers["content-type"] == "application/json"
            assert headers["retry-after"] == "1"
            assert "date" in headers
    assert echo.asked == [b"", b"at once", b"two", b"x" * SHORT_BODY_BYTES]


async def test_the_client_is_the_first_to_hang_up() -> None:
    async with line_to(Echo()) as line:
        line.send(post(b"abc"))
        await line.answer()
        await asyncio.sleep(CLIENTS_KEEP_S + 0.5)
        line.send(post(b"de"))
        assert (await line.answer())[2] == {"size": 2}


async def test_a_request_in_small_pieces_is_whole() -> None:
    async with line_to(Echo()) as line:
        for byte in post(b"abc"):
            line.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await line.answer())[2] == {"size": 3}


@pytest.mark.parametrize(
    "request_bytes",
    [
        chunked(b"abc"),
        post(b"abc", b"X-Trace: 1"),
        post(b"abc").replace(b"/echo", b"/echo?trace=1"),
        post(b"x" * (SHORT_BODY_BYTES + 1)),
    ],
)
async def test_unusual_requests_reach_the_same_handler(request_bytes: bytes) -> None:
    async with line_to(Echo()) as line:
        line.send(request_bytes)
        status, headers, answer = await line.answer()
        assert (status, headers["retry-after"]) == (200, "1")
        assert answer["size"] in (3, SHORT_BODY_BYTES + 1)
        line.send(post(b"abcd"))
        assert (await line.answer())[2] == {"size": 4}


async def test_a_client_that_waits_for_100_is_told_to_go_on() -> None:
    async with line_to(Echo()) as line:
        whole = post(b"abc", b"Expect: 100-continue")
        line.send(whole[:-3])
        async with asyncio.timeout(90):
            assert await line._reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.send(whole[-3:])
        assert (await line.answer())[2] == {"size": 3}


async def test_requests_in_a_pipeline_are_answered_in_their_order() -> None:
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"wait"), post(b"abc"), chunked(b"abcde"), b"GET /healthz HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        assert echo.asked == [b"wait"]
        echo.go_on.set()
        sizes = [(await line.answer())[2].get("size") for _ in range(4)]
        assert sizes == [4, 3, 5, None]
        line.send(post(b"ab"))
        assert (await line.answer())[2] == {"size": 2}


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (post(b"refuse"), 409, "stale_term"),
        (post(b"refuse later"), 503, "busy"),
        (post(b"break"), 500, "internal"),
        (post(b"break later"), 500, "internal"),
        (chunked(b"break later"), 500, "internal"),
        (chunked(b"refuse later"), 503, "busy"),
        (post(b"x" * (LIMIT_BYTES + 1)), 413, "body_too_large"),
        (post(b"abc").replace(b"POST", b"PUT"), 405, "method_not_allowed"),
    ],
)
async def test_errors_have_their_shape_and_the_connection_goes_on(
    request_bytes: bytes, status: int, code: str
) -> None:
    async with line_to(Echo()) as line:
        line.send(request_bytes)
        found, _, error = await line.answer()
        assert (found, error["code"]) == (status, code)
        assert set(error) == {"code", "message", "hint", "details"}
        if len(request_bytes) < LIMIT_BYTES and request_bytes != chunked(b"break later"):
            line.send(post(b"abc"))
            assert (await line.answer())[0] == 200


@pytest.mark.parametrize(
    "request_bytes", [post(b"abc", b"Connection: close"), post(b"abc", version=b"1.0")]
)
async def test_who_wants_the_connection_closed_gets_that(request_bytes: bytes) -> None:
    async with line_to(Echo()) as line:
        line.send(request_bytes)
        status, headers, _ = await line.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await line.ended()


async def test_a_client_that_goes_away_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"wait"))
        await until(lambda: bool(echo.asked), "the request")
        line.close()
        await asyncio.sleep(0.05)
        echo.go_on.set()
        await asyncio.sleep(0.05)
    assert not caplog.records


async def test_a_stop_waits_for_the_answer_under_way() -> None:
    echo = Echo()
    app = build_app("trial", [], lambda: Health(ok=True), direct={"/echo": echo.echo})
    async with serving(app, bind("127.0.0.1", 0)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        line = Line(*await asyncio.open_connection(host, int(port)))
        line.send(post(b"wait"))
        await until(lambda: bool(echo.asked), "the request")
        asyncio.get_running_loop().call_later(0.2, echo.go_on.set)
    status, headers, _ = await line.answer()
    assert (status, headers["connection"]) == (200, "close")
    line.close()


async def test_metrics_count_direct_requests_by_handler_and_status() -> None:
    async with line_to(Echo()) as line:
        line.send(post(b"refuse"))
        await line.answer()
        line.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(90):
            head = await line._reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            text = (await line._reader.readexactly(size)).decode()
    assert 'stele_http_request_seconds_count{handler="echo",method="POST",status="409"}' in text


HANDSHAKE = (
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n"
)


async def test_a_handshake_behind_a_request_does_not_repeat_it() -> None:
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"abc"))
        assert (await line.answer())[2] == {"size": 3}
        line.send(HANDSHAKE)
        await asyncio.sleep(0.2)
        assert echo.asked == [b"abc"]
    async with line_to(echo) as line:
        line.send(post(b"wait"), HANDSHAKE)
        await asyncio.sleep(0.2)
        echo.go_on.set()
    assert echo.asked == [b"abc", b"wait"]


async def test_who_waits_behind_a_refused_request_is_not_hung_up_on() -> None:
    """A connection that nobody uses is closed after a time that begins with each answer."""
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"refuse"), post(b"wait"))
        assert (await line.answer())[0] == 409
        await asyncio.sleep(KEEP_ALIVE_S + 0.5)
        echo.go_on.set()
        assert (await line.answer())[2] == {"size": 4}


async def test_a_head_without_an_end_is_refused_and_hung_up_on() -> None:
    echo = Echo()
    async with line_to(echo) as line:
        line.send(b"POST /echo HTTP/1.1\r\nX-Long: ".ljust(MAX_HEAD_BYTES + 1, b"x"))
        status, headers, answer = await line.answer()
        assert (status, answer["code"], headers["connection"]) == (431, "head_too_large", "close")
        assert await line.ended()
    assert echo.asked == []


async def test_what_is_no_http_is_told_so_in_the_shape_of_all_errors() -> None:
    async with line_to(Echo()) as line:
        line.send(b"\x16\x03\x01 this is no request\r\n\r\n")
        status, _, answer = await line.answer()
        assert (status, answer["code"]) == (400, "malformed_http")
        assert await line.ended()


async def test_garbage_behind_a_request_is_no_answer_to_it() -> None:
    """Whether the command is applied is unknown; a 400 would say that it is not."""
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"wait"), b"garbage\r\n\r\n")
        assert await line.ended()
        echo.go_on.set()
    assert echo.asked == [b"wait"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"POST /echo HTTP/1.1\r\nX-", 408),
        (post(b"abc")[:-1], 408),
        (chunked(b"abc")[:-3], 408),
    ],
    ids=["nothing", "a head", "a body", "chunks"],
)
async def test_what_does_not_arrive_in_time_is_hung_up_on(
    sent: bytes, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_direct, "ARRIVAL_S", 0.1)
    echo = Echo()
    async with line_to(echo) as line:
        line.send(sent)
        if status is not None:
            found, _, answer = await line.answer()
            assert (found, answer["code"]) == (status, "timed_out")
        assert await line.ended()
    assert echo.asked == []


async def test_an_answer_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_direct, "ARRIVAL_S", 0.1)
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"wait"), post(b"abc")[:40])
        await asyncio.sleep(0.3)
        monkeypatch.undo()
        await asyncio.sleep(0.3)  # from here on the rest has a minute to come
        echo.go_on.set()
        assert (await line.answer())[0] == 200
        line.send(post(b"abc")[40:])
        assert (await line.answer())[2] == {"size": 3}


@pytest.mark.parametrize(
    "next_one",
    [
        b"GET http://other HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /" + b"a" * 65_600 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: " + b"0" * 5000 + b"3\r\n\r\nabc",
        b"no HTTP at all\r\n\r\n",
    ],
    ids=["an address without a path", "CONNECT", "a long path", "a long length", "nonsense"],
)
@pytest.mark.parametrize("first", [post(b"wait"), chunked(b"wait")], ids=["direct", "chunked"])
async def test_what_is_refused_is_not_the_answer_to_the_request_before_it(
    first: bytes, next_one: bytes
) -> None:
    """That one may have been taken: whoever sent it must not be told that it was not."""
    echo = Echo()
    async with line_to(echo) as line:
        line.send(first, next_one)
        assert await line.ended()
    assert echo.asked in ([b"wait"], [])


async def test_behind_a_body_that_was_refused_while_it_came_the_next_request_is_read() -> None:
    async with line_to(Echo()) as line:
        for _ in range(3):
            line.send(post(b"x" * 5_000_000))
            assert (await line.answer())[0] == 413
            line.send(post(b"abc"))
            assert (await line.answer())[2] == {"size": 3}


HEAD = b"POST /echo HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"a: b\r\n" * 300 + b"content-length: 0\r\n\r\n",
        HEAD + b"a: " + b"b" * 80_000 + b"\r\ncontent-length: 0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 40_000 + b"\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\na: " + b"b" * 80_000,
        HEAD + b"transfer-encoding: chunked\r\n\r\n3;" + b"b" * 80_000,
    ],
    ids=["many headers", "long ones in one read", "trailers", "one without an end", "a chunk"],
)
async def test_headers_are_limited_however_they_come(sent: bytes) -> None:
    echo = Echo()
    async with line_to(echo) as line:
        line.send(sent)
        status, _, answer = await line.answer()
        assert (status, answer["code"]) == (431, "head_too_large")
        line.close()
    assert echo.asked == []


async def test_whoever_takes_no_answers_is_read_no_further() -> None:
    echo = Echo()
    async with line_to(echo) as line:
        asked = post(b"refuse") * 1000
        taken = 0
        while taken < 400:
            line.send(asked)
            try:
                async with asyncio.timeout(0.5):
                    await line.drained()
            except TimeoutError:
                break
            taken += 1
    assert taken < 400, "40 MB were taken, and all answers kept"


async def test_a_connection_that_is_closed_waits_for_its_peer_no_longer_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when so little is left of its answer that nobody is told to pause."""
    made = http_direct._Protocol.connection_made
    lost = asyncio.Event()

    def connection_made(self: http_direct._Protocol, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=1 << 30)
        made(self, transport)

    def connection_lost(self: http_direct._Protocol, error: Exception | None) -> None:
        lost.set()
        ended(self, error)

    ended = http_direct._Protocol.connection_lost
    monkeypatch.setattr(http_direct, "Stalled", partial(Stalled, stalled_s=0.1))
    monkeypatch.setattr(http_direct._Protocol, "connection_made", connection_made)
    monkeypatch.setattr(http_direct._Protocol, "connection_lost", connection_lost)
    echo = Echo()
    async with line_to(echo) as line:
        line.send(post(b"large", b"connection: close"))
        async with asyncio.timeout(90):
            await lost.wait()


COUNT = 20_000
"""Requests of 70 bytes: several long reads."""


def test_one_sender_is_read_once_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """libuv reads a stream up to 32 times in a turn, a quarter of a megabyte each."""
    received = http_direct._Protocol.data_received
    reads = most = 0

    def data_received(self: http_direct._Protocol, data: bytes) -> None:
        nonlocal reads, most
        reads += 1
        most = max(most, reads)
        received(self, data)

    monkeypatch.setattr(http_direct._Protocol, "data_received", data_received)

    async def turns() -> None:
        nonlocal reads
        while True:
            reads = 0
            await asyncio.sleep(0)

    async def send() -> None:
        async with line_to(Echo()) as line:
            ticking = asyncio.create_task(turns())
            line.send(post(b"refuse") * COUNT)
            for _ in range(COUNT):
                assert (await line.answer())[0] == 409
            ticking.cancel()

    uvloop.run(send())
    assert 0 < most <= 2


OFFERS = b"connection: upgrade\r\nupgrade: h2c\r\n"


@pytest.mark.parametrize("body", [b"content-length: %d\r\n", b"transfer-encoding: chunked\r\n"])
async def test_a_body_that_comes_with_an_offer_of_another_protocol_is_no_request(
    body: bytes,
) -> None:
    """The parser would take it for one, and its own request for one without a body."""
    echo, hidden = Echo(), post(b"hidden")
    length = body % len(hidden) if b"%" in body else body
    async with line_to(echo) as line:
        line.send(b"POST /echo HTTP/1.1\r\n", OFFERS, length, b"\r\n", hidden)
        status, _, answer = await line.answer()
        assert (status, answer["code"]) == (400, "malformed_http")
        assert "HTTP_1_1" in answer["hint"]
        assert await line.ended()
    assert echo.asked == []


async def test_offers_of_other_protocols_are_passed_over() -> None:
    """What came behind one in the same bytes the parser drops: so nobody may wait for an answer to it."""
    for offer in (OFFERS, b"connection: upgrade\r\nupgrade: websocket\r\n"):
        async with line_to(Echo()) as line:
            line.send(b"GET /healthz HTTP/1.1\r\n", offer, b"\r\n", post(b"behind"))
            assert (await line.answer())[0] == 200
            assert await line.ended()


async def test_a_pipeline_waits_in_the_network_and_not_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longest = 0
    complete = http_direct._Protocol.on_response_complete

    def completed(self: http_direct._Protocol) -> None:
        nonlocal longest
        complete(self)
        longest = max(longest, len(self.pipeline))
        if self.pipeline:
            assert self.flow.read_paused

    monkeypatch.setattr(http_direct._Protocol, "on_response_complete", completed)
    async with line_to(Echo()) as line:
        count = 3_000
        line.send(*(post(b"x") for _ in range(count)))
        for _ in range(count):
            assert (await line.answer())[0] == 200
    assert longest > 0


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_is_sent_ahead_of_an_answer_under_way_is_few_requests_and_all_are_answered(
    loop: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of a socket has 14,000 of the shortest, each of which takes two kilobytes once it is parsed."""
    most = read = 0
    headers_complete = http_direct._Protocol.on_headers_complete
    data_received = http_direct._Protocol.data_received

    def counted(self: http_direct._Protocol) -> None:
        nonlocal most
        headers_complete(self)
        most = max(most, len(self.pipeline))

    def received(self: http_direct._Protocol, data: bytes) -> None:
        nonlocal read
        read += len(data)
        data_received(self, data)

    def read_on(self: http_direct._Protocol) -> None:
        go_on(self)
        if self.pipeline and not self.flow.read_paused:
            eager.append(len(self.pipeline))

    eager = list[int]()
    go_on = http_direct._Protocol._read_on
    monkeypatch.setattr(http_direct._Protocol, "_read_on", read_on)
    monkeypatch.setattr(http_direct._Protocol, "on_headers_complete", counted)
    monkeypatch.setattr(http_direct._Protocol, "data_received", received)
    short = b"GET / HTTP/1.1\r\n\r\n"
    count = 40_000

    async def send() -> None:
        echo = Echo()
        async with line_to(echo) as line:
            line.send(post(b"wait"), short * count, post(b"x" * SHORT_BODY_BYTES), post(b"last"))
            await until(lambda: most > 0, "requests that wait")
            await asyncio.sleep(0.1)
            assert read < count * len(short), "all was read while nothing was answered"
            echo.go_on.set()
            assert (await line.answer())[2] == {"size": 4}
            for _ in range(count):
                assert (await line.answer())[0] == 404
            assert (await line.answer())[2] == {"size": SHORT_BODY_BYTES}
            assert (await line.answer())[2] == {"size": 4}

    loop(send())
    assert 0 < most <= MOST_AHEAD + PIECE_BYTES // len(short)
    assert not eager, "more is read while some wait"


async def test_whoever_leaves_in_the_midst_of_an_upload_leaves_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with line_to(Echo()) as line:
        line.send(post(b"x" * (SHORT_BODY_BYTES + 1))[:-1])
        await asyncio.sleep(0.05)
        line.close()
        await asyncio.sleep(0.05)
    assert not caplog.records


async def test_a_client_of_http_1_0_gets_a_stream_without_chunks() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        await asyncio.sleep(0)
        yield b"second"

    async def stream(_: Request) -> Response:
        return StreamingResponse(parts())

    app = build_app("trial", [Route("/stream", stream)], lambda: Health(ok=True))
    async with serving(app, bind("127.0.0.1", 0)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for path, body in ((b"/stream", b"first second"), (b"/healthz", b'"reason":""}')):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET " + path + b" HTTP/1.0\r\n\r\n")
            async with asyncio.timeout(90):
                head, _, answered = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert b"chunked" not in head and b"connection: close" in head
            assert answered.endswith(body)
            assert (path == b"/stream") == (answered == body)
