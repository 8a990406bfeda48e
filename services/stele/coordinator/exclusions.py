"""Exclusion of the nodes that a request declares dead, after they have been silent.

Exclusion needs no round, because the present round may wait for these very nodes. If a node still
sends acks, it is not excluded and the request is rejected. The request is also rejected if it is
known to be impossible: exclusion is permanent, even if the request fails later (docs/design.md,
rule 28).
"""

from typing import Final

from stele.coordinator.actions import (
    PASSED,
    Action,
    Check,
    CommandAction,
    TimerStart,
    TimerStop,
    failed,
    reject,
)
from stele.coordinator.context import StepContext
from stele.coordinator.model import Patience, Wait
from stele.coordinator.openings import not_excluded, reject_unplanned, startable
from stele.domain.commands import Rejection
from stele.domain.model.requests import Request
from stele.domain.model.topology import ExcludeDead
from stele.domain.names import WaitKind
from stele.domain.topology.barriers import Blocker
from stele.domain.topology.live_copies import check_loss
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.leave import check_exclusion
from stele.domain.topology.operations.table import OPERATIONS

HEARTBEAT_TIMEOUT: Final = "STELE_HEARTBEAT_TIMEOUT_S"
_LISTENING: Final = " down"
"""Suffix of a request's id: the timer of the observation of its dead nodes."""


def exclude(context: StepContext) -> list[Action]:
    """Exclude the nodes that pending requests declare dead, if the requests can then be carried
    out.
    """
    actions = list[Action]()
    for request in context.image.requests.pending():
        declared, ids = not_excluded(context.image, request), (request.request_id,)
        refusal = check_exclusion(context.image, request, {*declared})
        if refusal is None:
            ready = _is_ready(context, request, declared)
            actions += ready.actions
            if not ready.passed:
                continue
            # Exclusion is permanent, so the loss of writes is checked before it.
            refusal = check_loss(context.image, request, {*declared})
        if refusal is None:
            actions.append(CommandAction(ExcludeDead(context.term, request.request_id), ids))
        else:
            actions += reject(context, ids, refusal)
    return actions


def _is_ready(context: StepContext, request: Request, declared: list[str]) -> Check:
    """Check that its nodes are down and the request can then be carried out.

    A request that only excludes nodes is also ready when they are excluded already.
    """
    excludes_only = OPERATIONS[request.kind].excludes_only
    if not declared:
        return Check(excludes_only)
    down = _are_down(context, request, declared)
    if not down.passed or excludes_only:
        return down
    planned = _can_be_planned(context, request)
    actions = [*down.actions, *planned.actions]
    if not planned.passed:
        return failed(*actions)
    # The other nodes that it needs are up. Nodes that other requests declare dead are left to
    # those requests.
    start = startable(context, [request], declared_dead(context.image.requests.pending()))
    return Check(start.passed, [*actions, *start.actions])


def _are_down(context: StepContext, request: Request, declared: list[str]) -> Check:
    """Check that the nodes have been silent for long enough while other nodes sent acks.

    A coordinator that receives no acks at all has just started or is cut off. Its observation
    starts again with the first ack.
    """
    ids, down_after_s = (request.request_id,), context.limits.down_after_s
    timer = f"{request.request_id}{_LISTENING}"
    others = [n for n in context.image.membership.taking_part() if n not in declared]
    # Without acks of any node the coordinator itself may be cut off, so silence proves nothing.
    if others and not any(map(context.is_up, others)):
        what = f"a sign of life of {', '.join(others)}"
        return failed(TimerStop(timer), Wait(WaitKind.MEMBERS, what, context.down(others), ids))
    since_s, start = context.timer_since_s(timer), TimerStart(timer)
    waited_s = context.seen.now_s - since_s
    up = [node_id for node_id in declared if context.is_up(node_id)]
    if not up and waited_s > down_after_s:
        return Check(True, [start])
    if not up:
        then = "it counts as dead, and is excluded"
        patience = Patience(since_s, down_after_s, HEARTBEAT_TIMEOUT, then)
        what = f"a sign of life of {', '.join(declared)}"
        return failed(start, Wait(WaitKind.SILENCE, what, (), ids, patience))
    if waited_s <= 2 * down_after_s:
        blockers = tuple(Blocker(n, "is up", context.silent_for_s(n)) for n in up)
        twice, then = f"2 x {HEARTBEAT_TIMEOUT}", "the request is rejected"
        patience = Patience(since_s, 2 * down_after_s, twice, then)
        what = f"{', '.join(up)} to be down"
        return failed(start, Wait(WaitKind.LIVES, what, blockers, ids, patience))
    text = f"{', '.join(up)} is up: it was heard {context.silent_for_s(up[0]):.1f} s ago."
    hint = (
        "A node that works leaves by `stele decommission`. To exclude it, first stop it for good."
    )
    return failed(start, *reject(context, ids, Rejection("is_up", text, hint)))


def _can_be_planned(context: StepContext, request: Request) -> Check:
    """Check that it has a plan with all requests that may go together with it.

    If none of their nodes is down, a plan for this request alone suffices.
    """
    company = [r for r in context.image.requests.pending() if r.kind is request.kind]
    planned = context.planned(company[: context.limits.together(request.kind)])
    others = [n for r in company if r is not request for n in r.dead_nodes]
    # A request alone counts only if the others' nodes could take over its ranges.
    if planned.transition is None and not context.down(others):
        planned = context.planned([request])
    if planned.transition is not None:
        return PASSED
    if planned.refusal is None:
        return failed()
    return failed(*reject_unplanned(context, request, planned.refusal))
