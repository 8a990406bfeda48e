"""Requests that need no transition: each step is taken as soon as no condition is missing.

They wait for work that proceeds anyway, so they block no other request. Their waits name the
missing condition.
"""

from stele.coordinator.desk import Desk
from stele.domain.acks import Blocker
from stele.domain.requests.model import Request
from stele.domain.topology.commands import ServeRequest
from stele.domain.topology.operations.base import Missing
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.waits import WaitKind


def serve(desk: Desk) -> None:
    """Take the next steps, in the order of the requests."""
    image = desk.seen.image
    for request in image.requests.unfinished():
        served, ids = OPERATIONS[request.kind].served, (request.request_id,)
        if served is None:
            continue
        missing = served.missing(image, request)
        if missing is None:
            step_epoch = served.since(image, request)
            step = ServeRequest(desk.seen.term, request.request_id, request.status, step_epoch)
            desk.submit(step, ids)
        else:
            kind = WaitKind.WORK if missing.nodes else WaitKind.REST
            blockers, eta_s = _blockers(desk, missing), _eta_s(desk, request, missing)
            desk.wait(kind, missing.what, blockers, ids, eta_s=eta_s)


def _eta_s(desk: Desk, request: Request, missing: Missing) -> float | None:
    """Return the seconds until its end, by the progress since its start.

    It is None without progress, and while the request is being cancelled.
    """
    done = missing.of - missing.left
    if done <= 0 or not request.started_at_ms or request.cancelled:
        return None
    return max(0.0, desk.seen.wall_ms - request.started_at_ms) / 1000 * missing.left / done


def _blockers(desk: Desk, missing: Missing) -> tuple[Blocker, ...]:
    down = desk.down([*missing.nodes])
    silent = {blocker.node_id for blocker in down}
    working = (n for n in missing.nodes if n not in silent)
    return *down, *(Blocker(n, "has not reported yet", desk.silent_for_s(n)) for n in working)
