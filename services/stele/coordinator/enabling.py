"""Features are enabled after a barrier: every member has acknowledged the epoch of the request."""

from stele.coordinator.desk import Desk
from stele.coordinator.exclusions import reject
from stele.domain.acks import Barrier
from stele.domain.commands import Rejection
from stele.domain.requests.model import Request
from stele.domain.topology.commands import FinishEnabling
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.waits import WaitKind


def enable(desk: Desk) -> None:
    """Finish requests that ask all members, once these have answered. This needs no round."""
    for request in desk.seen.image.requests.pending():
        if OPERATIONS[request.kind].asks_all:
            answered = desk.answered(request.submitted_epoch)
            if answered.complete:
                _finish(desk, request)
            else:
                _wait(desk, request, answered)


def _finish(desk: Desk, request: Request) -> None:
    """Finish the request, or reject it if the log's writer has refused that.

    The refusal is final. A writer that does not support the feature refuses it, for instance.
    """
    ids = (request.request_id,)
    command = FinishEnabling(desk.seen.term, request.request_id)
    refusal = desk.refusal(command)
    if refusal is None:
        desk.submit(command, ids)
    else:
        reject(desk, ids, refusal)


def _wait(desk: Desk, request: Request, answered: Barrier) -> None:
    ids, blockers = (request.request_id,), answered.blockers
    dead, patience = list[str](), None
    if not desk.outlasts_silence(request.kind):
        since_s = desk.waiting_since(request.request_id)
        dead = desk.dead([blocker.node_id for blocker in blockers], since_s)
        patience = desk.patience_with_dead(since_s)
    if not dead:
        what = "every member, to enable features"
        desk.wait(WaitKind.MEMBERS, what, blockers, ids, patience)
        return
    text = f"It is unknown with which build {', '.join(dead)} will come back: dead nodes."
    hint = f"Start them; or if they are dead for good, `stele exclude {' '.join(dead)}`."
    reject(desk, ids, Rejection("dead_nodes", text, hint))
