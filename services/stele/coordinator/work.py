"""Work that nodes do on order: streaming, cleanup and others.

Orders are repeated until the work is done or has failed. Orders and reports are keyed by node, kind
and session, never by version, because rounds of other transitions continue meanwhile
(docs/design.md, rules 24 and 44).
"""

from collections.abc import Set

import msgspec

from stele.coordinator.actions import WorkOrder, WorkReset
from stele.coordinator.model import Patience, SentOrder, StepContext
from stele.domain.messages import ReceivedReport, WorkKey
from stele.domain.names import SILENCE, OrderKind, ReportStatus
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology.barriers import Blocker
from stele.domain.topology.operations.table import OPERATIONS


class WorkState(msgspec.Struct, frozen=True):
    """The state of the work of some nodes: the unfinished nodes, and the reason of a failure.

    ``orders`` are those that are due now.
    """

    unfinished: tuple[Blocker, ...]
    failure: str
    failed_nodes: tuple[str, ...] = ()
    patience: Patience | None = None
    """The limit of the unfinished node whose last progress is oldest."""
    orders: tuple[WorkOrder, ...] = ()


def order_work(
    context: StepContext,
    kind: OrderKind,
    session: str,
    request_id: str,
    nodes: list[str],
    then: str,
    *,
    silence_fails: bool = True,
) -> WorkState:
    """Order the work of every node under a session, again after a failure or without a report.

    ``then`` states the result if one of them makes no progress for too long. With ``silence_fails``
    false, missing progress alone is not a failure, nor is a stream that fails while too few of its
    sources are up.
    """
    seen, unfinished, failures = context.seen, list[Blocker](), dict[str, str]()
    orders = list[WorkOrder]()
    for node_id in nodes:
        work = (node_id, kind, session)
        received = seen.reports.by_work.get(work)
        # A success is final, whatever its term (rule 44).
        if received is not None and received.report.status is ReportStatus.SUCCESS:
            continue
        silent_s = seen.acks.silent_for_s(node_id, seen.now_s)
        unfinished.append(Blocker(node_id, _progress(kind, received), silent_s))
        failure = failure_of(context, work, silence_fails=silence_fails)
        if failure:
            failures[node_id] = failure
        orders += _due(context, work, request_id, received, waits=not silence_fails)
    last = [_last_progress_s(context, (b.node_id, kind, session)) for b in unfinished]
    patience = None
    if last and silence_fails:
        patience = Patience(min(last), context.limits.silence_s, SILENCE, then)
    failure = next(iter(failures.values()), "")
    return WorkState(tuple(unfinished), failure, tuple(failures), patience, tuple(orders))


def is_done(context: StepContext, work: WorkKey) -> bool:
    received = context.seen.reports.by_work.get(work)
    return received is not None and received.report.status is ReportStatus.SUCCESS


def failure_of(context: StepContext, work: WorkKey, *, silence_fails: bool = True) -> str:
    """Return why a piece of work has failed; empty while it may succeed."""
    seen, limits = context.seen, context.limits
    node_id, kind, _ = work
    sent, received = context.memory.orders.get(work), seen.reports.by_work.get(work)
    if sent is None:
        return ""
    if (
        sent.tries >= limits.attempts
        and received is not None
        and _has_failed(context, sent, received)
        # Before the next acks it is unknown whether a source was down.
        and (silence_fails or not _lacks_sources(context, received, seen.now_s - received.at_s))
    ):
        return f"{node_id} failed to {kind} {sent.tries} times: {received.report.error}"
    if received is not None and received.restarts - sent.excused >= limits.attempts:
        times = received.restarts - sent.excused
        return f"{node_id} restarted to {kind} {times} times without progress"
    if silence_fails and seen.now_s - _last_progress_s(context, work) > limits.silence_s:
        return f"{node_id} made no progress in {kind} for {limits.silence_s:g} s"
    return ""


