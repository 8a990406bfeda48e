"""Order of the nodes that block a wait: a source that hangs precedes the receiver of its data."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from stele.coordinator.model import Limits, Observed, Wait
from stele.domain.acks import Blocker
from stele.domain.image import Image
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.reports import ReceivedReport
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.waits import WaitKind

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
"""Seconds without data after which a receiver whose sources are all up is a cause. A large row
arrives as a whole, and rarely if ``stream_mib_per_s`` is low.
"""


class Explained(msgspec.Struct, frozen=True):
    """The nodes that block a wait, the cause first; ``cause`` is empty if there is none, or none is
    known.
    """

    blockers: tuple[Blocker, ...]
    cause: str = ""


def members_down(seen: Observed, limits: Limits) -> dict[str, float]:
    """Return the members that are down, each with the seconds since its last ack."""
    members = seen.image.membership.taking_part()
    return seen.acks.silent_for_longer(members, limits.down_after_s, seen.now_s)


def explained(wait: Wait, seen: Observed, limits: Limits, down: Mapping[str, float]) -> Explained:
    """Return the blockers of a wait in the order in which an operator should look at them.

    ``down`` is the result of ``members_down``.
    """
    if wait.kind is WaitKind.STREAM:
        return _streaming(wait, seen, limits, down)
    silent_first = sorted(wait.blockers, key=lambda b: -b.silent_for_s)
    if wait.kind in ON_NODES and silent_first:
        return Explained(tuple(silent_first), silent_first[0].node_id)
    return Explained(wait.blockers)


def _streaming(wait: Wait, seen: Observed, limits: Limits, down: Mapping[str, float]) -> Explained:
    """Explain a wait for streams.

    A receiver that makes progress has no cause. A stalled receiver may have a source that is down.
    """
    transition = seen.image.topology.of_request(wait.request_ids[0])
    if transition is None:
        return Explained(wait.blockers)
    # A receiver with a source that is down is stalled early. Others may wait for a large row until
    # HANGS_S.
    late = limits.resend_s  # an order is sent again after this time
    stalled = [b for b in wait.blockers if _is_stalled(transition, b.node_id, seen, limits, late)]
    found = {blocker.node_id: blocker for blocker in _sources(transition, stalled, seen, down)}
    if not found:
        stalled = [b for b in stalled if _is_stalled(transition, b.node_id, seen, limits, HANGS_S)]
    if not stalled:
        return Explained(wait.blockers)
    rest = [b for b in (*stalled, *wait.blockers) if b.node_id not in found]
    blockers = (*found.values(), *dict.fromkeys(rest))
    return Explained(blockers, blockers[0].node_id)


def report_of(transition: Transition, node_id: str, seen: Observed) -> ReceivedReport | None:
    """Return the newest report of a node's streaming for a transition."""
    return seen.reports.by_work.get((node_id, OrderKind.STREAM, transition.session))


def _is_stalled(
    transition: Transition, node_id: str, seen: Observed, limits: Limits, after_s: float
) -> bool:
    """Return whether the node is down, has failed, or has received no data for longer than
    ``after_s``.
    """
    received = report_of(transition, node_id, seen)
    if seen.acks.silent_for_s(node_id, seen.now_s) > limits.down_after_s:
        return True
    if received is None:
        return False
    failed = received.report.status is ReportStatus.FAILED
    return failed or seen.now_s - received.progress_at_s > after_s


def _sources(
    transition: Transition, stalled: list[Blocker], seen: Observed, down: Mapping[str, float]
) -> Iterator[Blocker]:
    """Yield the sources of stalled receivers that are down; the source silent for longest comes
    first.
    """
    requests = (seen.image.request(request_id) for request_id in transition.request_ids())
    excluded = seen.image.membership.excluded() | declared_dead(r for r in requests if r)
    waiting = {b.node_id for b in stalled if b.node_id not in down}
    for source in sorted(down, key=lambda node_id: -down[node_id]):
        served = sorted(_served_by(source, seen.image, transition, waiting, excluded))
        if served:
            yield Blocker(source, f"is down, and gives {', '.join(served)} no data", down[source])


def _served_by(
    source: str, image: Image, transition: Transition, waiting: set[str], excluded: frozenset[str]
) -> set[str]:
    """Return the waiting receivers that must or may stream ranges from this source."""
    sources = OPERATIONS[transition.kind].sources
    rows = [row for plan in transition.plans.values() for row in plan.rows if source in row.old]

    def gives(row: TransitionRow, node_id: str) -> bool:
        found = sources(image, transition, row, node_id, excluded)
        return found is not None and source in found[0]

    return {node_id for node_id in waiting if any(gives(row, node_id) for row in rows)}
