"""Nodes that a request declares dead: they are excluded once they have been silent.

This needs no round, since the one that is under way may wait for these very nodes. Who is heard is not
excluded: then the request is rejected. So it is when it could not be carried out, as far as that is known,
since exclusion is for good, also when nothing comes of the request.
"""

from collections.abc import Set
from typing import Final

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience
from stele.coordinator.startable import startable
from stele.domain.acks import Blocker
from stele.domain.commands import Rejection
from stele.domain.names import NodeState
from stele.domain.requests.commands import RejectRequest
from stele.domain.requests.facts import Request
from stele.domain.topology.commands import ExcludeDead
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.exclude import check_exclusion
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import WaitKind

AWAY_S: Final = 2.0
"""A coordinator looks several times a second."""
HEARTBEAT_TIMEOUT: Final = "STELE_HEARTBEAT_TIMEOUT_S"
LISTENING: Final = " down"
"""Behind a request's id: since when its dead nodes have been listened for."""
COMPANY: Final = " company"
"""Behind a request's id: since when it could be carried out only together with others."""


def exclude(desk: Desk) -> None:
    """Exclude whom pending requests declare dead, where that lets them do what they are for."""
    if desk.seen.now_s - desk.memory.looked_at_s > AWAY_S:
        _listen_anew(desk)
    desk.remember(looked_at_s=desk.seen.now_s)
    for request in desk.seen.image.requests.pending():
        declared, ids = not_excluded(desk, request), (request.request_id,)
        refusal = check_exclusion(desk.seen.image, request, {*declared})
        if refusal is not None:
            reject(desk, ids, refusal)
        elif _is_ready(desk, request, declared):
            desk.submit(ExcludeDead(desk.seen.term, request.request_id), ids)


def _is_ready(desk: Desk, request: Request, declared: list[str]) -> bool:
    """Its nodes are down and it can do what it is for; or that was to exclude them, which is done."""
    excludes_only = OPERATIONS[request.kind].excludes_only
    if not declared:
        return excludes_only
    if not _are_down(desk, request, declared):
        return False
    return excludes_only or (_can_be_planned(desk, request) and _can_start(desk, request))


def _listen_anew(desk: Desk) -> None:
    """A process that slept has not read the acks of that time: all seem to have been silent."""
    listening = [wait for wait in desk.memory.waits if wait.endswith(LISTENING)]
    for wait in listening:
        desk.waits_no_more(wait)


def not_excluded(desk: Desk, request: Request) -> list[str]:
    """Whom the request declares dead, and who is not excluded yet."""
    nodes = desk.seen.image.membership.nodes
    return [
        n
        for n in request.dead_nodes
        if nodes[n].state is not NodeState.LEFT and not nodes[n].excluded
    ]


def reject(desk: Desk, request_ids: tuple[str, ...], refusal: Rejection) -> None:
    """End pending requests, with what to do."""
    for request_id in request_ids:
        why = f"{refusal.message} {refusal.hint}"
        desk.submit(RejectRequest(desk.seen.term, request_id, why), (request_id,))


def reject_unplanned(desk: Desk, request: Request, refusal: Rejection) -> None:
    """Reject what cannot be planned; but what is about dead nodes only once nothing under way does without
    one, and there was time to ask for what would go together with it.
    """
    ids = (request.request_id,)
    asked_s = desk.waiting_since(f"{request.request_id}{COMPANY}")
    excluded = desk.seen.image.membership.excluded()
    going = [t for t in desk.seen.image.topology.open() if _does_without_dead(t, excluded)]
    if request.dead_nodes and going:
        first = going[0].transition_id
        what = f"room: {refusal.message} Request {first} is first."
        desk.wait(WaitKind.ROOM, what, requests=ids, other_request=first)
    elif _removes(request) and desk.seen.now_s - asked_s < desk.limits.company_s:
        patience = Patience(asked_s, desk.limits.company_s, "", "the request is rejected")
        desk.wait(WaitKind.COMPANY, f"others to {request.kind} too", (), ids, patience)
    else:
        reject(desk, ids, refusal)