def _last_progress_s(context: StepContext, work: WorkKey) -> float:
    """Return the time of the last progress or of the first order; now if it was never ordered.

    It is not before the last gap in reading, because reports of that time may still be unread.
    """
    sent, received = context.memory.orders.get(work), context.seen.reports.by_work.get(work)
    if sent is None:
        return context.seen.now_s
    progress_at_s = sent.first_at_s if received is None else received.progress_at_s
    # An earlier report may belong to a former coordinator; this one grants the full time.
    return context.counted_since(max(progress_at_s, sent.first_at_s))


def retry_later(context: StepContext, work: WorkKey) -> list[WorkReset]:
    """Reset failed work after ``silence_s``, so that it is tried again. No wait depends on it."""
    sent = context.memory.orders.get(work)
    is_due = sent is not None and context.seen.now_s - sent.at_s > context.limits.silence_s
    return [WorkReset(work)] if is_due else []


def _progress(kind: OrderKind, received: ReceivedReport | None) -> str:
    if received is None:
        return f"has not answered the order to {kind}"
    report = received.report
    if report.status is ReportStatus.FAILED:
        return f"failed to {kind}: {report.error}"
    return f"{kind}: {report.bytes_done} of {report.bytes_total} bytes"


def _has_failed(
    context: StepContext, sent: SentOrder | None, received: ReceivedReport | None
) -> bool:
    """Return whether the newest order has failed.

    A failure of an earlier order does not count.
    """
    if sent is None or received is None or received.report.status is not ReportStatus.FAILED:
        return False
    report = received.report
    return (report.term, report.index) >= (
        context.seen.term,
        sent.index,
    ) or received.at_s > sent.at_s


def _lacks_sources(context: StepContext, received: ReceivedReport, silent_s: float) -> bool:
    """Return whether a stream failed that has too few sources without the nodes that have been
    silent for longer than ``silent_s``.

    Excluded sources never return, so a stream that has too few without those has failed.
    """
    report, image = received.report, context.seen.image
    transition = image.topology.of_session(report.session)
    if (report.kind, report.status) != (OrderKind.STREAM, ReportStatus.FAILED) or not transition:
        return False
    excluded = image.membership.excluded()
    silent = {n for n in image.membership.taking_part() if context.silent_for_s(n) > silent_s}

    def lacks(row: TransitionRow, unavailable: Set[str]) -> bool:
        sources_of = OPERATIONS[transition.kind].sources
        found = sources_of(image, transition, row, report.node_id, unavailable)
        return found is not None and len(found[0]) < found[1]

    rows = [row for plan in transition.plans.values() for row in plan.rows]
    late = any(lacks(row, silent | excluded) for row in rows if not silent.isdisjoint(row.old))
    return late and not any(lacks(row, excluded) for row in rows)


def _due(
    context: StepContext,
    work: WorkKey,
    request_id: str,
    received: ReceivedReport | None,
    *,
    waits: bool,
) -> list[WorkOrder]:
    """Return the order, unless the last order or the last report of running work is recent.

    With ``waits``, attempts to stream do not count while too few sources are up. After a failure,
    the order is sent again once each source has sent an ack, or is down.
    """
    now_s, sent = context.seen.now_s, context.memory.orders.get(work)
    running = received is not None and received.report.status is ReportStatus.RUNNING
    last_s = float("-inf") if sent is None else sent.at_s
    # A report of running work shows that the order arrived, so no repeat is due yet.
    if received is not None and running and sent is not None:
        last_s = max(last_s, received.at_s)
    if now_s - last_s < context.limits.resend_s:
        return []
    excused = 0 if sent is None else sent.excused
    tries = 1 if sent is None else sent.tries + (1 if _has_failed(context, sent, received) else 0)
    if waits and sent is not None and received is not None:
        if _lacks_sources(context, received, context.limits.down_after_s):
            tries, excused = 0, received.restarts
        elif _lacks_sources(context, received, now_s - received.at_s):
            return []
    return [WorkOrder(work, request_id, tries, excused)]
