"""The one shape of every HTTP error: `{"code", "message", "hint", "details"}`.

The shell's own codes are in `ErrorCode`; a service adds its closed set and raises `HttpError`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stele.domain.base import Rejection
from stele.log.deliveries import DELIVERIES, refused_lately, start_wait
from stele.runtime.answers.common import Detail, ErrorBody
from stele.runtime.logs import get_logger
from stele.runtime.metrics import REGISTRY, http_request_seconds
from stele.runtime.service import wait_at_most
from stele.runtime.settings import ConfigurationError, ServiceSettings
from stele.runtime.tokens import authorization_of

__all__ = [
    "ErrorCode",
    "Health",
    "HttpAnswer",
    "HttpError",
    "JsonResponse",
    "Listener",
    "PlainHandler",
    "announce",
    "bind",
    "build_app",
    "json_answer",
    "listening",
    "parse_json",
    "read_json",
    "serve",
    "serving",
]


CLIENT_LEFT: Final = 499
"""Status for a client that disconnected, as proxies call it. HTTP has no status for it."""

log = get_logger(__name__)

T = TypeVar("T")


class ErrorCode(StrEnum):
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    MALFORMED_HTTP = "malformed_http"
    MALFORMED_JSON = "malformed_json"
    INVALID_REQUEST = "invalid_request"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed_out"
    HTTP_ERROR = "http_error"
    INTERNAL = "internal"


class HttpError(Exception):
    """Raise in a handler to answer with an error. `status` is the HTTP status, 400 to 599."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, Detail] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = ErrorBody(str(code), message, hint, dict(details or {}))

    @classmethod
    def refused(cls, status: int, why: Rejection) -> HttpError:
        """Return the error for a rejection by the core."""
        return cls(status, why.code, why.message, hint=why.hint, details=why.details)


class JsonResponse(Response):
    """A response encoded by msgspec: structs, dataclasses, dicts."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return msgspec.json.encode(content)


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the body as a typed value.

    Raises HttpError 400 when it is not JSON or does not fit.
    """
    return parse_json(await request.body(), kind)


def parse_json(body: bytes, kind: type[T]) -> T:
    """Decode a body that was read already, as ``read_json`` does."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise HttpError(
            400,
            ErrorCode.INVALID_REQUEST,
            f"The body does not fit: {error}.",
            hint="Correct the field that the message names.",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(
            400,
            ErrorCode.MALFORMED_JSON,
            f"The body is not JSON: {error}.",
            hint="Send one JSON value in UTF-8.",
            details={"size_bytes": len(body)},
        ) from error


async def answer_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return JsonResponse(error.body, status_code=error.status, headers=dict(error.headers))


async def answer_starlette_error(request: Request, error: Exception) -> Response:
    """Answer for Starlette's own errors: no such path, method not allowed, and what its parsers
    raise.
    """
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    details: dict[str, Detail] = {"path": path, "method": method}
    match error.status_code:
        case 404:
            body = ErrorBody(
                ErrorCode.NOT_FOUND, f"There is nothing at {path}.", "Check the path.", details
            )
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            details["allowed"] = sorted(part.strip() for part in allowed.split(",") if part.strip())
            body = ErrorBody(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"{path} does not take {method}.",
                f"Use {allowed or 'another method'}.",
                details,
            )
        case _:
            body = ErrorBody(ErrorCode.HTTP_ERROR, str(error.detail), "", details)
    return JsonResponse(body, status_code=error.status_code, headers=error.headers)


async def answer_client_that_left(_: Request, __: Exception) -> Response:
    """Answer for a client that left during its upload.

    Only the metrics show it, since no client reads it.
    """
    return Response(status_code=CLIENT_LEFT)


async def answer_internal_error(request: Request, error: Exception) -> Response:
    """Answer for a bug of ours. The caller gets a general error, and the log has the details."""
    path, method = request.url.path, request.method
    log.error("request failed", path=path, error=repr(error))
    return JsonResponse(internal_error({"path": path, "method": method}), status_code=500)


def internal_error(details: Mapping[str, Detail]) -> ErrorBody:
    """Return the body for a caller that met a bug of ours."""
    return ErrorBody(
        ErrorCode.INTERNAL,
        "The service failed on this request.",
        "Report it with the service's log; whether a change took effect is unknown.",
        dict(details),
    )


# Plain ASGI handlers in front of Starlette, for POST on paths that are called thousands of times a
# second.
#
# Routing, middleware and request objects cost about as much as the rest of the request
# (`docs/decisions/079-plain-asgi-for-commands.md`).


_CLOSE: Final = (("connection", "close"),)


class HttpAnswer(NamedTuple):
    """One complete JSON response."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


