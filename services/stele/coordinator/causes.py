"""Who is the cause of a wait: a source that hangs, before the receiver that waits for its data."""

from collections.abc import Iterator
from typing import Final

import msgspec

from stele.coordinator.knowledge import Limits, Observed, Wait
from stele.domain.acks import Blocker
from stele.domain.image import Image
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.reports import ReceivedReport
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import WaitKind

ON_NODES = (
    WaitKind.MEMBERS,
    WaitKind.LIVES,
    WaitKind.PREPARED,
    WaitKind.RECEIVERS,
    WaitKind.APPLIED,
    WaitKind.FENCED,
)
"""Kinds of waits whose blockers are the cause, each for itself."""

HANGS_S: Final = 10.0
"""A receiver whose sources are all up is a cause only after so long without data: a large row comes as a whole,
and seldom where ``stream_mib_per_s`` is low.
"""


class Explained(msgspec.Struct, frozen=True):
    """Whom a wait is held up by, the cause first; no ``cause`` where there is none, or none is known."""

    blockers: tuple[Blocker, ...]
    cause: str = ""


def explained(wait: Wait, seen: Observed, limits: Limits) -> Explained:
    """The blockers of a wait in the order in which they should be looked after."""
    if wait.kind is WaitKind.STREAM:
        return _streaming(wait, seen, limits)
    silent_first = sorted(wait.blockers, key=lambda b: -b.silent_for_s)
    if wait.kind in ON_NODES and silent_first:
        return Explained(tuple(silent_first), silent_first[0].node_id)
    return Explained(wait.blockers)


def _streaming(wait: Wait, seen: Observed, limits: Limits) -> Explained:
    """A receiver that gets on is nobody's fault; one that does not may have a source that is down."""
    transition = seen.image.topology.of_request(wait.request_ids[0])
    if transition is None:
        return Explained(wait.blockers)
    late = limits.resend_s  # so long an order takes to be sent again
    stalled = [b for b in wait.blockers if _is_stalled(transition, b.node_id, seen, limits, late)]
    found = {blocker.node_id: blocker for blocker in _sources(transition, stalled, seen, limits)}
    if not found:
        stalled = [b for b in stalled if _is_stalled(transition, b.node_id, seen, limits, HANGS_S)]
    if not stalled:
        return Explained(wait.blockers)
    rest = [b for b in (*stalled, *wait.blockers) if b.node_id not in found]
    blockers = (*found.values(), *dict.fromkeys(rest))
    return Explained(blockers, blockers[0].node_id)


def report_of(transition: Transition, node_id: str, seen: Observed) -> ReceivedReport | None:
    """The newest report of a node's streaming for a transition."""
    return seen.reports.by_work.get((node_id, OrderKind.STREAM, transition.session))


def _is_stalled(
    transition: Transition, node_id: str, seen: Observed, limits: Limits, after_s: float
) -> bool:
    """It is down, has failed, or has got no data for so long."""
    received = report_of(transition, node_id, seen)
    if seen.acks.silent_for_s(node_id, seen.now_s) > limits.down_after_s:
        return True
    if received is None:
        return False
    failed = received.report.status is ReportStatus.FAILED
    return failed or seen.now_s - received.progress_at_s > after_s


def _sources(
    transition: Transition, stalled: list[Blocker], seen: Observed, limits: Limits
) -> Iterator[Blocker]:
    """Sources of those who get no data that are down, whoever has been silent longest first."""
    requests = (seen.image.request(request_id) for request_id in transition.request_ids())
    excluded = seen.image.membership.excluded() | declared_dead(r for r in requests if r)
    nodes = seen.image.membership.taking_part()
    down = seen.acks.silent_for_longer(nodes, limits.down_after_s, seen.now_s)
    waiting = {b.node_id for b in stalled if b.node_id not in down}
    for source in sorted(down, key=lambda node_id: -down[node_id]):
        served = sorted(_served_by(source, seen.image, transition, waiting, excluded))
        if served:
            yield Blocker(source, f"is down, and gives {', '.join(served)} no data", down[source])


def _served_by(
    source: str, image: Image, transition: Transition, waiting: set[str], excluded: frozenset[str]
) -> set[str]:
    """Who of those that wait must get ranges from this source, or may."""
    sources = OPERATIONS[transition.kind].sources
    rows = [row for plan in transition.plans.values() for row in plan.rows if source in row.old]

    def gives(row: TransitionRow, node_id: str) -> bool:
        found = sources(image, transition, row, node_id, excluded)
        return found is not None and source in found[0]

    return {node_id for node_id in waiting if any(gives(row, node_id) for row in rows)}
