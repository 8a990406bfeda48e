"""How progress is shown: sums, rate over a window, time left."""

from __future__ import annotations

from stele.coordinator.progress import WINDOW_S, Rate, progress_of
from stele.domain.names import ReportStatus, TransitionState
from stele.domain.reports import ReportTable
from tests.coordinator.world import report_of, three_nodes


def test_a_rate_is_bytes_over_the_window() -> None:
    rate = Rate()
    for second in range(60):
        rate = rate.with_sample(7, float(second), 100 * second)
    assert rate.bytes_per_s() == 100
    assert len(rate.samples) <= WINDOW_S + 2


def test_a_rate_is_unknown_at_first_and_when_nothing_moves() -> None:
    rate = Rate().with_sample(7, 0.0, 0)
    assert rate.bytes_per_s() is None
    assert rate.with_sample(7, 5.0, 0).bytes_per_s() is None


def test_a_new_version_begins_a_new_rate() -> None:
    rate = Rate().with_sample(7, 0.0, 0).with_sample(7, 1.0, 100)
    assert rate.with_sample(8, 2.0, 0).bytes_per_s() is None


def test_progress_names_the_step_its_nodes_and_the_time_left() -> None:
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].mute = True
    world.until(lambda: world.orders("a2"), "the order")
    order = world.orders("a2")[-1]
    report = report_of(order, ReportStatus.RUNNING, bytes_done=40)
    reports = ReportTable().with_report(report, 0.0)
    rate = Rate().with_sample(order.version, 0.0, 20).with_sample(order.version, 1.0, 30)
    shown = progress_of(
        world.image, reports, rate, term=1, active=True, waiting_for="x", blockers=()
    )
    assert shown.transition_state == TransitionState.WRITE_BOTH_READ_OLD
    assert shown.request_id == "join-a2"
    assert list(shown.nodes) == ["a2"]
    assert (shown.bytes_done, shown.bytes_total, shown.bytes_per_s) == (40, 100, 10)
    assert shown.eta_s == 6


def test_reports_of_another_session_are_not_shown() -> None:
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].mute = True
    world.until(lambda: world.orders("a2"), "the order")
    report = report_of(world.orders("a2")[-1], ReportStatus.RUNNING)
    reports = ReportTable().with_report(report, 0.0)
    world.nodes["a2"].mute = False
    world.settle()
    shown = progress_of(
        world.image, reports, Rate(), term=1, active=True, waiting_for="", blockers=()
    )
    assert shown.nodes == {} and shown.eta_s is None and shown.request_id == ""
