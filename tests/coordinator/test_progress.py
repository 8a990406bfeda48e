"""Progress: sums, rate over a window, time left, and the waits of each transition."""

from itertools import pairwise

import msgspec
import pytest

from stele.coordinator.model import Observed
from stele.coordinator.progress import WINDOW_S, StreamRate, StreamRates, progress_of
from stele.domain.commands import SetSetting
from stele.domain.messages import ReportTable
from stele.domain.model.settings import MIB
from stele.domain.names import OrderKind, ReportStatus, TransitionState
from stele.runtime.answers.coordinator import Progress
from tests.coordinator.stories import joining
from tests.coordinator.world import World, report_of


def _streaming() -> World:
    world = joining(TransitionState.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    return world


def _shown(world: World, reports: ReportTable, rates: StreamRates) -> Progress:
    brain = world.brain
    seen = Observed(world.image, brain.acks, reports, brain.term, world.now_s)
    return progress_of(seen, world.limits, rates, brain.steps.waits, active=True)


def test_rate_is_bytes_over_the_window() -> None:
    rate = StreamRate()
    for second in range(60):
        rate = rate.with_sample(float(second), 100 * second)
    assert rate.bytes_per_s() == 100
    assert len(rate.samples) <= WINDOW_S + 2


def test_rate_is_unknown_at_first_and_without_progress() -> None:
    rate = StreamRate().with_sample(0.0, 0)
    assert rate.bytes_per_s() is None
    assert rate.with_sample(5.0, 0).bytes_per_s() is None


def test_time_left_never_grows_while_pages_arrive_at_a_steady_rate() -> None:
    """Between two pages no byte arrives, which does not count as slow."""
    rate, page, left = StreamRate(), 500, list[float]()
    for look in range(120):
        now_s = look / 4
        done = page * int(now_s / 3)  # a page every 3 s
        rate = rate.with_sample(now_s, done)
        bytes_per_s = rate.bytes_per_s()
        if bytes_per_s is not None:
            left.append((10_000 - done) / bytes_per_s - rate.since_s())
    assert len(left) > 100
    assert all(later <= before + 1e-6 for before, later in pairwise(left))


def test_late_page_lowers_the_rate_and_a_missing_page_makes_it_unknown() -> None:
    rate = StreamRate().with_sample(0.0, 0).with_sample(2.0, 200)
    assert rate.with_sample(4.0, 200).bytes_per_s() == 100
    assert rate.with_sample(6.0, 200).bytes_per_s() == 50
    assert rate.with_sample(2.0 + WINDOW_S, 200).bytes_per_s() is None


def test_rate_limit_gives_a_minimum_time_before_any_data_arrives() -> None:
    world = _streaming()
    order = world.orders("a2")[-1]
    report = msgspec.structs.replace(
        report_of(order, ReportStatus.RUNNING), bytes_total=3 * MIB, bytes_done=0
    )
    reports = ReportTable().with_report(report, 0.0)
    rates = (
        StreamRates()
        .with_samples(world.image, reports, 0.0)
        .with_samples(world.image, reports, 3.0)
    )
    (shown,) = _shown(world, reports, rates).transitions
    assert (shown.eta_s, shown.eta_at_least) == (None, False)
    assert world.apply(SetSetting("stream_mib_per_s", "1")) is None
    (shown,) = _shown(world, reports, rates).transitions
    assert (shown.eta_s, shown.eta_at_least) == (3, True)
    fast = msgspec.structs.replace(report, bytes_done=MIB)
    reports = ReportTable().with_report(fast, 0.0)
    (shown,) = _shown(world, reports, rates.with_samples(world.image, reports, 3.1)).transitions
    assert shown.eta_s == pytest.approx(6.2)
    assert not shown.eta_at_least
    still = rates.with_samples(world.image, ReportTable().with_report(report, 0.0), WINDOW_S + 1)
    (shown,) = _shown(world, ReportTable().with_report(report, 0.0), still).transitions
    assert shown.eta_s is None


def test_time_left_respects_the_rate_limit() -> None:
    """Data that arrived before the limit was set arrived faster."""
    world = _streaming()
    order = world.orders("a2")[-1]
    report = msgspec.structs.replace(
        report_of(order, ReportStatus.RUNNING), bytes_total=30 * MIB, bytes_done=20 * MIB
    )
    reports = ReportTable().with_report(report, 0.0)
    rates = StreamRates().with_samples(world.image, ReportTable(), 0.0)
    rates = rates.with_samples(world.image, reports, 1.0)
    assert world.apply(SetSetting("stream_mib_per_s", "1")) is None
    (shown,) = _shown(world, reports, rates).transitions
    assert (shown.eta_s, shown.eta_at_least) == (10, False)


def test_rate_of_a_closed_session_is_dropped() -> None:
    world = _streaming()
    report = report_of(world.orders("a2")[-1], ReportStatus.RUNNING, bytes_done=40)
    reports = ReportTable().with_report(report, 0.0)
    rates = StreamRates().with_samples(world.image, ReportTable(), 0.0)
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
    rates = (
        StreamRates().with_samples(world.image, before, 0.0).with_samples(world.image, reports, 2.0)
    )
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
    shown = _shown(world, reports, StreamRates())
    assert shown.transitions == () and shown.cleanups == {}


def test_cleanup_is_shown_by_node() -> None:
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
    shown = _shown(world, ReportTable().with_report(report, 0.0), StreamRates())
    assert shown.cleanups["a1"].bytes_done == 7
