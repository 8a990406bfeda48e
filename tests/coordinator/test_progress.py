"""How progress is shown: sums, rate over a window, time left, and what each transition waits for."""

from stele.coordinator.knowledge import Observed
from stele.coordinator.progress import WINDOW_S, Rate, Rates, progress_of
from stele.domain.names import OrderKind, ReportStatus, TransitionState
from stele.domain.reports import ReportTable
from stele.runtime.answers.coordinator import Progress
from tests.coordinator.stories import joining
from tests.coordinator.world import World, report_of


def _streaming() -> World:
    world = joining(TransitionState.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    return world


def _shown(world: World, reports: ReportTable, rates: Rates) -> Progress:
    brain = world.brain
    seen = Observed(world.image, brain.acks, reports, brain.term, world.now_s)
    return progress_of(seen, world.limits, rates, brain.steps.waits, active=True)


def test_a_rate_is_bytes_over_the_window() -> None:
    rate = Rate()
    for second in range(60):
        rate = rate.with_sample(float(second), 100 * second)
    assert rate.bytes_per_s() == 100
    assert len(rate.samples) <= WINDOW_S + 2


def test_a_rate_is_unknown_at_first_and_when_nothing_moves() -> None:
    rate = Rate().with_sample(0.0, 0)
    assert rate.bytes_per_s() is None
    assert rate.with_sample(5.0, 0).bytes_per_s() is None


def test_a_session_that_is_closed_takes_its_rate_with_it() -> None:
    world = _streaming()
    report = report_of(world.orders("a2")[-1], ReportStatus.RUNNING, bytes_done=40)
    reports = ReportTable().with_report(report, 0.0)
    rates = Rates().with_samples(world.image, ReportTable(), 0.0)
    rates = rates.with_samples(world.image, reports, 1.0)
    assert rates.of(report.session).bytes_per_s() == 40
    world.nodes["a2"].mute = False
    world.run()
    assert rates.with_samples(world.image, reports, 2.0).of(report.session).bytes_per_s() is None


def test_progress_names_the_step_its_nodes_and_the_time_left() -> None:
    world = _streaming()
    order = world.orders("a2")[-1]
    report = report_of(order, ReportStatus.RUNNING, bytes_done=40)
    reports = ReportTable().with_report(report, 0.0)
    before = ReportTable().with_report(report_of(order, ReportStatus.RUNNING, bytes_done=20), 0.0)
    rates = Rates().with_samples(world.image, before, 0.0).with_samples(world.image, reports, 2.0)
    progress = _shown(world, reports, rates)
    (shown,) = progress.transitions
    assert (shown.kind, shown.state) == ("join", TransitionState.WRITE_BOTH_READ_OLD)
    assert shown.request_ids == ("join-a2",)
    assert list(shown.nodes) == ["a2"]
    assert (shown.bytes_done, shown.bytes_total, shown.bytes_per_s) == (40, 100, 10)
    assert shown.eta_s == 6
    assert "a2" in shown.waiting_for
    assert [b.node_id for b in shown.blockers] == ["a2"]


def test_reports_of_another_session_are_not_shown() -> None:
    world = _streaming()
    report = report_of(world.orders("a2")[-1], ReportStatus.RUNNING)
    reports = ReportTable().with_report(report, 0.0)
    world.nodes["a2"].mute = False
    world.run()
    shown = _shown(world, reports, Rates())
    assert shown.transitions == () and shown.cleanups == {}


def test_a_cleanup_is_shown_by_its_node() -> None:
    world = _streaming()
    world.nodes["a1"].mute = True
    world.nodes["a2"].mute = False
    world.until(lambda: world.image.membership.nodes["a1"].cleanup_since, "the cleanup")
    session = world.image.membership.nodes["a1"].cleanup_session()
    world.until(lambda: world.orders("a1", OrderKind.CLEANUP), "the order")
    report = report_of(
        world.orders("a1", OrderKind.CLEANUP)[-1], ReportStatus.RUNNING, bytes_done=7
    )
    assert report.session == session
    shown = _shown(world, ReportTable().with_report(report, 0.0), Rates())
    assert shown.cleanups["a1"].bytes_done == 7
