"""Work that nodes do on order, streaming and cleanup: ordered until it is done, failed when it never is."""

import msgspec

from stele.coordinator.knowledge import Limits, Memory, Observed, Sent
from stele.domain.acks import Blocker
from stele.domain.messages import Order
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.reports import Heard


class Work(msgspec.Struct, frozen=True):
    """How the work of some nodes stands: what to order now, who is not done, and why it has failed."""

    memory: Memory
    orders: tuple[Order, ...]
    unfinished: tuple[Blocker, ...]
    failure: str


def work(memory: Memory, seen: Observed, limits: Limits, kind: OrderKind, nodes: list[str]) -> Work:
    """Order the work of every node, again where it failed or was not heard of."""
    orders, unfinished, failure = list[Order](), list[Blocker](), ""
    for node_id in nodes:
        heard = heard_of(seen, kind, node_id)
        if heard is not None and heard.report.status is ReportStatus.SUCCESS:
            continue
        silent_s = seen.acks.silent_for_s(node_id, seen.now_s)
        unfinished.append(Blocker(node_id, _progress(kind, heard), silent_s))
        failure = failure or failure_of(memory, seen, limits, kind, node_id)
        memory, order = _order(memory, seen, limits, kind, node_id, heard)
        orders.extend(order)
    return Work(memory, tuple(orders), tuple(unfinished), failure)


def heard_of(seen: Observed, kind: OrderKind, node_id: str) -> Heard | None:
    """The node's newest report of the work of the present step."""
    topology = seen.image.topology.topology
    return seen.reports.by_work.get((node_id, kind, topology.version, topology.session))


def _progress(kind: OrderKind, heard: Heard | None) -> str:
    if heard is None:
        return f"has not answered the order to {kind}"
    report = heard.report
    if report.status is ReportStatus.FAILED:
        return f"failed to {kind}: {report.error}"
    return f"{kind}: {report.bytes_done} of {report.bytes_total} bytes"


def failure_of(
    memory: Memory, seen: Observed, limits: Limits, kind: OrderKind, node_id: str
) -> str:
    """Why the work of a node has failed for good; empty while there is hope."""
    sent, heard = memory.orders.get(_key(kind, node_id)), heard_of(seen, kind, node_id)
    if sent is None:
        return ""
    if sent.tries >= limits.attempts and heard is not None and _has_failed(seen, sent, heard):
        return f"{node_id} failed to {kind} {sent.tries} times: {heard.report.error}"
    last_s = sent.first_at_s if heard is None else max(heard.progress_at_s, sent.first_at_s)
    if seen.now_s - last_s > limits.silence_s:
        return f"{node_id} made no progress in {kind} for {limits.silence_s:g} s"
    return ""


def _has_failed(seen: Observed, sent: Sent | None, heard: Heard | None) -> bool:
    """The newest order was answered by a failure. A failure of the order before says nothing of it."""
    if sent is None or heard is None or heard.report.status is not ReportStatus.FAILED:
        return False
    report = heard.report
    return (report.term, report.index) >= (seen.term, sent.index) or heard.at_s > sent.at_s


def _order(
    memory: Memory,
    seen: Observed,
    limits: Limits,
    kind: OrderKind,
    node_id: str,
    heard: Heard | None,
) -> tuple[Memory, list[Order]]:
    """The order, unless the node was heard at work, or the last order was sent, only just now."""
    key = _key(kind, node_id)
    sent = memory.orders.get(key)
    running = heard is not None and heard.report.status is ReportStatus.RUNNING
    last_s = float("-inf") if sent is None else sent.at_s
    if heard is not None and running and sent is not None:
        last_s = max(last_s, heard.at_s)
    if seen.now_s - last_s < limits.resend_s:
        return memory, []
    topology = seen.image.topology.topology
    operation = seen.image.topology.operation
    order = Order(
        node_id=node_id,
        term=seen.term,
        index=memory.next_index,
        kind=kind,
        epoch=max(topology.since_epoch, topology.fence_epoch),
        version=topology.version,
        session=topology.session,
        request_id=operation.request_id if operation is not None else "",
        log_id=seen.image.log_id,
    )
    tries = 1 if sent is None else sent.tries + (1 if _has_failed(seen, sent, heard) else 0)
    first_at_s = seen.now_s if sent is None else sent.first_at_s
    orders = {**memory.orders, key: Sent(order.index, seen.now_s, first_at_s, tries)}
    memory = msgspec.structs.replace(memory, next_index=order.index + 1, orders=orders)
    return memory, [order]


def _key(kind: OrderKind, node_id: str) -> str:
    return f"{kind}/{node_id}"