PlainHandler = Callable[[bytes, str], Awaitable[HttpAnswer]]
"""Takes the body and the header ``Authorization``. May raise HttpError."""


def json_answer(
    content: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode(content), headers)


class PlainPost:
    """ASGI application of one path: reads the body up to a limit, awaits the handler, sends one response."""

    def __init__(self, handler: PlainHandler, max_body_bytes: int) -> None:
        self._handler = handler
        self._name = handler.__name__
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = time.perf_counter()
        headers = Headers(scope=scope)
        try:
            check_head(headers, self._max_body_bytes)
            body = await _read_body(receive, self._max_body_bytes)
            if body is None:
                return
            answer = await self._handler(body, authorization_of(headers))
        except HttpError as error:
            answer = json_answer(error.body, error.status, error.headers)
        except Exception as error:
            log.error("request failed", handler=self._name, exc_info=error)
            answer = json_answer(internal_error({"method": "POST", "path": scope["path"]}), 500)
        _duration(self._name, answer.status).observe(time.perf_counter() - began_s)
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", b"%d" % len(answer.body)),
                    *((name.encode(), value.encode()) for name, value in answer.headers),
                ],
            }
        )
        await send({"type": "http.response.body", "body": answer.body})


def in_front(app: ASGIApp, plain: Mapping[str, PlainPost]) -> ASGIApp:
    """``app``, with POST on the paths in ``plain`` answered before it."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        found = plain.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        await (app if found is None else found)(scope, receive, send)

    return front


def check_head(headers: Headers, max_body_bytes: int) -> None:
    """Raise HttpError for a request whose body cannot be read, before it is read."""
    declared = headers.get("content-length", "")
    if "upgrade" in headers and (declared or "transfer-encoding" in headers):
        # httptools takes the body of such a request for the next request. The connection is closed,
        # so that nothing in the body is executed. Java's HttpClient offers h2c by default.
        raise HttpError(
            400,
            ErrorCode.MALFORMED_HTTP,
            "A request with a body must not have the header upgrade.",
            hint="Send HTTP/1.1 without upgrade; Java's HttpClient does with version(HTTP_1_1).",
            headers=_CLOSE,
        )
    if declared.isdigit() and int(declared) > max_body_bytes:
        raise too_large(int(declared), max_body_bytes)


def too_large(size_bytes: int, limit_bytes: int) -> HttpError:
    return HttpError(
        413,
        ErrorCode.BODY_TOO_LARGE,
        f"The body is larger than {limit_bytes} bytes.",
        hint="Send less at a time.",
        details={"size_bytes": size_bytes, "limit_bytes": limit_bytes},
    )


async def _read_body(receive: Receive, max_body_bytes: int) -> bytes | None:
    """The whole body; None when the client has disconnected. Raises HttpError 413."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        more: bytes = message.get("body", b"")
        body += more
        if len(body) > max_body_bytes:
            raise too_large(len(body), max_body_bytes)
        if not message.get("more_body", False):
            return body


@cache
def _duration(handler: str, status: int) -> Histogram:
    return http_request_seconds.labels("POST", handler, str(status))


# Run an ASGI application inside the service's own event loop, on a socket of our own.
#
# The socket is bound before uvicorn starts, so port 0 works and the chosen port is known. Signals
# are handled by `runtime.service`, not by uvicorn.


