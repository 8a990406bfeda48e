"""Work that nodes do on order, streaming and cleanup: ordered until it is done, failed when it never is.

Orders and reports are keyed by node, kind and session, never by version: rounds of other transitions go on
meanwhile.
"""

import msgspec

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience, SentOrder
from stele.domain.acks import Blocker
from stele.domain.messages import Order, WorkKey
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.reports import ReceivedReport
from stele.runtime.answers.coordinator import SILENCE


class WorkState(msgspec.Struct, frozen=True):
    """How the work of some nodes stands: who is not done, and why it has failed."""

    unfinished: tuple[Blocker, ...]
    failure: str
    failed_nodes: tuple[str, ...] = ()
    patience: Patience | None = None
    """With the one that has made no progress for longest."""


def order_work(
    desk: Desk, kind: OrderKind, session: str, request_id: str, nodes: list[str], then: str
) -> WorkState:
    """Order the work of every node under a session, again where it failed or was not heard of.

    ``then`` is said to happen when one of them makes no progress for too long.
    """
    seen, unfinished, failures = desk.seen, list[Blocker](), dict[str, str]()
    for node_id in nodes:
        work = (node_id, kind, session)
        received = seen.reports.by_work.get(work)
        if received is not None and received.report.status is ReportStatus.SUCCESS:
            continue
        silent_s = seen.acks.silent_for_s(node_id, seen.now_s)
        unfinished.append(Blocker(node_id, _progress(kind, received), silent_s))
        failure = failure_of(desk, work)
        if failure:
            failures[node_id] = failure
        _order(desk, work, request_id, received)
    last = [_last_progress_s(desk, (b.node_id, kind, session)) for b in unfinished]
    patience = Patience(min(last), desk.limits.silence_s, SILENCE, then) if last else None
    failure = next(iter(failures.values()), "")
    return WorkState(tuple(unfinished), failure, tuple(failures), patience)


def is_done(desk: Desk, work: WorkKey) -> bool:
    received = desk.seen.reports.by_work.get(work)
    return received is not None and received.report.status is ReportStatus.SUCCESS


def failure_of(desk: Desk, work: WorkKey) -> str:
    """Why a piece of work has failed for good; empty while there is hope."""
    seen, limits = desk.seen, desk.limits
    node_id, kind, _ = work
    sent, received = desk.memory.orders.get(work), seen.reports.by_work.get(work)
    if sent is None:
        return ""
    if sent.tries >= limits.attempts and received is not None and _has_failed(desk, sent, received):
        return f"{node_id} failed to {kind} {sent.tries} times: {received.report.error}"
    if received is not None and received.begun_anew >= limits.attempts:
        return f"{node_id} began to {kind} anew {received.begun_anew} times, and got no further"
    if seen.now_s - _last_progress_s(desk, work) > limits.silence_s:
        return f"{node_id} made no progress in {kind} for {limits.silence_s:g} s"
    return ""


def _last_progress_s(desk: Desk, work: WorkKey) -> float:
    """When it made progress last, or was ordered first; now, when it never was."""
    sent, received = desk.memory.orders.get(work), desk.seen.reports.by_work.get(work)
    if sent is None:
        return desk.seen.now_s
    return sent.first_at_s if received is None else max(received.progress_at_s, sent.first_at_s)


def forget_in_time(desk: Desk, work: WorkKey) -> None:
    """Work that failed and that nobody waits for is tried anew after a while: its orders are forgotten then."""
    sent = desk.memory.orders.get(work)
    if sent is not None and desk.seen.now_s - sent.at_s > desk.limits.silence_s:
        desk.remember(orders=desk.memory.orders.delete(work))


def _progress(kind: OrderKind, received: ReceivedReport | None) -> str:
    if received is None:
        return f"has not answered the order to {kind}"
    report = received.report
    if report.status is ReportStatus.FAILED:
        return f"failed to {kind}: {report.error}"
    return f"{kind}: {report.bytes_done} of {report.bytes_total} bytes"


def _has_failed(desk: Desk, sent: SentOrder | None, received: ReceivedReport | None) -> bool:
    """The newest order was answered by a failure. A failure of the order before says nothing of it."""
    if sent is None or received is None or received.report.status is not ReportStatus.FAILED:
        return False
    report = received.report
    return (report.term, report.index) >= (desk.seen.term, sent.index) or received.at_s > sent.at_s


def _order(desk: Desk, work: WorkKey, request_id: str, received: ReceivedReport | None) -> None:
    """The order, unless the node was heard at work, or the last order was sent, only just now."""
    seen, memory = desk.seen, desk.memory
    sent = memory.orders.get(work)
    running = received is not None and received.report.status is ReportStatus.RUNNING
    last_s = float("-inf") if sent is None else sent.at_s
    if received is not None and running and sent is not None:
        last_s = max(last_s, received.at_s)
    if seen.now_s - last_s < desk.limits.resend_s:
        return
    topology = seen.image.topology
    node_id, kind, session = work
    order = Order(
        node_id=node_id,
        term=seen.term,
        index=memory.next_index,
        kind=kind,
        epoch=max(topology.since_epoch, topology.fence_epoch),
        session=session,
        request_id=request_id,
        log_id=seen.image.log_id,
    )
    tries = 1 if sent is None else sent.tries + (1 if _has_failed(desk, sent, received) else 0)
    first_at_s = seen.now_s if sent is None else sent.first_at_s
    newest = SentOrder(order.index, seen.now_s, first_at_s, tries)
    desk.remember(next_index=order.index + 1, orders=memory.orders.set(work, newest))
    desk.orders.append(order)
