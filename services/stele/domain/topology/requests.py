"""The rules of topology requests: cancel, reject, mark and end, folds and views."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from immutables import Map

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, unknown_request
from stele.domain.facts import AnyFact
from stele.domain.model.membership import NodeChanged
from stele.domain.model.requests import (
    Cancel,
    RejectRequest,
    Request,
    RequestChanged,
    RequestForgotten,
    RequestsFact,
    RequestsImage,
)
from stele.domain.model.transitions import TransitionMarked
from stele.domain.names import UNFINISHED, RequestStatus
from stele.domain.registry_entry import Domain, Filter
from stele.domain.rules.requests import ended, request_in_term
from stele.domain.tables import Json, sorted_values
from stele.domain.topology.operations.table import OPERATIONS

replace = msgspec.structs.replace

# Marks: a marked transition goes back in the next Advance, never between rounds.
#
# See docs/design.md, rule 21.


def mark(context: Context, request: Request, why: str, *, cancelled: bool) -> Decision:
    """Mark the transition of a running request, if it is before its point of no return (I11).

    After reads have moved, a cancel is refused. The log does not contain which replicas are alive.
    A way back could lead to one that is down, and the replicas that serve the range would delete
    their data.

    The request alone is blamed. Others that share the transition become pending again after it was
    undone, unless they are cancelled too meanwhile.
    """
    transition = context.image.topology.of_request(request.request_id)
    if transition is None:
        return Rejection(
            "not_in_transition",
            f"Request {request.request_id} is not in transition.",
            "Read the newest state and try again.",
        )
    text = f"Rolled back: {why}"
    changed = RequestChanged(replace(request, error=text, cancelled=cancelled))
    # The way back has begun already; this request only joins the blamed ones.
    if transition.mark and request.request_id not in transition.blamed:
        blamed = (*transition.blamed, request.request_id)
        return changed, TransitionMarked(transition.transition_id, transition.mark, blamed)
    state = OPERATIONS[transition.kind].states[transition.state]
    if transition.mark or not state.can_be_cancelled:
        return Rejection(
            "past_point_of_no_return",
            f"Request {request.request_id} is in '{transition.state}' and cannot be undone"
            f"{': it is being rolled back already' if transition.mark else ''}.",
            "Let it finish; a node that has joined can leave afterwards, and nodes that are dead for"
            " good can be excluded.",
            {"transition_state": transition.state},
        )
    return changed, TransitionMarked(transition.transition_id, text, (request.request_id,))


# Decisions that cancel, reject and end requests. The coordinator carries requests out.


def cancel(context: Context, command: Cancel) -> Decision:
    """Cancel a request that has not passed its point of no return.

    - A pending request, or one with nothing to undo, ends at once.
    - A running request before the point of no return is marked to go back.
    - A request after it is refused.
    """
    request = context.image.request(command.target)
    if request is None:
        return unknown_request(command.target)
    if request.status not in UNFINISHED:
        return Rejection(
            "already_finished",
            f"Request {request.request_id} is {request.status}; it ended at epoch {request.finished_epoch}.",
            "There is nothing left to cancel.",
            {"status": request.status, "epoch": str(request.finished_epoch)},
        )
    why = f"cancelled by {context.envelope.actor or 'unknown'}"
    if context.envelope.reason:
        why = f"{why}: {context.envelope.reason}"
    served = OPERATIONS[request.kind].served
    # The request has changed no ranges, so it ends here without a way back.
    if request.status is RequestStatus.PENDING or (served and not served.goes_back):
        # Requests made for this one must not outlive it: pending ones end, running ones are marked
        # to go back.
        child_requests = [*OPERATIONS[request.kind].child_requests(context.image, request)]
        pending = [other for other in child_requests if other.status is RequestStatus.PENDING]
        running = (other for other in child_requests if other.status is not RequestStatus.PENDING)
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
    """End a pending request that cannot be carried out, with the reason.

    It must not wait for ever.
    """
    request = required(request_in_term(context.image, command.term, command.target))
    required(_check_pending(request))
    return end_untouched(context, (request,), RequestStatus.FAILED, command.why)


def end_untouched(
    context: Context, requests: Iterable[Request], status: RequestStatus, why: str
) -> tuple[AnyFact, ...]:
    """End requests that have changed no ranges.

    A node that wanted to join is rejected permanently.
    """
    changes, image = list[AnyFact](), context.image
    for request in requests:
        facts: list[AnyFact] = [*ended(context, image, request, status, why)]
        facts += OPERATIONS[request.kind].on_ended(image, request)
        node, rejected = image.node(request.node_id), OPERATIONS[request.kind].rejected
        if node is not None and rejected is not None:
            facts.append(NodeChanged(replace(node, state=rejected)))
        # The next one counts this one among the finished requests.
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


# The entry of topology requests in the registry.


def request_changed(image: RequestsImage, fact: RequestChanged) -> RequestsImage:
    request, unfinished = fact.request, image.unfinished_by_id
    if request.status in UNFINISHED:
        unfinished = unfinished.set(request.request_id, request)
    elif request.request_id in unfinished:
        unfinished = unfinished.delete(request.request_id)
    return RequestsImage(
        image.requests.set(request.request_id, request),
        unfinished,
        image.forgotten,
        _changes(image.changes, request),
    )


def _changes(known: Map[str, str], request: Request) -> Map[str, str]:
    of = request.keyspace_id
    if request.replication and request.status in UNFINISHED:
        return known.set(of, request.request_id)
    return known.delete(of) if known.get(of) == request.request_id else known


def request_forgotten(image: RequestsImage, fact: RequestForgotten) -> RequestsImage:
    """Fold the forgetting of a request. In a snapshot the request is missing already.

    The fact with the greatest ``finished_epoch`` shows since when the image has all requests.
    """
    requests, newest = image.requests, image.forgotten
    if fact.request_id in requests:
        requests = requests.delete(fact.request_id)
    if newest is None or fact.finished_epoch >= newest.finished_epoch:
        newest = fact
    return RequestsImage(requests, image.unfinished_by_id, newest, image.changes)


def to_facts(image: RequestsImage) -> Iterable[RequestsFact]:
    if image.forgotten is not None:
        yield image.forgotten
    for request in sorted_values(image.requests):
        yield RequestChanged(request)


def rows(image: RequestsImage) -> Json:
    return {"requests": image.requests}


FILTERS = {
    "status": Filter(
        "Only those that are so",
        lambda request, value: request.status == value,
        tuple(RequestStatus),
    ),
    "unfinished": Filter(
        "true: only those that are pending or running; false: only the others",
        lambda request, value: (request.status in UNFINISHED) == (value == "true"),
        ("true", "false"),
    ),
    "node": Filter(
        "Only those about this node, by its id", lambda request, value: value in request.nodes()
    ),
    "kind": Filter("Only those of this kind, such as join", lambda r, value: r.kind == value),
    "prefix": Filter(
        "Only those whose id begins so", lambda r, value: r.request_id.startswith(value)
    ),
}
"""Filters for a list of requests."""

DOMAIN = Domain(
    name="requests",
    empty=RequestsImage(),
    decide={Cancel: cancel, RejectRequest: reject_request},
    apply={RequestChanged: request_changed, RequestForgotten: request_forgotten},
    to_facts=to_facts,
    rows=rows,
    filters={"requests": FILTERS},
)
