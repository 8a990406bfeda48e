"""The rows of requests that other domains write: a new one, and its end."""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context
from stele.domain.features.counts import Count
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import UNFINISHED, RequestKind, RequestStatus
from stele.domain.requests.facts import Request, RequestChanged, RequestForgotten

FINISHED: Final = Count(
    name="finished_requests",
    counts="finished requests that are kept in the state",
    default=1000,
    most=100_000,
)


def new_request(
    context: Context,
    kind: RequestKind,
    *,
    node_id: str = "",
    keyspace_id: str = "",
    replication: dict[str, int] | None = None,
    removes_node: bool = False,
    replaced_id: str = "",
    dead_nodes: tuple[str, ...] = (),
    force: bool = False,
    tokens: tuple[int, ...] = (),
    source_dc: str = "",
    features: tuple[str, ...] = (),
) -> RequestChanged:
    """The row of a request that this command asks for."""
    return RequestChanged(
        Request(
            request_id=context.envelope.request_id,
            kind=kind,
            node_id=node_id,
            keyspace_id=keyspace_id,
            replication=replication or {},
            removes_node=removes_node,
            replaced_id=replaced_id,
            dead_nodes=dead_nodes,
            force=force,
            tokens=tokens,
            source_dc=source_dc,
            features=features,
            status=RequestStatus.PENDING,
            actor=context.envelope.actor,
            reason=context.envelope.reason,
            submitted_epoch=context.epoch,
            submitted_at_ms=context.at_ms,
        )
    )


def ended(
    context: Context, image: Image, request: Request, status: RequestStatus, error: str
) -> tuple[RequestChanged | RequestForgotten, ...]:
    """The last row of a request of ``image``, and the oldest finished ones that leave the image for it."""
    row = msgspec.structs.replace(
        request,
        status=status,
        error=error,
        awaited_nodes=(),
        finished_epoch=context.epoch,
        finished_at_ms=context.at_ms,
    )
    finished = image.requests.finished()
    kept = FINISHED.of(image.features.settings)
    surplus = finished[: max(0, len(finished) + 1 - kept)]
    return RequestChanged(row), *(RequestForgotten(old.request_id) for old in surplus)


def check_no_request(image: Image, node: Node) -> Rejection | None:
    """One request per node."""
    current = image.request(node.request_id)
    if current is None or current.status not in UNFINISHED:
        return None
    return Rejection(
        "request_in_progress",
        f"Node '{node.node_id}' has the unfinished request {current.request_id} ({current.kind}).",
        "Wait until it is done, or cancel it.",
        {"request_id": current.request_id, "kind": current.kind},
    )
