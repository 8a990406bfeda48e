"""Selection of the pending requests that open now: by priority, then by age, with room for their
locks.

Requests of some kinds open in groups. A request without room queues, and later requests that
conflict queue behind it, so none starves (docs/design.md, rule 39).
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from stele.coordinator.desk import Desk
from stele.coordinator.exclusions import not_excluded, reject_unplanned
from stele.coordinator.knowledge import Patience, Prospect
from stele.coordinator.startable import prepared, startable
from stele.domain.commands import Rejection
from stele.domain.names import RequestKind
from stele.domain.requests.model import Request
from stele.domain.ring.ranges import FirstClaims
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import Locks
from stele.domain.topology.waits import WaitKind

MOST_AT_ONCE: Final = 128
"""Largest number of openings in a round. Each is planned beside all open transitions: a round of a
thousand would block the log for a second.
"""
_OTHERS: Final = " others that are silent"
"""Suffix of a request's id: the time since which its group has waited for other nodes."""


class _Queue:
    """The groups ahead in the order of service: their locked ranges, and the ranges that they need
    free.
    """

    def __init__(self) -> None:
        self._request_ids = list[str]()
        self._locks = defaultdict[str, FirstClaims](FirstClaims)
        self._needs = defaultdict[str, FirstClaims](FirstClaims)
        """Needs beyond a group's own locks."""

    def first_meeting(self, mine: Locks, want: Locks) -> str:
        """Return the first request that cannot be open beside a group with these locks and needs,
        or "".

        Neither group may lock a range that the other one needs free. Needs include the group's
        locks.
        """
        found = [*_first_claims(self._locks, want), *_first_claims(self._needs, mine)]
        return self._request_ids[min(found)] if found else ""

    def append(self, request_id: str, mine: Locks, want: Locks) -> None:
        place = len(self._request_ids)
        self._request_ids.append(request_id)
        for name, ranges in want.items():
            claims = self._locks if name in mine else self._needs
            claims[name].add(ranges, place)


def _first_claims(claims: Mapping[str, FirstClaims], asked: Locks) -> list[int]:
    found = (claims[name].first(ranges) for name, ranges in asked.items() if name in claims)
    return [place for place in found if place is not None]


def openings(desk: Desk) -> tuple[tuple[str, ...], ...]:
    """Return the groups of request ids to open with the next Advance."""
    chosen: list[tuple[str, ...]] = []
    earlier = _Queue()
    groups = _groups(desk)
    first_planned = dict[RequestKind, str]()
    for group in groups:
        # The remaining groups open in later rounds.
        if len(chosen) >= MOST_AT_ONCE:
            break
        before = first_planned.get(group[0].kind, "")
        if before:
            _say_why(desk, _ids(group), None, before)
            continue
        prospect = desk.prospect(group)
        planned = prospect.planned
        # A held request locks nothing while it waits, so it has no place in the queue.
        if planned.held:  # other requests carry it out, so it needs no node
            _say_why(desk, _ids(group), planned.refusal, "")
        elif startable(desk, group) and prepared(desk, group):
            with_room = _with_room(desk, group, prospect, earlier)
            # The groups behind this one choose their tokens on the ring that it leaves.
            if planned.transition is not None and _chooses_tokens(desk, group):
                first_planned[group[0].kind] = group[0].request_id
            if not _waits_for_company(desk, group, groups):
                chosen += with_room
    return tuple(chosen)


def _chooses_tokens(desk: Desk, group: list[Request]) -> bool:
    """Return whether the plan chooses tokens, which takes most of its time.

    Only the first group of such a kind that can start is planned in a call. The groups behind it
    wait for it.
    """
    operation, nodes = OPERATIONS[group[0].kind], desk.seen.image.membership.nodes
    chooses = operation.grouped and operation.subjects_work
    return chooses and any(not nodes[request.node_id].initial_tokens for request in group)


def _groups(desk: Desk) -> list[list[Request]]:
    """Return groups of pending requests whose dead nodes are excluded, in the order of service.

    Requests of a grouped kind share a group if their nodes can work, or need not work.
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
    """Return whether the group waits for a node that has just asked for the same and has sent no
    ack yet.

    That node may join the same transition. A group waits only once, however many more nodes ask
    meanwhile.
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


def _with_room(
    desk: Desk, group: list[Request], prospect: Prospect, earlier: _Queue
) -> list[tuple[str, ...]]:
    """Return the group's ids if it has room beside all open transitions and every ``earlier``
    group.

    The group then takes its place in ``earlier``, whether it opens or waits. Requests that cannot
    be planned together are planned one by one.
    """
    planned, ids = prospect.planned, _ids(group)
    if planned.held:
        _say_why(desk, ids, planned.refusal, "")
    elif planned.transition is not None:
        mine, want = prospect.locks, prospect.needs
        meets = earlier.first_meeting(mine, want)
        # A group without room is queued too: no later request may take its ranges.
        earlier.append(ids[0], mine, want)
        if planned.refusal is None and not meets:
            return [ids]
        _say_why(desk, ids, planned.refusal, meets)
    elif len(group) > 1:
        alone = ([request] for request in group)
        return [i for one in alone for i in _with_room(desk, one, desk.prospect(one), earlier)]
    elif planned.refusal is not None:
        reject_unplanned(desk, group[0], planned.refusal)
    return []


def _ids(group: list[Request]) -> tuple[str, ...]:
    return tuple(request.request_id for request in group)


def _say_why(desk: Desk, ids: tuple[str, ...], refusal: Rejection | None, earlier: str) -> None:
    why = f"request {earlier}, which needs the same ranges, comes first"
    if refusal is not None:
        why, earlier = refusal.message, refusal.details.get("request_id", earlier)
    desk.wait(WaitKind.ROOM, f"room: {why}", requests=ids, other_request=earlier)
