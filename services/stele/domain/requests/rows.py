"""The rows of requests that other domains write: a new one, and its end."""

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import BALANCER, UNFINISHED, RequestKind, RequestStatus
from stele.domain.requests.facts import Request, RequestChanged, RequestForgotten
from stele.domain.requests.limits import FINISHED, HISTORY_S


def new_request(
    context: Context,
    kind: RequestKind,
    *,
    node_id: str = "",
    keyspace_id: str = "",
    replication: dict[str, int] | None = None,
    racks: dict[str, tuple[str, ...]] | None = None,
    removes_node: bool = False,
    replaced_id: str = "",
    dead_nodes: tuple[str, ...] = (),
    force: bool = False,
    tokens: tuple[int, ...] = (),
    source_dc: str = "",
    features: tuple[str, ...] = (),
    table_id: str = "",
    tablet_count: int = 0,
    tablet_count_before: int = 0,
    submitted_ms: int = 0,
    repair_nodes: tuple[str, ...] = (),
    repair_dcs: tuple[str, ...] = (),
    tag: str = "",
    expire_s: int = 0,
    restore_id: str = "",
    archive_replication: str = "",
) -> RequestChanged:
    """The row of a request that this command asks for."""
    return RequestChanged(
        Request(
            request_id=context.envelope.request_id,
            kind=kind,
            node_id=node_id,
            keyspace_id=keyspace_id,
            replication=replication or {},
            racks=racks or {},
            removes_node=removes_node,
            replaced_id=replaced_id,
            dead_nodes=dead_nodes,
            force=force,
            tokens=tokens,
            source_dc=source_dc,
            features=features,
            table_id=table_id,
            tablet_count=tablet_count,
            tablet_count_before=tablet_count_before,
            submitted_ms=submitted_ms,
            repair_nodes=repair_nodes,
            repair_dcs=repair_dcs,
            tag=tag,
            expire_s=expire_s,
            restore_id=restore_id,
            archive_replication=archive_replication,
            status=RequestStatus.PENDING,
            actor=context.envelope.actor,
            reason=context.envelope.reason,
            submitted_epoch=context.epoch,
            submitted_at_ms=context.at_ms,
        )
    )


def started(context: Context, request: Request) -> Request:
    """Its row from when it runs."""
    return msgspec.structs.replace(
        request,
        status=RequestStatus.RUNNING,
        started_epoch=context.epoch,
        started_at_ms=context.at_ms,
    )


def ended(
    context: Context, image: Image, request: Request, status: RequestStatus, error: str
) -> tuple[RequestChanged | RequestForgotten, ...]:
    """The last row of a request of ``image``, and the oldest finished ones that leave the image for it.

    A move of the balancer's leaves at once, however it has ended: its many moves would crowd others out, and
    the log has them all.
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
    """Finished requests that leave the image when one more ends, the oldest first: those that are too old by
    the times of the log, and those that are too many.

    The log's time never goes back. A writer whose clock is a month ahead makes it forget a month early.
    """
    requests, settings = image.requests, image.features.settings
    since_ms = now_ms - 1000 * HISTORY_S.of(settings)
    ended = (r.ended_ms for r in requests.requests.values() if r.finished_epoch)
    old = sum(ended_ms < since_ms for ended_ms in ended)
    many = len(requests.requests) - len(requests.open) + 1 - FINISHED.of(settings)
    return requests.finished_first(max(old, many, 0))


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
