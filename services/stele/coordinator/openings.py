"""Which pending requests open now: by priority, grouped where the kind allows, with room for their locks.

What has no room queues, and what would conflict with it queues behind it, so nobody is overtaken for ever.
"""

from typing import Final

import msgspec

from stele.coordinator.desk import Desk
from stele.coordinator.exclusions import not_excluded, reject_unplanned
from stele.coordinator.knowledge import Patience
from stele.coordinator.startable import prepared, startable
from stele.domain.commands import Rejection
from stele.domain.requests.facts import Request
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import Locks, locks, locks_meet, needs
from stele.runtime.answers.coordinator import WaitKind

MOST_AT_ONCE: Final = 128
"""Each is planned beside all that is open: a round of a thousand would hold up the log for a second."""
_OTHERS: Final = " others that are not heard"
"""Behind a request's id: since when its group has waited for them."""


class _Queued(msgspec.Struct, frozen=True):
    """A group that comes before others: what it locks, and what must be free for it."""

    request_id: str
    locks: Locks
    needs: Locks

    def meets(self, mine: Locks, want: Locks) -> bool:
        """Whoever has ``mine`` to itself, and needs ``want`` to be free, cannot be open beside it."""
        return locks_meet(want, self.locks) or locks_meet(mine, self.needs)


def openings(desk: Desk) -> tuple[tuple[str, ...], ...]:
    """Groups of request ids to open with the next Advance."""
    chosen: list[tuple[str, ...]] = []
    earlier: list[_Queued] = []
    groups = _groups(desk)
    for group in groups:
        if len(chosen) >= MOST_AT_ONCE:
            break
        if startable(desk, group) and prepared(desk, group):
            with_room = _with_room(desk, group, earlier)
            if not _waits_for_company(desk, group, groups):
                chosen += with_room
    return tuple(chosen)


def _groups(desk: Desk) -> list[list[Request]]:
    """Pending requests whose dead nodes are excluded, in the order of service. Of a grouped kind those go
    together whose nodes can work, or need not.
    """
    pending = [
        request
        for request in desk.seen.image.requests.pending()
        if OPERATIONS[request.kind].states and not not_excluded(desk, request)
    ]
    pending.sort(key=lambda r: (OPERATIONS[r.kind].priority, r.submitted_epoch))
    groups: list[list[Request]] = []
    for request in pending:
        last = groups[-1] if groups else []
        operation = OPERATIONS[request.kind]
        together = (
            operation.grouped
            and bool(last)
            and last[0].kind is request.kind
            and len(last) < desk.limits.together(request.kind)
            and all(
                not operation.subjects_work or desk.is_up(r.node_id) for r in (request, last[0])
            )
        )
        if together:
            last.append(request)
        else:
            groups.append([request])
    return groups


def _waits_for_company(desk: Desk, group: list[Request], groups: list[list[Request]]) -> bool:
    """A node that has just asked for the same and was not heard yet may go with them, as one transition. They
    wait for such nodes once, however many more ask meanwhile.
    """
    kind, now_s = group[0].kind, desk.seen.now_s
    operation = OPERATIONS[kind]
    if not operation.grouped or not operation.subjects_work or len(group) >= desk.limits.group:
        return False
    others = (r for each in groups if each is not group for r in each if r.kind is kind)
    silent = [r for r in others if not desk.is_up(r.node_id)]
    if all(now_s - desk.waiting_since(r.request_id) >= desk.limits.company_s for r in silent):
        return False
    ids = tuple(r.request_id for r in group)
    since_s = desk.waiting_since(f"{ids[0]}{_OTHERS}")
    if now_s - since_s >= desk.limits.company_s:
        return False
    blockers = desk.down([r.node_id for r in silent])
    patience = Patience(since_s, desk.limits.company_s, "", "it starts without them")
    desk.wait(WaitKind.COMPANY, f"others that {kind} too", blockers, ids, patience)
    return True


def _with_room(desk: Desk, group: list[Request], earlier: list[_Queued]) -> list[tuple[str, ...]]:
    """The group's ids when it has room beside what is open and every ``earlier`` group, chosen now or waiting;
    it is the next of these. Requests that cannot be planned together are looked at one by one.
    """
    planned = desk.planned(group)
    ids = tuple(request.request_id for request in group)
    if planned.held:
        _say_why(desk, ids, planned.refusal, "")
    elif planned.transition is not None:
        mine = locks(planned.transition)
        want = needs(desk.seen.image, planned.transition)
        meets = next((other.request_id for other in earlier if other.meets(mine, want)), "")
        earlier.append(_Queued(ids[0], mine, want))
        if planned.refusal is None and not meets:
            return [ids]
        _say_why(desk, ids, planned.refusal, meets)
    elif len(group) > 1:
        return [ids for request in group for ids in _with_room(desk, [request], earlier)]
    elif planned.refusal is not None:
        reject_unplanned(desk, group[0], planned.refusal)
    return []


def _say_why(desk: Desk, ids: tuple[str, ...], refusal: Rejection | None, earlier: str) -> None:
    why = f"request {earlier}, which needs the same ranges, comes first"
    if refusal is not None:
        why, earlier = refusal.message, refusal.details.get("request_id", earlier)
    desk.wait(WaitKind.ROOM, f"room: {why}", requests=ids, other_request=earlier)
