"""Asking, cancelling and ending requests. The coordinator carries them out."""

from collections.abc import Iterable

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_request
from stele.domain.facts import AnyFact
from stele.domain.membership.facts import NodeChanged
from stele.domain.names import UNFINISHED, RequestStatus
from stele.domain.requests.commands import Cancel, RejectRequest
from stele.domain.requests.facts import Request, RequestChanged
from stele.domain.requests.rows import ended
from stele.domain.topology.guards import request_in_term
from stele.domain.topology.marks import mark
from stele.domain.topology.operations.table import OPERATIONS

replace = msgspec.structs.replace


def cancel(context: Context, command: Cancel) -> Decision:
    """Pending, or with nothing to undo: ended at once. Running before the point of no return: marked to go
    back. After it: refused.
    """
    request = context.image.request(command.target)
    if request is None:
        return unknown_request(command.target)
    if request.status not in UNFINISHED:
        return Rejection(
            "already_finished",
            f"Request {request.request_id} is {request.status} since epoch {request.finished_epoch}.",
            "There is nothing left to cancel.",
            {"status": request.status, "epoch": str(request.finished_epoch)},
        )
    why = f"cancelled by {context.envelope.actor or 'unknown'}"
    if context.envelope.reason:
        why = f"{why}: {context.envelope.reason}"
    served = OPERATIONS[request.kind].served
    if request.status is RequestStatus.PENDING or (served and not served.goes_back):
        made_for = [*OPERATIONS[request.kind].made_for(context.image, request)]
        pending = [other for other in made_for if other.status is RequestStatus.PENDING]
        running = (other for other in made_for if other.status is not RequestStatus.PENDING)
        begun = (mark(context, other, why, cancelled=True) for other in running)
        marked = [fact for facts in begun if not isinstance(facts, Rejection) for fact in facts]
        ends = end_untouched(context, (request, *pending), RequestStatus.CANCELLED, why)
        return (*ends, *marked)
    if served is None:
        return mark(context, request, why, cancelled=True)
    if request.cancelled:
        return Rejection(
            "already_cancelled",
            f"Request {request.request_id} is being undone: {request.error}.",
            "It ends when all is as it was: `stele why` says what it waits for.",
        )
    return (RequestChanged(replace(request, error=f"Rolled back: {why}", cancelled=True)),)


def reject_request(context: Context, command: RejectRequest) -> Decision:
    """A pending request that cannot be carried out ends with the reason; it never waits for ever."""
    request = request_in_term(context.image, command.term, command.target)
    if isinstance(request, Rejection):
        return request
    refused = _check_pending(request)
    if refused is not None:
        return refused
    return end_untouched(context, (request,), RequestStatus.FAILED, command.why)


def end_untouched(
    context: Context, requests: Iterable[Request], status: RequestStatus, why: str
) -> tuple[AnyFact, ...]:
    """End requests that have changed no ranges; a node that wanted to join is rejected for good."""
    changes, image = list[AnyFact](), context.image
    for request in requests:
        facts: list[AnyFact] = [*ended(context, image, request, status, why)]
        facts += OPERATIONS[request.kind].on_ended(image, request)
        node, rejected = image.node(request.node_id), OPERATIONS[request.kind].rejected
        if node is not None and rejected is not None:
            facts.append(NodeChanged(replace(node, state=rejected)))
        image = context.fold(image, tuple(facts))
        changes += facts
    return tuple(changes)


def _check_pending(request: Request) -> Rejection | None:
    if request.status is RequestStatus.PENDING:
        return None
    return Rejection(
        "not_pending",
        f"Request {request.request_id} is {request.status}.",
        "Only a pending request can be rejected; `stele cancel` undoes a running one.",
        {"status": request.status},
    )