def _removes(request: Request) -> bool:
    operation = OPERATIONS[request.kind]
    return operation.grouped and not operation.subjects_work


def _does_without_dead(transition: Transition, excluded: Set[str]) -> bool:
    """It replaces or removes a node, or takes tablets from one that is excluded."""
    if OPERATIONS[transition.kind].subjects_work:
        return any(subject.replaced_id for subject in transition.subjects)
    rows = (row for plan in transition.plans.values() for row in plan.rows)
    return bool(transition.subjects) or any(not excluded.isdisjoint(row.leaving()) for row in rows)


def _are_down(desk: Desk, request: Request, declared: list[str]) -> bool:
    """Silent for long enough to a coordinator that hears others all the while.

    Who hears nobody, since it has just begun to listen or is cut off, begins to listen anew once it does.
    """
    ids, limits = (request.request_id,), desk.limits
    others = [n for n in desk.seen.image.membership.taking_part() if n not in declared]
    if others and not any(map(desk.is_up, others)):
        _wait_for_anybody(desk, request, others)
        return False
    desk.waits_no_more(f"{request.request_id} others")
    since_s = desk.waiting_since(f"{request.request_id}{LISTENING}")
    waited_s = desk.seen.now_s - since_s
    up = [node_id for node_id in declared if desk.is_up(node_id)]
    if not up and waited_s > limits.down_after_s:
        return True
    if not up:
        then = "it counts as dead, and is excluded"
        patience = Patience(since_s, limits.down_after_s, HEARTBEAT_TIMEOUT, then)
        desk.wait(WaitKind.SILENCE, f"a sign of life of {', '.join(declared)}", (), ids, patience)
    elif waited_s <= 2 * limits.down_after_s:
        blockers = tuple(Blocker(n, "is up", desk.silent_for_s(n)) for n in up)
        then = "the request is rejected"
        twice = f"2 x {HEARTBEAT_TIMEOUT}"
        patience = Patience(since_s, 2 * limits.down_after_s, twice, then)
        desk.wait(WaitKind.LIVES, f"{', '.join(up)} to be down", blockers, ids, patience)
    else:
        text = f"{', '.join(up)} is up: it was heard {desk.silent_for_s(up[0]):.1f} s ago."
        hint = (
            "Stop it first if it cannot be saved; a node that works leaves by `stele decommission`."
        )
        reject(desk, ids, Rejection("is_up", text, hint))
    return False


def _wait_for_anybody(desk: Desk, request: Request, others: list[str]) -> None:
    ids = (request.request_id,)
    desk.waits_no_more(f"{request.request_id}{LISTENING}")
    since_s = desk.waiting_since(f"{request.request_id} others")
    if desk.seen.now_s - since_s <= desk.limits.dead_node_patience_s:
        what = f"a sign of life of {', '.join(others)}"
        patience = desk.patience_with_dead(since_s)
        desk.wait(WaitKind.MEMBERS, what, desk.down(others), ids, patience)
    else:
        text = f"Nobody is heard: {', '.join(others)} neither."
        hint = "Start a node that is not dead for good."
        reject(desk, ids, Rejection("nobody_is_up", text, hint))


def _can_start(desk: Desk, request: Request) -> bool:
    """Whom else it needs is up. Those whom other requests declare dead are left to these."""
    return startable(desk, [request], declared_dead(desk.seen.image.requests.pending()))


def _can_be_planned(desk: Desk, request: Request) -> bool:
    """With all that may go together with it; or by itself, when nobody of these is down."""
    image = desk.seen.image
    company = [r for r in image.requests.pending() if r.kind is request.kind]
    planned = desk.planned(company[: desk.limits.together(request.kind)])
    others = [n for r in company if r is not request for n in r.dead_nodes]
    if planned.transition is None and not desk.down(others):
        planned = desk.planned([request])
    if planned.transition is None and planned.refusal is not None:
        reject_unplanned(desk, request, planned.refusal)
    return planned.transition is not None
