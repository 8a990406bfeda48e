"""Whether the nodes are up that a request needs to start (seed 000): all that are not declared dead."""

from stele.coordinator.desk import Desk
from stele.domain.acks import Blocker
from stele.domain.requests.commands import RejectRequest
from stele.domain.requests.facts import Request
from stele.domain.topology.barriers import configured_level, missing_replicas
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import WaitKind


def startable(desk: Desk, group: list[Request], given_up: frozenset[str] = frozenset()) -> bool:
    """Every node that it needs is up; a request whose node is dead for good is rejected.

    ``given_up`` are nodes that others declare dead: they will be excluded, or that will come to nothing.
    """
    given_up |= declared_dead(group)
    needed = OPERATIONS[group[0].kind].needed(desk.seen.image, group)
    ids = tuple(request.request_id for request in group)
    down = desk.down([n for n in needed if n not in given_up])
    down = down or desk.down(_quorums_need(desk, group, given_up))
    if not down:
        for request_id in ids:
            desk.waits_no_more(request_id)
        return True
    since_s = min(desk.waiting_since(i) for i in ids)
    dead = desk.dead([b.node_id for b in down], since_s)
    if dead:
        names = " ".join(dead)
        why = (
            f"Canceled. Dead nodes: {', '.join(dead)}. Start them; or if they are dead for good,"
            f" `stele exclude {names}`, `stele remove {names}`, or replace them."
        )
        for request_id in ids:
            desk.submit(RejectRequest(desk.seen.term, request_id, why), (request_id,))
    else:
        patience = desk.patience_with_dead(since_s)
        desk.wait(WaitKind.MEMBERS, f"dead nodes, to start {group[0].kind}", down, ids, patience)
    return False


def prepared(desk: Desk, group: list[Request]) -> bool:
    """Each node that must prepare its storage for it has told so."""
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


def _quorums_need(desk: Desk, group: list[Request], given_up: frozenset[str]) -> list[str]:
    """Nodes that are down and without which its barrier could not be passed: it would hold up everybody. What a
    barrier may be relaxed to does not count, since it would hold them up until then.
    """
    image = desk.seen.image
    down = {b.node_id for b in desk.down([*image.membership.taking_part()])} - given_up
    planned = desk.planned(group).transition if down else None
    if planned is None:
        return []
    answer = frozenset(image.membership.nodes) - down - image.membership.excluded() - given_up
    return sorted(missing_replicas(image, planned, answer, configured_level(image), given_up))
