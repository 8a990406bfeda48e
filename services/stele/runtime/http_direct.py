"""POSTs to the few paths that are asked thousands of times a second, without what ASGI costs each of them.

A request whose body is short and of a declared length is answered by its handler straight from uvicorn's
protocol: no task, no middleware, one write. Whatever is unusual (chunked or long bodies, ``Expect``, requests
in a pipeline) takes the ordinary way to the same handler, which ``routed`` gives a route for.

A connection holds little, and not for long: uvicorn itself limits neither the size of a request's head, nor
how long a request may take to arrive, nor how many wait behind one that is being answered. Its parser cannot
be stopped, so it gets what has come in small pieces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec
from prometheus_client import Histogram
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from stele.runtime.answers.errors import ErrorBody
from stele.runtime.connections import Connections
from stele.runtime.http_errors import ErrorCode, HttpError, internal_error
from stele.runtime.http_flow import Flow, without_chunks
from stele.runtime.http_refusals import (
    ARRIVAL_S,
    LENGTH_DIGITS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    arrives_too_slowly,
    head_too_large,
    not_to_be_taken,
    too_many,
    too_many_headers,
)
from stele.runtime.logs import get_logger
from stele.runtime.metrics import http_request_seconds
from stele.runtime.stalled import Stalled
from stele.runtime.tokens import authorization_of

SHORT_BODY_BYTES: Final = 32 * 1024
"""A longer one is worth uvicorn's flow control."""
LONG_READ_BYTES: Final = 64 * 1024
MOST_AHEAD: Final = 16
"""Requests that wait behind an answer under way, 2 kB each: no more is parsed until all of them have begun."""
PIECE_BYTES: Final = 2048
"""Parsed at once, up to a hundred requests: one read of a socket has up to 14,000."""
_NOBODY_WAITS: Final = asyncio.Event()
_UNUSUAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


log = get_logger(__name__)


class Answer(NamedTuple):
    """A whole JSON answer."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Respond = Callable[[Callable[[], Answer]], None]
"""Takes what makes the answer, which may raise HttpError. Never raises."""
Direct = Callable[[bytes, str, Respond], None]
"""A handler that needs the body, the header ``Authorization``, and nothing else of the request. It responds
once, now or later, in the event loop; or raises, HttpError too, and does not respond then.
"""


def json_answer(
    content: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Answer:
    return Answer(status, msgspec.json.encode(content), headers)


def routed(handler: Direct) -> Callable[[Request], Awaitable[Response]]:
    """The handler for what does not come directly."""

    async def post(request: Request) -> Response:
        made: asyncio.Future[Callable[[], Answer]] = asyncio.get_running_loop().create_future()

        def respond(answer: Callable[[], Answer]) -> None:
            if not made.done():
                made.set_result(answer)

        handler(await request.body(), authorization_of(request.headers), respond)
        answer = await made
        status, body, headers = answer()
        return Response(body, status, dict(headers), media_type="application/json")

    post.__name__ = getattr(handler, "__name__", "post")
    return post


def protocol_of(
    direct: Mapping[str, Direct], connections: Connections
) -> Callable[..., HttpToolsProtocol]:
    """uvicorn's protocol with these handlers, by path."""
    by_path = {path.encode(): handler for path, handler in direct.items()}
    return partial(_Protocol, by_path, connections)


class _Exchange:
    """A direct request, in the place of uvicorn's cycle, whose attributes it has."""

    __slots__ = (
        "authorization",
        "began",
        "began_s",
        "body",
        "disconnected",
        "handler",
        "keep_alive",
        "more_body",
        "response_complete",
    )
    message_event = _NOBODY_WAITS

    def __init__(self, handler: Direct, authorization: bytes, keep_alive: bool) -> None:
        self.handler = handler
        self.authorization = authorization
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.began = False
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.began_s = time.perf_counter()


class _Malformed(Exception):
    """The parser stops here, and says that it is no HTTP."""


