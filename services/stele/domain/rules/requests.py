"""The rules of requests that all operations share: rows, refusals and requests for tablets."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from stele.domain.base import Rejected, Rejection
from stele.domain.context import Context, Decision, unknown_request
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.requests import (
    FINISHED,
    HISTORY_S,
    Request,
    RequestChanged,
    RequestForgotten,
)
from stele.domain.names import BALANCER, UNFINISHED, RequestKind, RequestStatus
from stele.domain.tablets.maps import names_tablet

# Rows of requests that other domains write: a new request, and its end.


def new_request(context: Context, kind: RequestKind, **fields: Any) -> RequestChanged:
    """Return the row of a new pending request, with the id of this command.

    ``fields`` are those of ``Request`` that the kind uses.
    """
    return RequestChanged(
        Request(
            request_id=context.envelope.request_id,
            kind=kind,
            status=RequestStatus.PENDING,
            actor=context.envelope.actor,
            reason=context.envelope.reason,
            submitted_epoch=context.epoch,
            submitted_at_ms=context.at_ms,
            **fields,
        )
    )


def started(context: Context, request: Request) -> Request:
    """Return the request's row when it starts to run."""
    return msgspec.structs.replace(
        request,
        status=RequestStatus.RUNNING,
        started_epoch=context.epoch,
        started_at_ms=context.at_ms,
    )


def ended(
    context: Context, image: Image, request: Request, status: RequestStatus, error: str
) -> tuple[RequestChanged | RequestForgotten, ...]:
    """Return the last row of a request, and the forgetting of the oldest finished ones.

    A move by the balancer is forgotten at once, however it ended. Its many moves would displace
    other requests, and the log has them all.
    """
    row = msgspec.structs.replace(
        request,
        status=status,
        error=error,
        awaited_nodes=(),
        finished_epoch=context.epoch,
        finished_at_ms=context.at_ms,
        ended_ms=context.log_ms,
    )
    own = request.actor == BALANCER and request.moves_replica
    forgotten = [row] if own else _surplus(image, context.log_ms)
    return RequestChanged(row), *(
        RequestForgotten(old.request_id, old.finished_epoch, old.ended_ms) for old in forgotten
    )


def _surplus(image: Image, now_ms: int) -> list[Request]:
    """Return the finished requests that leave the image when one more ends, the oldest first.

    Those are the requests that are too old by the log's time, and those above the limit. The log's
    time never goes back. A writer whose clock is a month ahead makes the log forget a month early.
    """
    requests, settings = image.requests, image.features.settings
    since_ms = now_ms - 1000 * HISTORY_S.of(settings)
    ended = (r.ended_ms for r in requests.requests.values() if r.finished_epoch)
    old = sum(ended_ms < since_ms for ended_ms in ended)
    # The request that ends now counts too.
    many = len(requests.requests) - len(requests.unfinished_by_id) + 1 - FINISHED.of(settings)
    return requests.finished_first(max(old, many, 0))


def check_no_request(image: Image, node: Node) -> Rejection | None:
    """Reject a node that has an unfinished request. A node has one request at a time."""
    current = image.request(node.request_id)
    if current is not None and current.replaced_id == node.node_id:
        # A replaced node keeps the replacement as its request, and its removal may be open.
        own = (r for r in image.requests.unfinished_by_id.values() if r.node_id == node.node_id)
        current = next(own, current)
    if current is None or current.status not in UNFINISHED:
        return None
    return Rejection(
        "request_in_progress",
        f"Node '{node.node_id}' has the unfinished request {current.request_id} ({current.kind}).",
        "Wait until it is done, or cancel it.",
        {"request_id": current.request_id, "kind": current.kind},
    )


# Refusals that every command of the coordinator may receive.


def check_term(image: Image, term: int) -> Rejection | None:
    current = image.topology.coordinator
    if term == current.term:
        return None
    return Rejection(
        "stale_term",
        f"Term {term} is not the current term {current.term}, held by '{current.holder}'.",
        "A coordinator that reads this has been replaced and must stop.",
        {"term": str(current.term), "holder": current.holder},
    )


def request_in_term(image: Image, term: int, target: str) -> Request | Rejection:
    """Return the request for a step of the coordinator of ``term``, or a refusal."""
    request = image.request(target)
    if request is None:
        return unknown_request(target)
    return check_term(image, term) or request


def check_fenced(image: Image) -> Rejection | None:
    topology = image.topology
    if topology.settled():
        return None
    return Rejection(
        "not_fenced",
        f"Version {topology.version} is in use, but the fence is at {topology.fence_version}.",
        "Wait for the barrier and advance the fence first.",
        {"version": str(topology.version), "fence_version": str(topology.fence_version)},
    )


def overtaken(image: Image, why: str = "") -> Rejection:
    topology = image.topology
    return Rejection(
        "overtaken",
        why or "The topology has moved on since this step was planned.",
        "Read the newest state and plan again.",
        {"version": str(topology.version), "fence_version": str(topology.fence_version)},
    )


# Commands about several tablets: each tablet gets a separate request, and possible ones are
# queued.


T = TypeVar("T")
Tablet = tuple[str, int]
"""The table's id, and the tablet's number."""

MAX_WHY_CHARS: Final = 1024


def open_tablets(image: Image, which: Callable[[Request], bool]) -> set[Tablet]:
    """Return the tablets of matching requests that are open or pending."""
    return {
        (request.table_id, request.tablet)
        for request in image.requests.unfinished_by_id.values()
        if which(request) and names_tablet(image, request)
    }


def each_once(
    asked: Iterable[T],
    request_for: Callable[[T], RequestChanged],
    taken: set[Tablet],
    nothing: Rejection,
) -> Decision:
    """Return the possible requests; each adds its tablet to ``taken``.

    ``request_for`` raises Rejected for one that is not possible. If none is possible, return the
    first refusal, or ``nothing``.
    """
    found, refusals = list[RequestChanged](), list[Rejection]()
    for each in asked:
        try:
            made = request_for(each)
        except Rejected as rejected:
            refusals.append(rejected.rejection)
            continue
        # A second entry for this tablet in the same command is refused.
        taken.add((made.request.table_id, made.request.tablet))
        found.append(made)
    return tuple(found) or (refusals[0] if refusals else nothing)


def of_tablet(
    context: Context, asked: Request, tablet: int, why: str, *, alone: bool
) -> RequestChanged:
    """Return the request for one tablet.

    It has the command's id if it is ``alone``, and ``why`` as its reason unless that is empty.
    """
    id_ = asked.request_id if alone else context.unique(f"{asked.table_id}/{tablet}")
    reason = why[:MAX_WHY_CHARS] or asked.reason
    return RequestChanged(
        msgspec.structs.replace(asked, request_id=id_, tablet=tablet, reason=reason)
    )
