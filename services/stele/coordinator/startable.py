"""Check that the nodes that a request needs are up: those that ask, the receivers, and quorums."""

from stele.coordinator.desk import Desk
from stele.domain.acks import Blocker
from stele.domain.requests.model import RejectRequest, Request
from stele.domain.topology.barriers import configured_level, missing_replicas
from stele.domain.topology.live_copies import described, losses
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.waits import WaitKind


def startable(desk: Desk, group: list[Request], given_up: frozenset[str] = frozenset()) -> bool:
    """Return whether every node that the group needs is up.

    ``given_up`` are nodes that other requests declare dead. They will be excluded, or those
    requests will fail.

    Requests that outlast silence wait without a limit, as do operations on nodes in any case: a
    rejected node could not join again, and tablets that a leaving node has moved away would return
    to it. They end once a needed node is excluded, because it never returns. Other requests are
    rejected once a node is dead.
    """
    given_up |= declared_dead(group)
    operation = OPERATIONS[group[0].kind]
    needed = desk.prospect(group).needed_nodes
    ids = tuple(request.request_id for request in group)
    down = desk.down([n for n in needed if n not in given_up])
    down = down or desk.down(_carried_out_by(desk, group, given_up))
    if not down:
        for request_id in ids:
            desk.waits_no_more(request_id)
        return True
    what = f"dead nodes, to start {group[0].kind}"
    silent, patience = [b.node_id for b in down], None
    if operation.is_of_nodes or desk.outlasts_silence(operation.kind):
        excluded = desk.seen.image.membership.excluded()
        dead = [node_id for node_id in silent if node_id in excluded]
    else:
        since_s = min(desk.waiting_since(i) for i in ids)
        dead, patience = desk.dead(silent, since_s), desk.patience_with_dead(since_s)
    if dead:
        names, lost = " ".join(dead), losses(desk.seen.image, {*dead})
        advice = (
            f"Start them: {described(desk.seen.image, lost)} may have acknowledged writes that no"
            " other live node has."
            if lost
            else f"Start them; or if they are dead for good, `stele exclude {names}`,"
            f" `stele remove {names}`, or replace them."
        )
        why = f"Canceled. Dead nodes: {', '.join(dead)}. {advice}"
        for request_id in ids:
            desk.submit(RejectRequest(desk.seen.term, request_id, why), (request_id,))
    else:
        desk.wait(WaitKind.MEMBERS, what, down, ids, patience)
    return False


def prepared(desk: Desk, group: list[Request]) -> bool:
    """Return whether each node that must prepare its storage has acknowledged that."""
    for request in group:
        late = [
            Blocker(n, "has not prepared its storage", desk.silent_for_s(n))
            for n in sorted(OPERATIONS[request.kind].prepared_by(desk.seen.image, request))
            if not _is_prepared(desk, n, request.request_id)
        ]
        if late:
            what = f"nodes to prepare their storage for {request.kind}"
            desk.wait(WaitKind.PREPARED, what, tuple(late), (request.request_id,))
            return False
    return True


def _is_prepared(desk: Desk, node_id: str, request_id: str) -> bool:
    seen = desk.seen.acks.by_node.get(node_id)
    return seen is not None and request_id in seen.ack.prepared


def _carried_out_by(desk: Desk, group: list[Request], given_up: frozenset[str]) -> list[str]:
    """Return the nodes that are down and must receive data, or without which its barrier cannot
    pass.

    Such a barrier would block all transitions. A relaxed level does not count, because all
    transitions would wait until then.
    """
    image = desk.seen.image
    down = {b.node_id for b in desk.members_down} - given_up
    planned = desk.planned(group).transition if down else None
    if planned is None:
        return []
    answer = frozenset(image.membership.nodes) - down - image.membership.excluded() - given_up
    missing = missing_replicas(image, planned, answer, configured_level(image), given_up)
    receiving = OPERATIONS[planned.kind].receiving(image, planned)
    return sorted(missing | (down & {*receiving}))
