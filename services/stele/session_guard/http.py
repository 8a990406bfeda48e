"""The session-guard's routes: barriers, liveness, sessions, checks, and its health."""

import asyncio
import math
import time
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.runtime.answers.session_guard import (
    AGREEMENT_PATH,
    LONGEST_AGREEMENT_S,
    CheckCode,
    CheckView,
    SessionsView,
)
from stele.runtime.follow import Followed
from stele.runtime.http import ErrorCode, Health, HttpError, JsonResponse
from stele.runtime.live_flow import LiveReader
from stele.session_guard.check import other_log, session_not_open, stale_version
from stele.session_guard.guard import Guard, current_target
from stele.session_guard.proof import Proofs
from stele.session_guard.redis_writer import RedisWriter

NOT_CURRENT_STATUS = 503
CHECKED: Final = frozenset({"version", "session", "log_id"})
"""Parameters of a check, each at most once."""
MOST_DIGITS: Final = 18
"""Digits of a number that fits into 64 bits."""
AGREEMENT_POLL_S: Final = 0.05
"""Interval at which a waiting request looks at the acks: a tenth of a heartbeat's."""


def routes(guard: Guard, proofs: Proofs, proof_max_age_s: float) -> list[Route]:
    async def barrier(request: Request) -> Response:
        epoch, version = current_target(guard.image)
        epoch = _number(request, "epoch", epoch)
        version = _number(request, "version", version)
        return JsonResponse(guard.barrier((epoch, version)))

    async def nodes(_: Request) -> Response:
        return JsonResponse(guard.nodes())

    async def agreement(request: Request) -> Response:
        epoch = _number(request, "epoch", 0)
        limit_s = _number(request, "timeout_s", 0, LONGEST_AGREEMENT_S)
        end_s, stopping = time.monotonic() + limit_s, request.app.state.stopping
        found = guard.schema_agreement(epoch)
        while not found.agreed and time.monotonic() < end_s and not stopping.is_set():
            await asyncio.sleep(AGREEMENT_POLL_S)
            found = guard.schema_agreement(epoch)
        return JsonResponse(found)

    async def sessions(_: Request) -> Response:
        now = guard.permissions()
        return JsonResponse(SessionsView(now.log_id, now.epoch, now.sessions))

    async def check(request: Request) -> Response:
        _refuse_what_is_not_checked(request)
        is_current = await proofs.within(proof_max_age_s)
        age_s = proofs.age_s()
        trouble = proofs.trouble if guard.permissions().log_id else "there is no cluster yet"
        if not is_current or not guard.permissions().log_id:
            answer = not_current(age_s, proof_max_age_s, trouble)
            return JsonResponse(answer, status_code=NOT_CURRENT_STATUS)
        return JsonResponse(checked(guard, request, age_s))

    return [
        Route("/v1/barrier", barrier, methods=["GET"]),
        Route("/v1/nodes", nodes, methods=["GET"]),
        Route(AGREEMENT_PATH, agreement, methods=["GET"]),
        Route("/v1/sessions", sessions, methods=["GET"]),
        Route("/v1/check", check, methods=["GET"]),
    ]


def health(
    guard: Guard, followed: Followed, proofs: Proofs, acks: LiveReader, writer: RedisWriter
) -> Health:
    """Return the health.

    Without Redis the guard is up but degraded, because it still answers over HTTP.

    Without acks it cannot report liveness; without proofs it permits no work.
    """
    state = followed.health()
    if not state.ok:
        return state
    reason = acks.trouble
    if not reason and guard.permissions().log_id and proofs.trouble:
        reason = f"Nothing is permitted, because {proofs.trouble}."
    if reason:
        return msgspec.structs.replace(state, ok=False, reason=reason)
    degraded = writer.trouble or acks.restless
    if degraded:
        return msgspec.structs.replace(state, reason=f"degraded: {degraded}")
    return state


def checked(guard: Guard, request: Request, age_s: float) -> CheckView:
    """Answer a check by an image that is proven to be current."""
    now, asked = guard.permissions(), request.query_params
    code, hint = CheckCode.PERMITTED, ""
    message = other_log(asked.get("log_id", ""), now.log_id, now.epoch)
    if message:
        code, hint = CheckCode.OTHER_LOG, "Read the newest topology and start again."
    if not message and "version" in asked:
        message = stale_version(_number(request, "version", 0), now.fence_version, now.epoch)
        if message:
            code, hint = CheckCode.STALE_VERSION, "Read the newest topology and start again."
    if not message and "session" in asked:
        message = session_not_open(asked["session"], now.sessions, now.epoch)
        if message:
            code, hint = CheckCode.SESSION_NOT_OPEN, "Give up the work under this session."
    return CheckView(
        ok=code is CheckCode.PERMITTED,
        code=code,
        message=message,
        hint=hint,
        proof_age_s=age_s,
        log_id=now.log_id,
        epoch=now.epoch,
        version=now.version,
        fence_version=now.fence_version,
    )


def not_current(age_s: float, max_age_s: float, trouble: str) -> CheckView:
    proof_age_s = None if math.isinf(age_s) else age_s
    known = "never" if proof_age_s is None else f"{proof_age_s:.1f} s ago"
    return CheckView(
        ok=False,
        code=CheckCode.NOT_CURRENT,
        message=f"This guard cannot say; it was last known to be current {known}: "
        f"{trouble or 'the log is slow'}.",
        hint="Do not continue; retry, or ask another session-guard.",
        proof_age_s=proof_age_s,
        details={"proof_age_s": proof_age_s, "proof_max_age_s": max_age_s},
    )


def _refuse_what_is_not_checked(request: Request) -> None:
    """Reject misspelt and repeated parameters, which would be permitted without a check."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in CHECKED or given.count(name) > 1:
            raise HttpError(
                400,
                ErrorCode.INVALID_REQUEST,
                f"'{name[:40]}' comes twice." if name in CHECKED else f"There is no '{name[:40]}'.",
                hint=f"Use {', '.join(sorted(CHECKED))}, each once.",
            )
    if not {"version", "session"} & {*given}:
        raise HttpError(
            400,
            ErrorCode.INVALID_REQUEST,
            "There is nothing to check.",
            hint="Ask with ?version=, ?session= or both, and the &log_id= that they are of.",
        )
    _number(request, "version", 0)


def _number(request: Request, name: str, default: int, most: int | None = None) -> int:
    """Return a parameter of at most ``most``. Raises HttpError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not is_number or (most is not None and int(text) > most):
        upper = "of at least 0" if most is None else f"from 0 to {most}"
        raise HttpError(
            400,
            ErrorCode.INVALID_REQUEST,
            f"'{name}' is no whole number {upper}.",
            hint=f"Send ?{name}= followed by digits.",
            details={name: text[:80]},
        )
    return int(text)