BACKLOG = 512  # connections waiting to be accepted
MAX_CONNECTIONS = 8192
"""Requests on further connections are answered 503 (uvicorn's ``limit_concurrency``)."""
GRACE_S = 3.0  # for answers under way and open streams when the service stops; whole seconds
KEEP_ALIVE_S = 120
"""Time for which an idle connection stays open, longer than clients keep theirs (httpx 5 s,
aiohttp 15 s, Go 90 s).

The client must be the first to close. Otherwise its next request may meet a closed connection, and
it cannot find out whether the request was received.
"""


class Waitable(Protocol):
    async def wait(self) -> object: ...


class StartFailed(Exception):
    """The application's lifespan raised; the log has the trace."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ConfigurationError.

    It names its protocol, because only then asyncio sets TCP_NODELAY for its connections. Otherwise
    each answer that is written as head and body costs 40 ms, for which the client delays its
    acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"STELE_HTTP_HOST={host!r}, STELE_HTTP_PORT={port}: cannot listen there ({error})"
        ) from error
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket, tls: ssl.SSLContext | None = None) -> str:
    """Return the address of the socket for other processes on this machine."""
    scheme = "http" if tls is None else "https"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (compared only)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def announce(service: str, instance: str, url: str) -> None:
    """Report the listening address to the parent process, by one JSON line on standard output."""
    line = json.dumps({"service": service, "instance": instance, "http": url})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def serving(
    app: Starlette,
    sock: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    grace_s: float = GRACE_S,
) -> AsyncIterator[str]:
    """Serve inside the block; yield the address once requests are answered.

    `app.state.stopping` (asyncio.Event) is set when the block ends: streams must end on it.
    """
    app.state.stopping = asyncio.Event()
    _allow_open_files()
    config = uvicorn.Config(
        in_front(app, app.state.plain),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=max(1, round(grace_s)),
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=MAX_CONNECTIONS,
        backlog=BACKLOG,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="httptools",
    )
    config.load()
    config.ssl = tls  # uvicorn would create another context from the files
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not server.started:
            raise StartFailed(f"{app.state.service} did not start: the log has the trace.")
        yield url_of(sock, tls)
    finally:
        ready.cancel()
        app.state.stopping.set()
        server.should_exit = True
        await task
        sock.close()


async def serve(
    app: Starlette,
    settings: ServiceSettings,
    service: str,
    stop: Waitable,
    *,
    sock: socket.socket | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Serve and announce until `stop`; then finish pending requests, within at most `grace_s`."""
    sock = sock or bind(settings.http_host, settings.http_port)
    async with serving(app, sock, tls=settings.http_tls, grace_s=grace_s) as url:
        announce(service, settings.instance_id, url)
        await stop.wait()


