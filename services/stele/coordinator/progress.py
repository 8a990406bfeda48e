"""The answer of ``GET /v1/progress``: the progress and rate of each transition, and the nodes that
block it.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Final

import msgspec
from immutables import Map

from stele.coordinator.causes import explained, members_down
from stele.coordinator.model import Limits, Observed, Patience, ReplicaHeard, Wait
from stele.domain.acks import Blocker
from stele.domain.image import Image
from stele.domain.reports import ReceivedReport, ReportTable
from stele.domain.topology.barriers import level_in_force, lowered_level
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import stream_limit_bytes_per_s
from stele.domain.topology.live_copies import described, losses
from stele.domain.topology.waits import ASIDE
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


class Rate(msgspec.Struct, frozen=True):
    """Byte sums of one session at their changes, as (seconds, bytes), oldest first; and the last
    sampling time.

    Bytes arrive in pages and become visible when a node reports. Between two changes their number
    is unknown. Time without a change therefore counts as slow only when it exceeds the mean time
    between earlier changes.
    """

    samples: tuple[tuple[float, int], ...] = ()
    now_s: float = 0.0

    def with_sample(self, now_s: float, bytes_done: int) -> "Rate":
        """Return the rate with one more sample. Changes before the window are dropped, except the
        newest of them.
        """
        begin_s = now_s - WINDOW_S
        old = [sample for sample in self.samples if sample[0] <= begin_s]
        kept = [*old[-1:], *(sample for sample in self.samples if sample[0] > begin_s)]
        if not kept or kept[-1][1] != bytes_done:
            kept.append((now_s, bytes_done))
        return Rate(tuple(kept), now_s)

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


class Rates(msgspec.Struct, frozen=True):
    """The rate of every open session, and the newest bytes a second of one receiver."""

    by_session: Map[str, Rate] = Map()
    newest_of_node: float | None = None

    def with_samples(self, image: Image, reports: ReportTable, now_s: float) -> "Rates":
        found, newest = dict[str, Rate](), self.newest_of_node
        for session in image.topology.sessions():
            rate = self.of(session).with_sample(now_s, bytes_done(reports, session))
            found[session], bytes_per_s = rate, rate.bytes_per_s()
            # A rate without new bytes only decays, and would understate what a receiver can take.
            if bytes_per_s is not None and rate.moved():
                newest = bytes_per_s / len(reports.of_session(session))
        return Rates(Map(found), newest)

    def of(self, session: str) -> Rate:
        return self.by_session.get(session) or Rate()


def bytes_done(reports: ReportTable, session: str) -> int:
    return sum(r.report.bytes_done for r in reports.of_session(session).values())


def progress_of(
    seen: Observed, limits: Limits, rates: Rates, waits: tuple[Wait, ...], *, active: bool
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
            name: _replica(seen, heard, limits) for name, heard in sorted(seen.replicas.items())
        },
    )


def _replica(seen: Observed, heard: ReplicaHeard, limits: Limits) -> ReplicaProgress:
    silent_s = None if heard.heard_s is None else max(0.0, seen.now_s - heard.heard_s)
    is_down = silent_s is None or silent_s > limits.replica_down_after_s
    return ReplicaProgress(silent_s, is_down, heard.epoch)


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
    rates: Rates,
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
    received: Mapping[str, ReceivedReport], rate: Rate, limit: int | None
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
