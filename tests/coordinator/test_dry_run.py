"""A dry run reports start, wait or failure and the bytes to move, and the coordinator then agrees."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.coordinator.dry_run import dry_run, largest_sources, with_sizes
from stele.coordinator.model import Observed
from stele.coordinator.progress import StreamRates
from stele.domain.base import Rejection
from stele.domain.commands import AnyCommand, NoopRequest, Remove, SetSetting
from stele.domain.messages import ReportTable
from stele.domain.model.settings import MIB
from stele.domain.names import ReportStatus, RequestStatus, TransitionState, WaitKind
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from tests.coordinator.stories import joining
from tests.coordinator.test_dead_node_removal import two_of_a_rack
from tests.coordinator.test_preflight import ASK, Choices, bounded, envelope, quiet
from tests.coordinator.test_preflight import joining as join_of
from tests.coordinator.world import World, report_of, three_nodes

STATE = TransitionState
replace = msgspec.structs.replace


def asked(world: World, *commands: AnyCommand) -> PlanAnswer | Rejection:
    brain = world.brain
    seen = Observed(world.image, brain.acks, brain.reports, brain.term, world.now_s)
    first, *rest = map(envelope, commands)
    others = (replace(each, request_id=f"{ASK}-{n}") for n, each in enumerate(rest))
    return dry_run(brain.memory, seen, world.limits, first, *others)


def planned(world: World, *commands: AnyCommand) -> PlanAnswer:
    found = asked(world, *commands)
    assert isinstance(found, PlanAnswer), found
    return found


def test_possible_join_would_start_without_an_ack_of_the_new_node() -> None:
    world = three_nodes()
    world.pass_s(1)
    found = planned(world, join_of("a2", "a"))
    assert (found.verdict, found.wait, found.failure) == (PlanVerdict.STARTS, None, None)


def test_joint_removal_is_planned_and_executed_as_one_operation() -> None:
    world = two_of_a_rack(excluded=False)
    world.pass_s(6)
    both = Remove(node_id="b1"), Remove(node_id="b2")
    assert "b2" in planned(world, both[0]).plan.receivers
    found = planned(world, *both)
    assert [r.node_id for r in found.plan.requests()] == ["b1", "b2"]
    assert found.plan.excludes == ("b1", "b2")
    assert not {"b1", "b2"} & {*found.plan.receivers}
    assert {"b1", "b2"} <= {*found.plan.tokens}
    assert found.verdict is PlanVerdict.WAITS
    assert found.wait is not None and found.wait.kind is WaitKind.SILENCE
    for number, command in enumerate(both):
        assert world.apply(command, f"remove-{number}") is None
    world.until(lambda: world.image.topology.of_request("remove-0"), "the removal")
    transition = world.transition("remove-0")
    for placement in found.plan.placements:
        assert len(transition.plans[placement.placement].rows) == placement.changing


def test_joint_removal_of_excluded_nodes_would_start_at_once() -> None:
    world = two_of_a_rack(excluded=True)
    world.pass_s(1)
    found = planned(world, Remove(node_id="b1"), Remove(node_id="b2"))
    assert found.verdict is PlanVerdict.STARTS
    refused = planned(world, Remove(node_id="b1"))
    assert refused.verdict is PlanVerdict.FAILS
    assert refused.failure is not None and refused.failure.code == "dead_would_receive"


def test_incompatible_requests_are_not_planned_together() -> None:
    world = two_of_a_rack(excluded=True)
    mixed = asked(world, Remove(node_id="b1"), NoopRequest())
    assert isinstance(mixed, Rejection) and mixed.code == "not_together"
    alike = asked(world, NoopRequest(), NoopRequest())
    assert isinstance(alike, Rejection) and alike.code == "not_together"
    nine = asked(world, *[join_of(f"n{n}", "a") for n in range(9)])
    assert isinstance(nine, Rejection) and nine.code == "too_many_together"
    second = asked(world, Remove(node_id="b1"), Remove(node_id="b1"))
    assert isinstance(second, Rejection) and second.code == "request_in_progress"


@bounded
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_dry_run_predicts_start_wait_or_failure(seed: int, choice: int) -> None:
    world = quiet(seed)
    command = Choices(world, choice).command()
    world.pass_s(1)
    memory, epochs = world.brain.memory, len(world.epochs)
    found = asked(world, command)
    assert (world.brain.memory, len(world.epochs)) == (memory, epochs)
    assert (world.submit(envelope(command))) == (found if isinstance(found, Rejection) else None)
    if isinstance(found, Rejection):
        return
    world.tick()
    if found.verdict is PlanVerdict.STARTS:
        assert world.image.requests.requests[ASK].status is not RequestStatus.PENDING
    if found.verdict is PlanVerdict.WAITS:
        waits = [wait for wait in world.brain.steps.waits if ASK in wait.request_ids]
        assert found.wait is not None
        assert [(w.kind, w.what) for w in waits] == [(found.wait.kind, found.wait.waiting_for)]
    world.run()
    failed = world.image.requests.requests[ASK].status is RequestStatus.FAILED
    assert failed == (found.verdict is PlanVerdict.FAILS)


def test_sizes_are_the_share_of_the_data_of_their_sources() -> None:
    world = three_nodes(rf=3)
    world.pass_s(1)
    found = planned(world, join_of("a2", "a"))
    assert largest_sources(found.plan) == ["a1"]
    share = found.plan.placements[0].nodes["a2"].after
    sized = with_sizes(found, world.image, _held(world, a1=1_000_000), 50_000.0)
    (stream,) = sized.streams
    assert stream.size_bytes == sized.size_bytes == round(share * 1_000_000)
    assert stream.duration_s == pytest.approx(share * 20)
    assert sized.duration_s == stream.duration_s


def _held(world: World, **size_bytes: int) -> dict[str, dict[str, int]]:
    """Bytes by node, and by the id of the only data."""
    (data,) = world.image.schema.all_data()
    return {node_id: {data.data_id: size} for node_id, size in size_bytes.items()}


def test_sizes_are_unknown_without_reports_of_sources() -> None:
    world = three_nodes(rf=3)
    found = with_sizes(planned(world, join_of("a2", "a")), world.image, {}, 50_000.0)
    assert (found.size_bytes, found.duration_s) == (None, None)
    found = with_sizes(
        planned(world, join_of("a2", "a")), world.image, _held(world, a1=9_000), None
    )
    assert found.size_bytes and found.duration_s is None


def test_duration_respects_the_stream_rate_limit() -> None:
    world = three_nodes(rf=3)
    plan, held = planned(world, join_of("a2", "a")), _held(world, a1=30 * MIB)
    assert world.apply(SetSetting("stream_mib_per_s", "1")) is None
    share = plan.plan.placements[0].nodes["a2"].after
    found = with_sizes(plan, world.image, held, 77.0 * MIB)
    assert (found.bytes_per_s, found.at_least) == (MIB, False)
    assert found.duration_s == pytest.approx(30 * share)
    slow = with_sizes(plan, world.image, held, MIB / 2)
    assert slow.bytes_per_s == MIB / 2
    unknown = with_sizes(plan, world.image, held, None)
    assert (unknown.bytes_per_s, unknown.at_least) == (MIB, True)
    assert unknown.duration_s == found.duration_s


def test_node_that_needs_two_sources_receives_one_in_full() -> None:
    world = three_nodes(rf=3)
    world.add("a2")
    world.run()
    found = planned(world, Remove(node_id="b1"))
    assert isinstance(found, PlanAnswer)
    needed = {gain.needed for gain in found.plan.gains}
    assert needed == {2}
    held = _held(world, a1=900, a2=900, c1=900)
    sized = with_sizes(found, world.image, held, 1.0)
    gained = sum(gain.share for gain in found.plan.gains)
    assert gained == pytest.approx(1)
    assert sized.size_bytes is not None and 900 < sized.size_bytes < 900 * 2


def test_stream_rate_of_a_node_is_remembered_after_the_stream() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    order = world.orders("a2")[-1]
    few, many = (
        ReportTable().with_report(report_of(order, ReportStatus.RUNNING, bytes_done=count), 0.0)
        for count in (40, 4_000_000)
    )
    rates = StreamRates().with_samples(world.image, ReportTable(), 0.0)
    assert rates.newest_of_node is None
    assert rates.with_samples(world.image, few, 2.0).newest_of_node is None, "40 bytes are no rate"
    rates = rates.with_samples(world.image, many, 2.0).with_samples(world.image, many, 9.0)
    world.nodes["a2"].mute = False
    world.run()
    assert rates.with_samples(world.image, many, 10.0).newest_of_node == 2_000_000
