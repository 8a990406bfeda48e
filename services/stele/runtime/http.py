"""The HTTP side of a service: health, metrics, JSON errors, a limit on bodies.

app = build_app("metadata-log", routes, health)
async with serving(app, bind("127.0.0.1", 0)) as url: ...     # tests, embedding
await serve(app, settings, "metadata-log", stop)              # a service's main
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stele.log.refusals import refused_lately
from stele.runtime.http_direct import Answer, Direct, Respond, json_answer, routed
from stele.runtime.http_errors import (
    ErrorCode,
    HttpError,
    JsonResponse,
    answer_client_that_left,
    answer_http_error,
    answer_internal_error,
    answer_starlette_error,
    parse_json,
    read_json,
)
from stele.runtime.http_server import announce, bind, serve, serving
from stele.runtime.metrics import REGISTRY, http_request_seconds

__all__ = [
    "Answer",
    "Direct",
    "ErrorCode",
    "Health",
    "HttpError",
    "JsonResponse",
    "Respond",
    "announce",
    "bind",
    "build_app",
    "json_answer",
    "parse_json",
    "read_json",
    "serve",
    "serving",
]

# A command is small; a schema change with a thousand tables is 2 MB. A log record's part is 4 MiB.
MAX_BODY_BYTES = 4 * 1024 * 1024


class Health(msgspec.Struct, frozen=True):
    """What /healthz shows: where this process stands in the log, why it is not well, or, when it is well, what
    people should know.
    """

    ok: bool
    epoch: int = 0  # the last one applied
    state_id: str = ""
    lag_epochs: int | None = None  # to the end of the log as last seen; None: not known
    reason: str = ""


def build_app(
    name: str,
    routes: Sequence[BaseRoute],
    health: Callable[[], Health],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    direct: Mapping[str, Direct] | None = None,
) -> Starlette:
    """A Starlette application with the service's routes, /healthz and /metrics.

    ``direct`` maps paths to handlers of POST that skip ASGI; see ``http_direct``.
    """

    async def healthz(_: Request) -> Response:
        now = health()
        if now.ok and (refused := refused_lately()):
            now = msgspec.structs.replace(now, ok=False, reason=refused)
        return JsonResponse(now, status_code=200 if now.ok else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    handlers = direct or {}
    app = Starlette(
        routes=[
            Route("/healthz", healthz, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            *(Route(path, routed(handler), methods=["POST"]) for path, handler in handlers.items()),
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
    app.state.service = name
    app.state.direct = handlers
    return app


class _LimitBody:
    """413 for a body over the limit: at once when its length is declared, else while reading."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            answer = await answer_http_error(
                Request(scope), too_large(int(declared), self._max_body_bytes)
            )
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


def too_large(size_bytes: int, limit_bytes: int) -> HttpError:
    return HttpError(
        413,
        ErrorCode.BODY_TOO_LARGE,
        f"The body is larger than {limit_bytes} bytes.",
        hint="Send less at a time.",
        details={"size_bytes": size_bytes, "limit_bytes": limit_bytes},
    )


class _MeasureRequests:
    """Times each request by handler, not by path: paths hold names and are without number."""

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
