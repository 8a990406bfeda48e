"""Which pending requests open now: by priority, grouped where the kind allows, with room for their locks.

What has no room queues, and what would conflict with it queues behind it, so nobody is overtaken for ever.
"""

from stele.coordinator.desk import Desk
from stele.coordinator.exclusions import not_excluded, reject
from stele.domain.acks import Blocker, is_covered
from stele.domain.commands import Rejection
from stele.domain.requests.commands import RejectRequest
from stele.domain.requests.facts import Request
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import Locks, locks_meet, needs, plan_group


def openings(desk: Desk) -> tuple[tuple[str, ...], ...]:
    """Groups of request ids to open with the next Advance."""
    chosen: list[tuple[str, ...]] = []
    earlier: list[Locks] = []
    groups = _groups(desk)
    for group in groups:
        if _startable(desk, group):
            ids = tuple(request.request_id for request in group)
            if _has_room(desk, group, earlier) and not _waits_for_company(desk, group, groups):
                chosen.append(ids)
    return tuple(chosen)


def _groups(desk: Desk) -> list[list[Request]]:
    """Pending requests in the order of service. Of a grouped kind those whose nodes are up go together."""
    pending = [r for r in desk.seen.image.requests.pending() if OPERATIONS[r.kind].states]
    pending.sort(key=lambda r: (OPERATIONS[r.kind].priority, r.submitted_epoch))
    groups: list[list[Request]] = []
    for request in pending:
        last = groups[-1] if groups else []
        together = (
            OPERATIONS[request.kind].grouped
            and bool(last)
            and last[0].kind is request.kind
            and len(last) < desk.limits.group
            and desk.is_up(request.node_id)
            and desk.is_up(last[0].node_id)
        )
        if together:
            last.append(request)
        else:
            groups.append([request])
    return groups


def _waits_for_company(desk: Desk, group: list[Request], groups: list[list[Request]]) -> bool:
    """A node that has just asked for the same and was not heard yet may go with them, as one transition."""
    kind, now_s = group[0].kind, desk.seen.now_s
    if not OPERATIONS[kind].grouped or len(group) >= desk.limits.group:
        return False
    others = (r for each in groups if each is not group for r in each if r.kind is kind)
    silent = [r for r in others if not desk.is_up(r.node_id)]
    if all(now_s - desk.waiting_since(r.request_id) >= desk.limits.company_s for r in silent):
        return False
    blockers = desk.down([r.node_id for r in silent])
    desk.wait(f"others that {kind} too", blockers, tuple(r.request_id for r in group))
    return True


def _startable(desk: Desk, group: list[Request]) -> bool:
    """Every node that it needs is up (seed 000); a request whose node is dead for good is rejected."""
    if any(not_excluded(desk, request) for request in group):
        return False
    needed = OPERATIONS[group[0].kind].needed(desk.seen.image, group)
    ids = tuple(request.request_id for request in group)
    down = desk.down(needed) or desk.down(_quorums_need(desk, group))
    if not down:
        for request_id in ids:
            desk.waits_no_more(request_id)
        return True
    dead = desk.dead([b.node_id for b in down], min(desk.waiting_since(i) for i in ids))
    if dead:
        names = " ".join(dead)
        why = (
            f"Canceled. Dead nodes: {', '.join(dead)}. Start them; or if they are dead for good,"
            f" `stele exclude {names}`, `stele remove` them one by one, or replace them."
        )
        for request_id in ids:
            desk.submit(RejectRequest(desk.seen.term, request_id, why), (request_id,))
    else:
        desk.wait(f"dead nodes, to start {group[0].kind}", down, ids)
    return False


def _quorums_need(desk: Desk, group: list[Request]) -> list[str]:
    """Nodes that are down and without which its barrier could not be passed: it would hold up everybody."""
    image = desk.seen.image
    down = {b.node_id for b in desk.down([*image.membership.taking_part()])} - declared_dead(group)
    planned = plan_group(image, group).transition if down else None
    if planned is None:
        return []
    touched = OPERATIONS[planned.kind].touched(image, planned)
    excluded = image.membership.excluded() | declared_dead(group)
    short = [r & down for r in touched if not is_covered(r, r - down - excluded, excluded)]
    return sorted({node_id for nodes in short for node_id in nodes})


def _has_room(desk: Desk, group: list[Request], earlier: list[Locks]) -> bool:
    """Beside what is open and every ``earlier`` group, chosen now or waiting. It is the next of these."""
    planned = plan_group(desk.seen.image, group)
    ids = tuple(request.request_id for request in group)
    if planned.transition is not None:
        mine = needs(desk.seen.image, planned.transition)
        meets = any(locks_meet(mine, theirs) for theirs in earlier)
        earlier.append(mine)
        if planned.refusal is None and not meets:
            return True
    elif planned.refusal is not None:
        reject(desk, ids, planned.refusal)
        return False
    _say_why(desk, ids, planned.refusal)
    return False


def _say_why(desk: Desk, ids: tuple[str, ...], refusal: Rejection | None) -> None:
    why = "earlier requests that need the same ranges" if refusal is None else refusal.message
    desk.wait(f"room: {why}", tuple[Blocker, ...](), ids)
