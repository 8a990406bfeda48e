"""What ``GET /v1/progress`` shows: how far each transition is, how fast it goes, and who holds it up."""

from typing import Final

import msgspec
from immutables import Map

from stele.coordinator.causes import explained
from stele.coordinator.knowledge import Limits, Observed, Patience, ReplicaHeard, Wait
from stele.domain.acks import Blocker
from stele.domain.image import Image
from stele.domain.reports import ReceivedReport, ReportTable
from stele.domain.topology.barriers import level_in_force, lowered_level
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import stream_limit_bytes_per_s
from stele.runtime.answers.coordinator import (
    ASIDE,
    BlockerAnswer,
    NodeProgress,
    Progress,
    ReplicaProgress,
    TransitionProgress,
    WaitLimit,
    WaitProgress,
)

WINDOW_S: Final = 10.0
"""The rate is measured over this time: long enough to be steady, short enough to follow."""


class Rate(msgspec.Struct, frozen=True):
    """Sums of bytes done in one session when they had changed, as (seconds, bytes), oldest first; and when it
    was looked at last.

    Bytes come in pages, and are seen when a node reports: between two changes nothing is known of how many have
    come. So that time counts as slow only once it is longer than it was between the changes before.
    """

    samples: tuple[tuple[float, int], ...] = ()
    now_s: float = 0.0

    def with_sample(self, now_s: float, bytes_done: int) -> "Rate":
        """One more look. Changes older than the window go, but for the newest of them."""
        begin_s = now_s - WINDOW_S
        old = [sample for sample in self.samples if sample[0] <= begin_s]
        kept = [*old[-1:], *(sample for sample in self.samples if sample[0] > begin_s)]
        if not kept or kept[-1][1] != bytes_done:
            kept.append((now_s, bytes_done))
        return Rate(tuple(kept), now_s)

    def moved(self) -> bool:
        """Whether the last look saw a change."""
        return len(self.samples) > 1 and self.samples[-1][0] == self.now_s

    def still_s(self) -> float:
        """Since when no change was seen."""
        return self.now_s - self.samples[-1][0] if self.samples else 0.0

    def lately(self) -> bool:
        """Whether bytes have come in the last window, or the session is as young as that."""
        return self.still_s() < WINDOW_S

    def bytes_per_s(self) -> float | None:
        """None until two samples at different times are there, and when nothing moved in the last window."""
        if len(self.samples) < 2 or not self.lately():
            return None
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        took_s = last_s - first_s + max(0.0, self.still_s() - self._apart_s())
        return (last - first) / took_s if last > first and took_s > 0 else None

    def since_s(self) -> float:
        """How much of the time that the next bytes take has passed."""
        return min(self.still_s(), self._apart_s())

    def _apart_s(self) -> float:
        """The time between two changes, on an average."""
        if len(self.samples) < 2:
            return 0.0
        return (self.samples[-1][0] - self.samples[0][0]) / (len(self.samples) - 1)


class Rates(msgspec.Struct, frozen=True):
    """The rate of every open session, and what one node received in a second when data moved last."""

    by_session: Map[str, Rate] = Map()
    newest_of_node: float | None = None

    def with_samples(self, image: Image, reports: ReportTable, now_s: float) -> "Rates":
        found, newest = dict[str, Rate](), self.newest_of_node
        for session in image.topology.sessions():
            rate = self.of(session).with_sample(now_s, bytes_done(reports, session))
            found[session], bytes_per_s = rate, rate.bytes_per_s()
            if bytes_per_s is not None and rate.moved():
                newest = bytes_per_s / len(reports_of(reports, session))
        return Rates(Map(found), newest)

    def of(self, session: str) -> Rate:
        return self.by_session.get(session) or Rate()


def reports_of(reports: ReportTable, session: str) -> dict[str, ReceivedReport]:
    """Newest report of each node about the work of a session, by node id."""
    return {
        node_id: received
        for (node_id, _, of), received in sorted(reports.by_work.items())
        if session and of == session
    }


def bytes_done(reports: ReportTable, session: str) -> int:
    return sum(r.report.bytes_done for r in reports_of(reports, session).values())


def progress_of(
    seen: Observed, limits: Limits, rates: Rates, waits: tuple[Wait, ...], *, active: bool
) -> Progress:
    """How things stand."""
    image = seen.image
    shown = tuple(wait_progress(wait, seen, limits) for wait in waits)
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
            _transition(transition, seen, rates, shown) for transition in image.topology.open()
        ),
        cleanups={
            node.node_id: _node_progress(received, seen.now_s)
            for node in cleaning
            for received in reports_of(seen.reports, node.cleanup_session()).values()
        },
        replicas={
            name: _replica(seen, heard, limits) for name, heard in sorted(seen.replicas.items())
        },
    )


def _replica(seen: Observed, heard: ReplicaHeard, limits: Limits) -> ReplicaProgress:
    silent_s = None if heard.heard_s is None else max(0.0, seen.now_s - heard.heard_s)
    is_down = silent_s is None or silent_s > limits.replica_down_after_s
    return ReplicaProgress(silent_s, is_down, heard.epoch)


def wait_progress(wait: Wait, seen: Observed, limits: Limits) -> WaitProgress:
    """A wait with its cause, since when it has been there, and when it ends by itself."""
    why = explained(wait, seen, limits)
    patience = wait.patience
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
    )


def _limit(patience: Patience, now_s: float) -> WaitLimit:
    left_s = max(0.0, patience.since_s + patience.limit_s - now_s)
    return WaitLimit(left_s, patience.limit_s, patience.setting, patience.then)


def _transition(
    transition: Transition, seen: Observed, rates: Rates, waits: tuple[WaitProgress, ...]
) -> TransitionProgress:
    received = reports_of(seen.reports, transition.session)
    total = sum(r.report.bytes_total for r in received.values())
    done = sum(r.report.bytes_done for r in received.values())
    rate = rates.of(transition.session)
    limit = stream_limit_bytes_per_s(seen.image.features.settings)
    eta_s, at_least = _eta_s(received, rate, limit) if received else (None, False)
    ids = transition.request_ids()
    wait = next((w for w in waits if {*ids} & {*w.request_ids}), None)
    common = (w for w in waits if not w.request_ids and w.kind not in ASIDE)
    wait = wait or next(common, WaitProgress((), "", ()))
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
    received: dict[str, ReceivedReport], rate: Rate, limit: int | None
) -> tuple[float | None, bool]:
    """When all has come as fast as lately, and no node's faster than ``limit`` lets it, in bytes a second; and
    whether that is only the least, since no rate is known.
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
