"""The answer of ``GET /v1/progress``: waits with their causes, and the progress of transitions.

The nodes that block a wait are ordered by cause: a source that hangs precedes the receiver of its
data. Rates and remaining times follow from the nodes' reports.
"""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Final

import msgspec
from immutables import Map

from stele.coordinator.model import Limits, Observed, Patience, ReplicaLiveness, Wait
from stele.domain.image import Image
from stele.domain.messages import ReceivedReport, ReportTable
from stele.domain.model.settings import stream_limit_bytes_per_s
from stele.domain.model.transitions import Transition
from stele.domain.names import ASIDE, OrderKind, ReportStatus, WaitKind
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology.barriers import Blocker, level_in_force, lowered_level
from stele.domain.topology.live_copies import described, losses
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import (
    BlockerAnswer,
    NodeProgress,
    Progress,
    ReplicaProgress,
    TransitionProgress,
    WaitLimit,
    WaitProgress,
)

WINDOW_S: Final = 10.0
"""Seconds over which the rate is measured: long enough to be steady, short enough to follow
changes.
"""
LEAST_MEASURED_BYTES: Final = 1_000_000
"""Sessions with fewer bytes measure the delays of their calls, and no rate for other transfers."""
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


# --- rates


class StreamRate(msgspec.Struct, frozen=True):
    """Byte sums of one session at their changes, as (seconds, bytes), oldest first; and the last
    sampling time.

    Bytes arrive in pages and become visible when a node reports. Between two changes their number
    is unknown. Time without a change therefore counts as slow only when it exceeds the mean time
    between earlier changes.
    """

    samples: tuple[tuple[float, int], ...] = ()
    now_s: float = 0.0

    def with_sample(self, now_s: float, bytes_done: int) -> "StreamRate":
        """Return the rate with one more sample. Changes before the window are dropped, except the
        newest of them.
        """
        begin_s = now_s - WINDOW_S
        old = [sample for sample in self.samples if sample[0] <= begin_s]
        kept = [*old[-1:], *(sample for sample in self.samples if sample[0] > begin_s)]
        if not kept or kept[-1][1] != bytes_done:
            kept.append((now_s, bytes_done))
        return StreamRate(tuple(kept), now_s)

    def moved(self) -> bool:
        """Return whether the last sample was a change."""
        return len(self.samples) > 1 and self.samples[-1][0] == self.now_s

    def still_s(self) -> float:
        """Return the seconds since the last change."""
        return self.now_s - self.samples[-1][0] if self.samples else 0.0

    def lately(self) -> bool:
        """Return whether bytes have arrived within the last window, or the session is no older than
        that.
        """
        return self.still_s() < WINDOW_S

    def bytes_per_s(self) -> float | None:
        """Return the rate; None before two samples at different times, and without a change in the
        last window.
        """
        if len(self.samples) < 2 or not self.lately():
            return None
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        took_s = last_s - first_s + max(0.0, self.still_s() - self._apart_s())
        return (last - first) / took_s if last > first and took_s > 0 else None

    def since_s(self) -> float:
        """Return the part of the expected time to the next change that has passed, in seconds."""
        return min(self.still_s(), self._apart_s())

    def _apart_s(self) -> float:
        """Return the mean seconds between two changes."""
        if len(self.samples) < 2:
            return 0.0
        return (self.samples[-1][0] - self.samples[0][0]) / (len(self.samples) - 1)


class StreamRates(msgspec.Struct, frozen=True):
    """The rate of every open session, and the newest bytes a second of one receiver."""

    by_session: Map[str, StreamRate] = Map()
    newest_of_node: float | None = None

    def with_samples(self, image: Image, reports: ReportTable, now_s: float) -> "StreamRates":
        found, newest = dict[str, StreamRate](), self.newest_of_node
        for session in image.topology.sessions():
            done = bytes_done(reports, session)
            rate = self.of(session).with_sample(now_s, done)
            found[session], bytes_per_s = rate, rate.bytes_per_s()
            # A rate without new bytes only decays, and would understate what a receiver can take.
            if bytes_per_s is not None and rate.moved() and done >= LEAST_MEASURED_BYTES:
                newest = bytes_per_s / len(reports.of_session(session))
        return StreamRates(Map(found), newest)

    def of(self, session: str) -> StreamRate:
        return self.by_session.get(session) or StreamRate()


def bytes_done(reports: ReportTable, session: str) -> int:
    return sum(r.report.bytes_done for r in reports.of_session(session).values())


# --- the answer


def progress_of(
    seen: Observed, limits: Limits, rates: StreamRates, waits: tuple[Wait, ...], *, active: bool
) -> Progress:
    """Return the progress of the cluster."""
    image = seen.image
    down = members_down(seen, limits)
    shown = tuple(wait_progress(wait, seen, limits, down) for wait in waits)
    wait_of = _wait_by_request(shown)
    cleaning = [n for n in image.membership.normal().values() if n.cleanup_since]
    return Progress(
        term=image.topology.coordinator.term,
        active=active,
        version=image.topology.version,
        fence_version=image.topology.fence_version,
        barrier_level=level_in_force(image),
        barrier_relaxed=bool(lowered_level(image)),
        waits=shown,
        transitions=tuple(
            _transition(transition, seen, rates, wait_of) for transition in image.topology.open()
        ),
        cleanups={
            node.node_id: _node_progress(received, seen.now_s)
            for node in cleaning
            for received in seen.reports.of_session(node.cleanup_session()).values()
        },
        replicas={
            name: _replica(seen, known, limits) for name, known in sorted(seen.replicas.items())
        },
    )