def _allow_open_files() -> None:
    """Raise the soft limit on open files, often 1,024, to twice the connections, within the hard
    limit.

    Half of it is for connections, the other half for everything else. The hard limit is not
    changed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (
        2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
    )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event for the moment it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # uvicorn's answer to a lifespan that raised; ours is StartFailed
            self.should_exit = True
        self.ready.set()


# The HTTP side of a service: health, metrics, JSON errors, a limit on bodies.
#
# app = build_app("metadata-log", routes, health) async with serving(app, bind("127.0.0.1", 0)) as
# url: ...     # tests, embedding await serve(app, settings, "metadata-log", stop)              # a
# service's main


# A command is small; a schema change with a thousand tables is 2 MB. A log record's part is 4 MiB.
MAX_BODY_BYTES = 4 * 1024 * 1024


class Health(msgspec.Struct, frozen=True):
    """Answer of /healthz: this process's position in the log, and why it is unhealthy.

    When it is healthy, ``reason`` holds notices for operators.
    """

    ok: bool
    epoch: int = 0  # the last one applied
    state_id: str = ""
    lag_epochs: int | None = None  # to the end of the log as last seen; None: unknown
    reason: str = ""


def build_app(
    name: str,
    routes: Sequence[BaseRoute],
    health: Callable[[], Health],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    plain: Mapping[str, PlainHandler] | None = None,
) -> Starlette:
    """A Starlette application with the service's routes, /healthz and /metrics.

    ``plain`` maps paths to handlers of POST that are called before Starlette; see ``PlainPost``.
    """

    async def healthz(_: Request) -> Response:
        now = health()
        if now.ok and (refused := refused_lately()):
            now = msgspec.structs.replace(now, ok=False, reason=refused)
        if trouble := DELIVERIES.trouble():
            reason = "; ".join(filter(None, (now.reason, trouble)))
            now = msgspec.structs.replace(now, reason=reason)
        return JsonResponse(now, status_code=200 if now.ok else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    posts = {path: PlainPost(handler, max_body_bytes) for path, handler in (plain or {}).items()}
    app = Starlette(
        routes=[
            Route("/healthz", healthz, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            *(Route(path, post, methods=["POST"]) for path, post in posts.items()),
            *routes,
        ],
        middleware=[
            Middleware(_MeasureRequests),
            Middleware(_LimitBody, max_body_bytes=max_body_bytes),
        ],
        exception_handlers={
            HttpError: answer_http_error,
            ClientDisconnect: answer_client_that_left,
            HTTPException: answer_starlette_error,
            Exception: answer_internal_error,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirection of a path without its key has no error
    app.state.service = name
    app.state.plain = posts
    return app


# Answer requests while a service starts, which may take as long as an outage of the brokers.


EARLY_S: Final = 1.0
"""Time after which a service that still starts answers 503. Most services have started by then."""
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Listener:
    """The listening socket of a service. Others reach it at ``url``."""

    def __init__(self, settings: ServiceSettings, service: str, sock: socket.socket) -> None:
        self.url = url_of(sock, settings.http_tls)
        self._settings = settings
        self._service = service
        self._sock = sock
        self._is_taken = asyncio.Event()
        self._answering: asyncio.Task[None] | None = None

    async def serve(self, app: Starlette, stop: Waitable) -> None:
        """Serve ``app`` instead of the early answers; see ``serve``."""
        await self.end_early()
        await serve(app, self._settings, self._service, stop, sock=self._sock)

    def answer_early(self, app: Starlette) -> None:
        self._answering = asyncio.create_task(self._answer(app), name="early")

    async def end_early(self) -> None:
        # Not cancelled: a server that is cancelled while it starts would keep accepting.
        self._is_taken.set()
        if self._answering is not None:
            await self._answering

    async def _answer(self, app: Starlette) -> None:
        await wait_at_most(self._is_taken, EARLY_S)
        if self._is_taken.is_set():
            return
        # The duplicate is closed with this server. Later connections wait at the socket itself.
        async with serving(app, self._sock.dup(), tls=self._settings.http_tls):
            await self._is_taken.wait()


@asynccontextmanager
async def listening(
    settings: ServiceSettings, service: str, code: str = ErrorCode.UNAVAILABLE
) -> AsyncIterator[Listener]:
    """Listen inside the block. Requests are answered 503 with ``code`` until ``Listener.serve``.

    Raises ConfigurationError when the address is not free.
    """

    def health() -> Health:
        return Health(ok=False, reason=start_wait() or "Starting; try again in a moment.")

    async def starting(_: Request) -> Response:
        raise HttpError(503, code, health().reason, hint="Try again in a moment.")

    with bind(settings.http_host, settings.http_port) as sock:
        listener = Listener(settings, service, sock)
        every_path = Route("/{path:path}", starting, methods=_METHODS)
        listener.answer_early(build_app(service, [every_path], health))
        try:
            yield listener
        finally:
            await listener.end_early()


class _LimitBody:
    """413 for a body over the limit: at once when its length is declared, else while reading."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check_head(Headers(scope=scope), self._max_body_bytes)
        except HttpError as error:
            answer = await answer_http_error(Request(scope), error)
            await answer(scope, receive, send)
            return
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise too_large(received, self._max_body_bytes)
            return message

        await self._app(scope, counting, send)


class _MeasureRequests:
    """Times each request by handler, not by path, because paths contain names and are unbounded."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        began = time.perf_counter()

        async def watching(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watching)
        finally:
            handler = getattr(scope.get("endpoint"), "__name__", "none")
            http_request_seconds.labels(scope["method"], handler, str(status)).observe(
                time.perf_counter() - began
            )