class _Protocol(HttpToolsProtocol):
    def __init__(
        self, direct: Mapping[bytes, Direct], connections: Connections, **options: Any
    ) -> None:
        super().__init__(**options)
        self._direct = direct
        self._connections = connections
        self._in_head = True
        """Bytes that come are of a request's head, or of nothing yet."""
        self._got_on = False
        """Something has ended among the bytes that are parsed: a head, a part of a body, a request."""
        self._unended_bytes = 0
        """Of a head, the size of a chunk, or what stands behind the chunks."""
        self._held_back = b""
        """Bytes that have come, and that are parsed once the requests before them have begun."""
        self._arriving = False
        self._has_cycle = False
        """``cycle`` is of the request that arrives, not of one before it."""
        self._field_bytes = 0
        """Of the address and the headers of the request that arrives."""
        self._malformed: tuple[int, ErrorBody] | None = None
        """Why this is no HTTP, where we know better than the parser."""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: Stalled | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: Flow = Flow(transport)
        self._stalled = Stalled(transport)
        if self._connections.add(transport):
            self._set_deadline()
        else:
            self._refuse(503, too_many())

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_deadline()
        self._gets_on()
        self._connections.remove(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Whoever takes no answers is read no further."""
        super().pause_writing()
        self.flow.pause_reading()
        if self._stalled is not None:
            self._stalled.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()
        self._gets_on()
        self._watch_its_end()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_its_end()

    def _close(self) -> None:
        self.transport.close()
        self._watch_its_end()

    def _watch_its_end(self) -> None:
        """A connection that we have closed is there until its peer has taken the last of its answer, and with
        TLS has said that it closes too.
        """
        if self.transport.is_closing():
            self._connections.waits(self.transport)
            if self._stalled is not None:
                self._stalled.begin()

    def _read_on(self) -> None:
        if self._held_back and self._may_read():
            self.flow.holds_back = False
            data, self._held_back = self._held_back, b""
            self._take(data)
        if not self._may_read():
            return
        if not (self._is_answering() and len(self.cycle.body) > HIGH_WATER_LIMIT):
            self.flow.resume_reading()  # else whoever answers takes that first, and reads on

    def _may_read(self) -> bool:
        return not (self.transport.is_closing() or self.pipeline or self.flow.write_paused)

    def _gets_on(self) -> None:
        if self._stalled is not None:
            self._stalled.end()

    def data_received(self, data: bytes) -> None:
        """One long read for each turn of the loop: else one sender holds up everybody."""
        assert not self._held_back, "the socket was read although it was paused"
        self._take(data)
        if len(data) >= LONG_READ_BYTES and not self.flow.read_paused:
            self.flow.pause_reading()
            self.loop.call_soon(self._read_on)

    def _take(self, data: bytes) -> None:
        """Parse it, or as much as may wait."""
        for begin in range(0, len(data), PIECE_BYTES):
            if len(self.pipeline) >= MOST_AHEAD:
                self._held_back = data[begin:]
                self.flow.pause_reading()
                self.flow.holds_back = True
                return
            self._take_piece(data[begin : begin + PIECE_BYTES])
            if self.transport.is_closing():
                return
        is_idle = not self._is_answering() and self.timeout_keep_alive_task is None
        if (self._arriving or is_idle) and self._deadline is None:
            self._set_deadline()

    def _take_piece(self, piece: bytes) -> None:
        self._got_on = False
        super().data_received(piece)
        if self.transport.is_closing():
            return
        # where something has ended among these bytes, few are of what comes next
        self._unended_bytes = 0 if self._got_on else self._unended_bytes + len(piece)
        if self._unended_bytes > MAX_HEAD_BYTES:
            self._refuse(431, head_too_large())

    def on_message_begin(self) -> None:
        """What ASGI wants to know of a request is put together once it is known to go there."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._arriving, self._has_cycle = True, False
        self._field_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those behind the body are counted, and are no headers."""
        self._count(len(name) + len(value))
        if not self._in_head:
            return
        if len(self.headers) == MAX_HEADERS:
            self._malformed = 431, too_many_headers()
            raise _Malformed
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        """Raises _Malformed."""
        self._field_bytes += size
        if self._field_bytes > MAX_HEAD_BYTES:
            self._malformed = 431, head_too_large()
            raise _Malformed

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_its_end()
            return
        rest_arrives = self._arriving and not self.pipeline  # of one whose answer is waited for
        if rest_arrives or not self._is_answering():
            self._connections.waits(self.transport)
        if self.pipeline or self.flow.write_paused:
            self.flow.pause_reading()  # until those are answered that have come, and that is taken
        elif self._held_back:
            self.loop.call_soon(self._read_on)

    def send_400_response(self, msg: str) -> None:
        hint = "Send HTTP/1.1, one request after the other."
        why = ErrorBody(ErrorCode.MALFORMED_HTTP, f"This is no HTTP: {msg}", hint, {})
        self._refuse(*(self._malformed or (400, why)))

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever offers another protocol is answered by this one, and the log says nothing of it."""

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(ARRIVAL_S, self._is_late)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _is_late(self) -> None:
        if self.flow.read_paused or (self._in_head and self._is_answering()):
            self._set_deadline()  # we let it wait
        elif self._arriving:
            self._refuse(408, arrives_too_slowly(ARRIVAL_S))
        else:
            self._close()

    def _refuse(self, status: int, body: ErrorBody) -> None:
        """Hang up. The answer would be taken for that to a request before it, where one is under way."""
        begun = self._has_answered() if self._has_cycle else self._is_answering()
        if not (begun or self.pipeline):
            self._write(status, msgspec.json.encode(body), (), keep_alive=False)
        self._close()

    def _has_answered(self) -> bool:
        """Something of the answer to the request whose body arrives has been sent."""
        return self.cycle.response_complete or getattr(self.cycle, "response_started", False)

    def on_headers_complete(self) -> None:
        self._in_head, self._got_on = False, True
        handler = self._direct.get(self.url)
        if handler is None or not self._is_usual():
            self._goes_to_asgi()
        else:
            self._unset_keepalive_if_required()  # a refused one before it in the same bytes has set it
            keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
            self.cycle = _Exchange(handler, _authorization_of(self.headers), keep_alive)  # type: ignore[assignment]
        self._has_cycle = True

    def _goes_to_asgi(self) -> None:
        """Raises _Malformed."""
        upgrades = self.parser.should_upgrade()
        refused = not_to_be_taken(self.headers, upgrades)
        if refused is not None:
            self._malformed = 400, refused
            raise _Malformed
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers += headers  # the very list that the scope has
        super().on_headers_complete()
        if upgrades:  # the parser drops what comes behind it
            self.cycle.keep_alive = False
        if self.parser.get_http_version() == "1.0":
            without_chunks(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._arriving = True, False
        self._got_on = True
        self._unset_deadline()
        if self._is_answering():  # else it was refused before all of it had come
            self._connections.is_answered(self.transport)
        self._has_cycle = False
        super().on_message_complete()
        exchange: object = self.cycle
        if isinstance(exchange, _Exchange) and not exchange.began:  # else it is of the one before
            self._begin(exchange)

    def _is_usual(self) -> bool:
        if self.parser.get_method() != b"POST" or self._is_answering():
            return False
        size = b""
        for name, value in self.headers:
            if name == b"content-length":
                size = value
            elif name in _UNUSUAL:
                return False
        return size.isdigit() and len(size) <= LENGTH_DIGITS and int(size) <= SHORT_BODY_BYTES

    def _is_answering(self) -> bool:
        before: RequestResponseCycle | None = self.cycle
        return before is not None and not before.response_complete

    def _begin(self, exchange: _Exchange) -> None:
        exchange.began = True
        try:
            authorization = exchange.authorization.decode("latin-1")
            exchange.handler(bytes(exchange.body), authorization, partial(self._end, exchange))
        except Exception as error:  # a bug of ours must not look like a request that is not HTTP
            self._answer(exchange, _answer_to(error, exchange.handler.__name__))

    def _end(self, exchange: _Exchange, answer: Callable[[], Answer]) -> None:
        """Whoever responds goes on with what it has to do, whatever becomes of this connection."""
        try:
            try:
                found = answer()
            except Exception as error:
                found = _answer_to(error, exchange.handler.__name__)
            self._answer(exchange, found)
        except Exception as error:
            log.error("no answer was sent", handler=exchange.handler.__name__, exc_info=error)
            self._close()

    def _answer(self, exchange: _Exchange, answer: Answer) -> None:
        status, body, headers = answer
        exchange.response_complete = True
        _duration(exchange.handler.__name__, status).observe(time.perf_counter() - exchange.began_s)
        if exchange.disconnected or self.transport.is_closing():
            return
        self._write(status, body, headers, keep_alive=exchange.keep_alive)
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _write(
        self, status: int, body: bytes, headers: Iterable[tuple[str, str]], *, keep_alive: bool
    ) -> None:
        parts = [_status_line(status)]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (f"{name}: {value}\r\n".encode("latin-1") for name, value in headers)
        if not keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"content-length: %d\r\n\r\n" % len(body), body)
        self.transport.write(b"".join(parts))


def _authorization_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """As ``authorization_of``."""
    return b", ".join([value for name, value in headers if name == b"authorization"])


def _answer_to(error: Exception, handler: str) -> Answer:
    if isinstance(error, HttpError):
        return json_answer(error.body, error.status, error.headers)
    log.error("request failed", handler=handler, exc_info=error)
    return json_answer(internal_error({"method": "POST"}), 500)


@cache
def _status_line(status: int) -> bytes:
    """Up to and with the content's type."""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    return line.encode()


@cache
def _duration(handler: str, status: int) -> Histogram:
    return http_request_seconds.labels("POST", handler, str(status))