def _replica(seen: Observed, known: ReplicaLiveness, limits: Limits) -> ReplicaProgress:
    silent_s = None if known.answered_s is None else max(0.0, seen.now_s - known.answered_s)
    is_down = silent_s is None or silent_s > limits.replica_down_after_s
    return ReplicaProgress(silent_s, is_down, known.epoch)


def wait_progress(
    wait: Wait, seen: Observed, limits: Limits, down: Mapping[str, float]
) -> WaitProgress:
    """Return a wait with its cause, its duration, and its time limit.

    ``down`` is the result of ``members_down``.
    """
    why = explained(wait, seen, limits, down)
    patience, image = wait.patience, seen.image
    blocking = {b.node_id for b in why.blockers if b.silent_for_s > limits.down_after_s}
    lost = losses(image, blocking & image.membership.taking_part().keys())
    return WaitProgress(
        wait.request_ids,
        wait.what,
        tuple(_blocker(blocker, limits) for blocker in why.blockers),
        wait.kind,
        None if wait.since_s is None else max(0.0, seen.now_s - wait.since_s),
        None if patience is None else _limit(patience, seen.now_s),
        why.cause,
        wait.other_request,
        wait.detail,
        wait.eta_s,
        described(image, lost),
    )


def _limit(patience: Patience, now_s: float) -> WaitLimit:
    left_s = max(0.0, patience.since_s + patience.limit_s - now_s)
    return WaitLimit(left_s, patience.limit_s, patience.setting, patience.then)


def _wait_by_request(waits: tuple[WaitProgress, ...]) -> dict[str, tuple[int, WaitProgress]]:
    """Return the first wait of each request, with its position.

    The key "" has the first wait that blocks every transition.
    """
    found = dict[str, tuple[int, WaitProgress]]()
    for place, wait in enumerate(waits):
        common = () if wait.kind in ASIDE else ("",)
        for request_id in wait.request_ids or common:
            found.setdefault(request_id, (place, wait))
    return found


def _transition(
    transition: Transition,
    seen: Observed,
    rates: StreamRates,
    wait_of: dict[str, tuple[int, WaitProgress]],
) -> TransitionProgress:
    received = seen.reports.of_session(transition.session)
    total = sum(r.report.bytes_total for r in received.values())
    done = sum(r.report.bytes_done for r in received.values())
    rate = rates.of(transition.session)
    limit = stream_limit_bytes_per_s(seen.image.features.settings)
    eta_s, at_least = _eta_s(received, rate, limit) if received else (None, False)
    ids = transition.request_ids()
    own = [wait_of[request_id] for request_id in ids if request_id in wait_of]
    common = wait_of.get("", (0, WaitProgress((), "", ())))
    wait = min(own, key=itemgetter(0), default=common)[1]
    return TransitionProgress(
        transition_id=transition.transition_id,
        request_ids=ids,
        kind=transition.kind,
        state=transition.state,
        session=transition.session,
        going_back=transition.mark,
        waiting_for=wait.waiting_for,
        blockers=wait.blockers,
        nodes={node_id: _node_progress(r, seen.now_s) for node_id, r in received.items()},
        bytes_done=done,
        bytes_total=total,
        bytes_per_s=rate.bytes_per_s(),
        eta_s=eta_s,
        eta_at_least=at_least,
        limit_bytes_per_s=limit,
    )


def _blocker(blocker: Blocker, limits: Limits) -> BlockerAnswer:
    silent_s = blocker.silent_for_s
    return BlockerAnswer(
        blocker.node_id,
        blocker.why,
        None if silent_s == float("inf") else silent_s,
        silent_s > limits.down_after_s,
    )


def _eta_s(
    received: Mapping[str, ReceivedReport], rate: StreamRate, limit: int | None
) -> tuple[float | None, bool]:
    """Return the seconds until all data has arrived, and whether they are only a lower bound.

    The recent rate counts, and no node is faster than ``limit``, in bytes a second. Without a known
    rate the limit gives the lower bound.
    """
    missing = [r.report.bytes_total - r.report.bytes_done for r in received.values()]
    if sum(missing) <= 0:
        return 0.0, False
    bytes_per_s, since_s = rate.bytes_per_s(), rate.since_s()
    if bytes_per_s is None and (limit is None or not rate.lately()):
        return None, False
    found_s = 0.0 if bytes_per_s is None else sum(missing) / bytes_per_s
    least_s = 0.0 if limit is None else max(missing) / limit
    return max(0.0, max(found_s, least_s) - since_s), bytes_per_s is None


def _node_progress(received: ReceivedReport, now_s: float) -> NodeProgress:
    report = received.report
    return NodeProgress(
        kind=report.kind,
        status=report.status,
        bytes_done=report.bytes_done,
        bytes_total=report.bytes_total,
        keys_done=report.keys_done,
        error=report.error,
        still_for_s=max(0.0, now_s - received.progress_at_s),
        bytes_compared=report.bytes_compared,
    )


# --- causes of waits


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


def _is_stalled(
    transition: Transition, node_id: str, seen: Observed, limits: Limits, after_s: float
) -> bool:
    """Return whether the node is down, has failed, or has received no data for longer than
    ``after_s``.
    """
    received = seen.reports.by_work.get((node_id, OrderKind.STREAM, transition.session))
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
