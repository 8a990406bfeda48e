"""HTTP routes that check a node against its contract (``stele conformance``).

``POST /v1/agent/judge`` returns how a request with these headers would be answered, without any
effect: 204 if it would be served. ``POST /v1/agent/row`` does so for a write of the row in its
body. Only stores that keep columns serve it. ``POST /v1/agent/holds`` returns ``yes`` or ``no``:
whether the store has rows of a range, served or not.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.agent.judging import Code, Judge, Refusal
from stele.agent.stores import Span
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.routed import (
    DATA,
    REPLICA,
    TABLE_VERSION,
    MalformedRequest,
    Routed,
    routed_of,
)
from stele.runtime.http import ErrorCode, HttpError

JUDGE_PATH: Final = "/v1/agent/judge"
ROW_PATH: Final = "/v1/agent/row"
HOLDS_PATH: Final = "/v1/agent/holds"
SPAN_START: Final = "x-stele-start"
SPAN_END: Final = "x-stele-end"
STATUS: Final = {Code.BEHIND: 503, Code.NODE_LEFT: 503}
"""HTTP status of a refusal. All other codes have 409: the sender must route again."""
ROUTE_ANEW: Final = 409
MISDIRECTED: Final = 421


class Refused(HttpError):
    """The request is not served here and now.

    ``details.epoch`` is one that its sender should read first.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(
            STATUS.get(refusal.code, ROUTE_ANEW),
            refusal.code,
            refusal.text,
            hint="Read the log to this epoch, and choose the replicas again.",
            details={"epoch": refusal.epoch},
        )
        self.code = refusal.code


def request_of(request: Request) -> Routed:
    """Return the routing of an HTTP request. GET and HEAD are reads. Raises HttpError."""
    try:
        routed = routed_of(request.headers)
    except MalformedRequest as error:
        raise HttpError(400, ErrorCode.INVALID_REQUEST, str(error)) from error
    is_get = request.method in ("GET", "HEAD")
    return msgspec.structs.replace(routed, reads=True) if is_get else routed


def check_log(here: str, log_id: str) -> None:
    """Raise HttpError when the sender follows another log than ``here``."""
    if log_id and log_id != here:
        text = f"This node follows log {here}, not {log_id[:64]}."
        hint = "Read the state again. The log was recovered: restart the node that follows the older one."
        raise HttpError(ROUTE_ANEW, "other_log", text, hint=hint, details={"log_id": here})


def check_meant(here: str, replica: str) -> None:
    """Raise HttpError when the sender names another node than ``here``, or none.

    This node has no data of the other one.
    """
    if not replica:
        text = f"The request does not name the node that it is meant for: it has no {REPLICA}."
        raise HttpError(400, ErrorCode.INVALID_REQUEST, text, hint="Send what the look-up gave.")
    if replica != here:
        raise HttpError(
            MISDIRECTED,
            "other_node",
            f"This is node '{here}', not '{replica[:64]}'.",
            hint="The replica that was meant did not do it; the log says where it is now.",
            details={"node": here},
        )


def check_host(node_id: str, here: str, host_id: str) -> None:
    """Raise HttpError when the sender means another host id than ``here``.

    The other host has, or had, the same node id with other data.
    """
    if host_id and host_id != here:
        raise HttpError(
            MISDIRECTED,
            "other_node",
            f"Node '{node_id}' is host {here} here, not {host_id[:64]}.",
            hint="The replica that was meant did not do it; the log says which host the node is now.",
            details={"node": node_id, "host_id": here},
        )


def judge_route(judge: Judge, check: Callable[[Routed], None]) -> Route:
    """Return the route of ``JUDGE_PATH``.

    ``check`` raises HttpError while the node serves nothing, or when the sender means another node
    or log.
    """

    async def judged(request: Request) -> Response:
        await _judged(judge, check, request)
        return Response(status_code=204)

    handler: Callable[[Request], Awaitable[Response]] = judged
    return Route(JUDGE_PATH, handler, methods=["POST"])


def row_route(
    judge: Judge, check: Callable[[Routed], None], check_row: Callable[[Routed, bytes], None]
) -> Route:
    """Return the route of ``ROW_PATH``, for a store that keeps columns.

    ``check`` is that of ``judge_route``. ``check_row`` raises HttpError for a row with columns that
    the table lacks, as the store does before a write.
    """

    async def judged(request: Request) -> Response:
        routed = await _judged(judge, check, request)
        check_row(routed, await request.body())
        newer = judge.newer_table_version(routed)
        headers = {TABLE_VERSION: str(newer)} if newer else None
        return Response(status_code=204, headers=headers)

    handler: Callable[[Request], Awaitable[Response]] = judged
    return Route(ROW_PATH, handler, methods=["POST"])


async def _judged(judge: Judge, check: Callable[[Routed], None], request: Request) -> Routed:
    """Return the routing of a request that would be served. Raises HttpError."""
    routed = request_of(request)
    check(routed)
    await judge.catch_up([routed])
    refusal = judge.refusal(routed)
    if refusal is not None:
        raise Refused(refusal)
    return routed


def holds_route(has_rows: Callable[[Span], bool]) -> Route:
    """Return the route of ``HOLDS_PATH``.

    ``has_rows(span)`` reads the store, whether the node serves or not.
    """

    async def holds(request: Request) -> Response:
        found = has_rows(_span_of(request))
        return Response("yes" if found else "no", media_type="text/plain")

    handler: Callable[[Request], Awaitable[Response]] = holds
    return Route(HOLDS_PATH, handler, methods=["POST"])


def _span_of(request: Request) -> Span:
    """Return the span that the headers name. Raises HttpError."""
    data_id = request.headers.get(DATA, "")
    try:
        start, end = (int(request.headers.get(name, "")) for name in (SPAN_START, SPAN_END))
    except ValueError:
        start, end = 0, 0
    in_order = MIN_TOKEN <= start <= MAX_TOKEN and (start < end <= MAX_TOKEN or end == MIN_TOKEN)
    if not data_id or not in_order:
        text = f"Name a range: {DATA} and, as tokens, {SPAN_START} below {SPAN_END}."
        raise HttpError(400, ErrorCode.INVALID_REQUEST, text)
    return Span(data_id, start, end)
