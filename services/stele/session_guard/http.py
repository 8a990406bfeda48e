"""The session guard's routes: barriers, liveness, checks, and its health."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.fencing import check_fence
from stele.runtime.follow import Followed
from stele.runtime.http import ErrorCode, Health, HttpError, JsonResponse
from stele.session_guard.barriers import current_target
from stele.session_guard.guard import Guard
from stele.session_guard.redis_writer import RedisWriter


class CheckView(msgspec.Struct, frozen=True):
    """``ok`` when all that was asked about may go on; ``why`` it may not, in sentences."""

    ok: bool
    epoch: int
    version: int
    fence_version: int
    session: str
    why: tuple[str, ...]


def routes(guard: Guard) -> list[Route]:
    async def barrier(request: Request) -> Response:
        epoch, version = current_target(guard.image)
        epoch = _number(request, "epoch", epoch)
        version = _number(request, "version", version)
        return JsonResponse(guard.barrier((epoch, version)))

    async def nodes(_: Request) -> Response:
        return JsonResponse(guard.nodes())

    async def check(request: Request) -> Response:
        return JsonResponse(_check(guard, request))

    return [
        Route("/v1/barrier", barrier, methods=["GET"]),
        Route("/v1/nodes", nodes, methods=["GET"]),
        Route("/v1/check", check, methods=["GET"]),
    ]


def health(guard: Guard, followed: Followed, writer: RedisWriter) -> Health:
    """Without Redis the guard still answers over HTTP, so it is up, and says that it is degraded."""
    found = followed.health()
    if found.ok and writer.trouble:
        return msgspec.structs.replace(found, reason=f"degraded: {writer.trouble}")
    return found


def _check(guard: Guard, request: Request) -> CheckView:
    if not {"version", "session"} & request.query_params.keys():
        raise HttpError(
            422,
            ErrorCode.INVALID_REQUEST,
            "There is nothing to check.",
            hint="Ask with ?version=, ?session= or both.",
        )
    image, why = guard.image, list[str]()
    topology = image.topology.topology
    stale = check_fence(topology, _number(request, "version", topology.version))
    if stale is not None:
        why.append(f"{stale}: read the newest topology and start again.")
    session = request.query_params.get("session")
    if session is not None and (not session or session != topology.session):
        why.append(f"Session {session or '(none)'} is not open: give up the work under it.")
    return CheckView(
        not why,
        image.epoch,
        topology.version,
        topology.fence_version,
        topology.session,
        tuple(why),
    )


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 18:
        raise HttpError(
            422,
            ErrorCode.INVALID_REQUEST,
            f"'{name}' is no whole number of at least 0.",
            hint=f"Send ?{name}= followed by digits.",
            details={name: text[:80]},
        )
    return int(text)
