"""Liveness: silence takes a node down, one heartbeat does not bring it back, and only read records count."""

from __future__ import annotations

import pytest

from stele.runtime.answers.session_guard import Liveness
from stele.session_guard.guard import READING_GAP_S, LivenessTracker

TIMEOUT_S = 5.0
UP, DOWN, UNKNOWN = Liveness.UP, Liveness.DOWN, Liveness.UNKNOWN


def reading(tracker: LivenessTracker, from_s: float, until_s: float) -> LivenessTracker:
    """Confirm every second, as an undisturbed reader does."""
    at_s = from_s
    while at_s < until_s:
        tracker = tracker.read_until(at_s)
        at_s += 1.0
    return tracker.read_until(until_s)


def started() -> LivenessTracker:
    return LivenessTracker(TIMEOUT_S).read_until(0.0)


def test_new_node_is_up_with_its_first_heartbeat() -> None:
    assert started().seen("n1", 0.5).liveness("n1", 0.6) is UP


def test_unheard_node_is_unknown_until_a_full_timeout_was_read() -> None:
    tracker = LivenessTracker(TIMEOUT_S)
    assert tracker.liveness("n1", 100.0) is UNKNOWN
    assert reading(tracker, 0.0, 5.0).liveness("n1", 5.0) is UNKNOWN
    assert reading(tracker, 0.0, 5.1).liveness("n1", 5.1) is DOWN


def test_silence_beyond_the_timeout_takes_a_node_down() -> None:
    tracker = started().seen("n1", 0.0)
    assert reading(tracker, 0.0, 5.0).liveness("n1", 5.0) is UP
    assert reading(tracker, 0.0, 5.1).liveness("n1", 5.1) is DOWN


def test_steady_heartbeats_bring_a_node_back_but_a_single_one_does_not() -> None:
    tracker = reading(started().seen("n1", 0.0), 0.0, 10.0)
    assert not tracker.is_returning("n1", 10.0)
    tracker = tracker.seen("n1", 10.0)
    assert tracker.liveness("n1", 10.0) is DOWN
    tracker = tracker.seen("n1", 11.0).seen("n1", 12.0)
    assert tracker.liveness("n1", 12.0) is DOWN
    assert tracker.is_returning("n1", 12.0)
    tracker = tracker.seen("n1", 12.5)
    assert tracker.liveness("n1", 12.5) is UP
    assert not tracker.is_returning("n1", 12.5)


def test_gap_restarts_the_return_of_a_node() -> None:
    tracker = reading(started().seen("n1", 0.0), 0.0, 10.0).seen("n1", 10.0).seen("n1", 12.0)
    tracker = reading(tracker, 10.0, 18.0).seen("n1", 18.0)
    assert tracker.seen("n1", 19.0).liveness("n1", 19.0) is DOWN
    assert tracker.seen("n1", 20.5).liveness("n1", 20.5) is UP


def test_guard_that_did_not_read_reports_no_node_down() -> None:
    tracker = reading(started().seen("n1", 1.0), 0.0, 2.0)
    assert tracker.liveness("n1", 600.0) is UNKNOWN
    back = tracker.read_until(600.0)
    assert back.liveness("n1", 600.0) is UNKNOWN
    assert reading(back, 600.0, 605.0).liveness("n1", 605.0) is UNKNOWN
    assert reading(back, 600.0, 605.1).liveness("n1", 605.1) is DOWN


def test_node_heard_after_the_guards_own_gap_was_never_down() -> None:
    tracker = started().seen("n1", 1.0).read_until(600.0).seen("n1", 600.2)
    assert tracker.liveness("n1", 600.3) is UP


def test_restarted_reading_gives_every_node_a_full_timeout() -> None:
    """A rebalance may be shorter than a gap in reading, but its records are skipped."""
    tracker = reading(started().seen("n1", 0.0), 0.0, 4.0)
    tracker = tracker.read_until(5.5, began_s=5.0)
    assert reading(tracker, 6.0, 9.9).liveness("n1", 9.9) is not DOWN
    assert reading(tracker, 6.0, 10.1).liveness("n1", 10.1) is DOWN


@pytest.mark.parametrize("gap_s", [0.5, READING_GAP_S])
def test_quiet_partition_is_no_gap(gap_s: float) -> None:
    tracker = started().seen("n1", 0.0)
    steps = int(TIMEOUT_S / gap_s) + 1
    for step in range(1, steps + 1):
        tracker = tracker.read_until(step * gap_s)
    assert tracker.liveness("n1", steps * gap_s) is DOWN


def test_older_confirmation_changes_nothing() -> None:
    tracker = reading(started(), 0.0, 4.0)
    assert tracker.read_until(3.0) == tracker
