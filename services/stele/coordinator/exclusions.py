"""Exclusion of the nodes that a request declares dead, after they have been silent.

Exclusion needs no round, because the present round may wait for these very nodes. If a node still
sends acks, it is not excluded and the request is rejected. The request is also rejected if it is
known to be impossible: exclusion is permanent, even if the request fails later (docs/design.md,
rule 28).
"""

from collections.abc import Set
from typing import Final

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience
from stele.coordinator.startable import startable
from stele.domain.acks import Blocker
from stele.domain.commands import Rejection
from stele.domain.names import NodeState
from stele.domain.requests.model import RejectRequest, Request
from stele.domain.topology.commands import ExcludeDead
from stele.domain.topology.facts import Transition
from stele.domain.topology.live_copies import check_loss
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.exclude import check_exclusion
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.waits import WaitKind

HEARTBEAT_TIMEOUT: Final = "STELE_HEARTBEAT_TIMEOUT_S"
LISTENING: Final = " down"
"""Suffix of a request's id: the time since which its dead nodes have been observed."""
COMPANY: Final = " company"
"""Suffix of a request's id: the time since which it needs other requests beside it."""


def exclude(desk: Desk) -> None:
    """Exclude the nodes that pending requests declare dead, if the requests can then be carried
    out.
    """
    for request in desk.seen.image.requests.pending():
        declared, ids = not_excluded(desk, request), (request.request_id,)
        refusal = check_exclusion(desk.seen.image, request, {*declared})
        if refusal is not None:
            reject(desk, ids, refusal)
        elif _is_ready(desk, request, declared):
            # Exclusion is permanent, so the loss of writes is checked before it.
            lost = check_loss(desk.seen.image, request, {*declared})
            if lost is not None:
                reject(desk, ids, lost)
            else:
                desk.submit(ExcludeDead(desk.seen.term, request.request_id), ids)


def _is_ready(desk: Desk, request: Request, declared: list[str]) -> bool:
    """Return whether its nodes are down and the request can then be carried out.

    A request that only excludes nodes is also ready when they are excluded already.
    """
    excludes_only = OPERATIONS[request.kind].excludes_only
    if not declared:
        return excludes_only
    if not _are_down(desk, request, declared):
        return False
    return excludes_only or (_can_be_planned(desk, request) and _can_start(desk, request))


def not_excluded(desk: Desk, request: Request) -> list[str]:
    """Return the nodes that the request declares dead and that are not excluded yet."""
    nodes = desk.seen.image.membership.nodes
    return [
        n
        for n in request.dead_nodes
        if nodes[n].state is not NodeState.LEFT and not nodes[n].excluded
    ]


def reject(desk: Desk, request_ids: tuple[str, ...], refusal: Rejection) -> None:
    """End pending requests, with advice to the user."""
    for request_id in request_ids:
        why = f"{refusal.message} {refusal.hint}"
        desk.submit(RejectRequest(desk.seen.term, request_id, why), (request_id,))


def reject_unplanned(desk: Desk, request: Request, refusal: Rejection) -> None:
    """Reject a request that cannot be planned.

    A request about dead nodes is rejected only after two waits. Open transitions without a dead
    node must end, and requests that could be planned with it get time to arrive.
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
    """Return whether it replaces or removes a node, or moves tablets from an excluded node."""
    if OPERATIONS[transition.kind].subjects_work:
        return any(subject.replaced_id for subject in transition.subjects)
    rows = (row for plan in transition.plans.values() for row in plan.rows)
    return bool(transition.subjects) or any(not excluded.isdisjoint(row.leaving()) for row in rows)


def _are_down(desk: Desk, request: Request, declared: list[str]) -> bool:
    """Return whether the nodes have been silent for long enough while other nodes sent acks.

    A coordinator that receives no acks at all has just started or is cut off. Its observation
    starts again with the first ack.
    """
    ids, limits = (request.request_id,), desk.limits
    others = [n for n in desk.seen.image.membership.taking_part() if n not in declared]
    # Without acks of any node the coordinator itself may be cut off, so silence proves nothing.
    if others and not any(map(desk.is_up, others)):
        _wait_for_anybody(desk, request, others)
        return False
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
        hint = "A node that works leaves by `stele decommission`. To exclude it, first stop it for good."
        reject(desk, ids, Rejection("is_up", text, hint))
    return False


def _wait_for_anybody(desk: Desk, request: Request, others: list[str]) -> None:
    ids = (request.request_id,)
    desk.waits_no_more(f"{request.request_id}{LISTENING}")
    what = f"a sign of life of {', '.join(others)}"
    desk.wait(WaitKind.MEMBERS, what, desk.down(others), ids)


def _can_start(desk: Desk, request: Request) -> bool:
    """Return whether the other nodes that it needs are up.

    Nodes that other requests declare dead are left to those requests.
    """
    return startable(desk, [request], declared_dead(desk.seen.image.requests.pending()))


def _can_be_planned(desk: Desk, request: Request) -> bool:
    """Return whether it has a plan with all requests that may go together with it.

    If none of their nodes is down, a plan for this request alone suffices.
    """
    image = desk.seen.image
    company = [r for r in image.requests.pending() if r.kind is request.kind]
    planned = desk.planned(company[: desk.limits.together(request.kind)])
    others = [n for r in company if r is not request for n in r.dead_nodes]
    # A request alone counts only if the others' nodes could take over its ranges.
    if planned.transition is None and not desk.down(others):
        planned = desk.planned([request])
    if planned.transition is None and planned.refusal is not None:
        reject_unplanned(desk, request, planned.refusal)
    return planned.transition is not None
