"""Features are enabled after a barrier: every member has acknowledged the epoch that asked for them."""

from stele.coordinator.desk import Desk
from stele.coordinator.exclusions import reject
from stele.domain.acks import Barrier
from stele.domain.commands import Rejection
from stele.domain.requests.facts import Request
from stele.domain.topology.commands import FinishEnabling
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import WaitKind


def enable(desk: Desk) -> None:
    """Requests that ask all members are done once these have answered. It needs no round."""
    for request in desk.seen.image.requests.pending():
        if OPERATIONS[request.kind].asks_all:
            answered = desk.answered(request.submitted_epoch)
            if answered.complete:
                _finish(desk, request)
            else:
                _wait(desk, request, answered)


def _finish(desk: Desk, request: Request) -> None:
    """What the log's writer refuses, as one does that does not know the feature itself, is refused for good."""
    ids = (request.request_id,)
    command = FinishEnabling(desk.seen.term, request.request_id)
    refusal = desk.refusal(command)
    if refusal is None:
        desk.submit(command, ids)
    else:
        reject(desk, ids, refusal)


def _wait(desk: Desk, request: Request, answered: Barrier) -> None:
    ids, blockers = (request.request_id,), answered.blockers
    names = [blocker.node_id for blocker in blockers]
    dead = desk.dead(names, desk.waiting_since(request.request_id))
    if not dead:
        patience = desk.patience_with_dead(desk.waiting_since(request.request_id))
        what = "every member, to enable features"
        desk.wait(WaitKind.MEMBERS, what, blockers, ids, patience)
        return
    text = f"Nobody knows with which build {', '.join(dead)} will come back: dead nodes."
    hint = f"Start them; or if they are dead for good, `stele exclude {' '.join(dead)}`."
    reject(desk, ids, Rejection("dead_nodes", text, hint))
