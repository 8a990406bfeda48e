"""Every rule of ``next_steps``, in virtual time. ``World`` checks the invariants at each epoch."""

import msgspec
import pytest

from stele.coordinator import model
from stele.coordinator.model import PlanCache
from stele.coordinator.steps import Limits, Observed, next_steps
from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.names import (
    NodeState,
    OrderKind,
    ReportStatus,
    RequestStatus,
    TransitionState,
)
from stele.domain.topology.planning import GroupPlan, plan_group
from tests.coordinator.stories import joining, reach, spread, status_of, undoing, wide
from tests.coordinator.waits import blockers, waiting_for
from tests.coordinator.world import TICK_S, World, report_of, three_nodes

STATE = TransitionState


def states(world: World, request_id: str) -> list[str]:
    """Return the states of a request's transition, without consecutive duplicates."""
    found: list[str] = []
    for image in world.images:
        transition = image.topology.of_request(request_id)
        if transition is not None and found[-1:] != [transition.state]:
            found.append(transition.state)
    return found


# Progress.


def test_join_goes_through_its_states() -> None:
    world = three_nodes()
    world.add("a2")
    world.run()
    assert states(world, "join-a2") == [
        STATE.JOIN_GROUP0, STATE.COMMIT_CDC_GENERATION, STATE.WRITE_BOTH_READ_OLD,
        STATE.WRITE_BOTH_READ_NEW, STATE.FINISHING,
    ]  # fmt: skip
    assert world.state("a2") is NodeState.NORMAL


def test_leave_goes_through_its_states() -> None:
    world = three_nodes()
    world.apply(Leave("c1"), "leave-c1")
    world.run()
    assert states(world, "leave-c1") == [
        STATE.WRITE_BOTH_READ_OLD, STATE.WRITE_BOTH_READ_NEW, STATE.LEFT_TOKEN_RING,
    ]  # fmt: skip
    assert world.state("c1") is NodeState.LEFT


def test_joins_open_together_and_a_leave_of_the_same_ranges_waits() -> None:
    world = three_nodes()
    world.apply(Leave("c1"), "leave-c1")
    world.add("a2 b2")
    world.run()
    requests = world.image.requests.requests
    joins = [requests[r] for r in ("join-a2", "join-b2")]
    assert {j.started_epoch for j in joins} == {joins[0].started_epoch}
    assert {j.finished_epoch for j in joins} == {joins[0].finished_epoch}
    assert joins[0].finished_epoch <= requests["leave-c1"].started_epoch


def test_number_of_joins_that_open_together_is_limited() -> None:
    world = three_nodes()
    world.limits = Limits(group=2)
    world.add("a2 a3 a4")
    world.run()
    starts = {world.image.requests.requests[f"join-a{i}"].started_epoch for i in (2, 3, 4)}
    assert len(starts) == 2


def test_operations_on_other_ranges_continue_next_to_a_long_stream() -> None:
    """Its session stays, and repeated orders are the same work."""
    world = wide()
    for node in world.nodes.values():
        node.mute = True
    world.apply(Leave("a1"), "leave-a1")
    reach(world, "leave-a1", STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: any(world.orders(n) for n in world.nodes), "the order to stream")
    slow = {n for n in world.nodes if world.orders(n)}
    session, version = world.transition("leave-a1").session, world.version
    for name, node in world.nodes.items():
        node.mute = name in slow
    for name in sorted({*world.nodes} - slow - {"a1"}):
        world.apply(Leave(name), f"leave-{name}")
    world.pass_s(45)
    assert world.version > version + 3
    assert RequestStatus.DONE in {r.status for r in world.image.requests.requests.values()
                                  if r.request_id.startswith("leave")}  # fmt: skip
    assert world.transition("leave-a1").session == session
    for name in slow:
        works = {order.work() for order in world.orders(name) if order.request_id == "leave-a1"}
        assert works == {(name, OrderKind.STREAM, session)}
        world.nodes[name].mute = False
    world.until(lambda: status_of(world, "leave-a1") is RequestStatus.DONE, "the long leave")


def test_request_that_conflicts_with_a_waiting_one_waits_behind_it() -> None:
    """Otherwise small requests could overtake a large one forever."""
    world = spread()
    world.nodes["a4"].mute = True  # a4 takes over from a3
    for name in ("a3", "a4", "a5", "a7"):
        assert world.apply(Leave(name), f"leave-{name}") is None
    world.until(lambda: status_of(world, "leave-a7") is RequestStatus.DONE, "one that is far away")
    assert status_of(world, "leave-a3") is RequestStatus.RUNNING
    assert status_of(world, "leave-a4") is RequestStatus.PENDING
    assert status_of(world, "leave-a5") is RequestStatus.PENDING
    waits = {i: wait.what for wait in world.brain.steps.waits for i in wait.request_ids}
    assert "leave-a3" in waits["leave-a4"]
    assert "leave-a4" in waits["leave-a5"]
    world.nodes["a4"].mute = False
    world.run()
    finished = [world.image.requests.requests[f"leave-a{i}"].finished_epoch for i in (3, 4, 5)]
    assert finished == sorted(finished)


def test_gaining_nodes_are_ordered_to_stream_in_the_open_session() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    order = world.orders("a2")[-1]
    transition = world.transition("join-a2")
    assert order.session == transition.session != ""
    assert order.epoch >= transition.entered_epoch
    assert order.request_id == "join-a2"


def test_no_order_is_sent_for_an_unsettled_version() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, rf=3)
    assert not world.orders("a2")
    world.nodes["b1"].applies = False
    world.pass_s(Limits().barrier_patience_s / 2)
    assert not world.orders("a2")
    world.until(lambda: world.orders("a2"), "the order, once b1 is fenced out")
    assert world.image.topology.settled()


def test_cleanup_runs_next_to_the_next_request() -> None:
    world = three_nodes()
    world.add("a2")
    world.until(lambda: world.image.membership.nodes["a1"].cleanup_since, "the cleanup")
    world.nodes["a1"].mute = True
    world.until(lambda: world.orders("a1", OrderKind.CLEANUP), "the order to clean up")
    world.add("b2")
    world.until(
        lambda: states(world, "join-b2")[-1:] == [STATE.WRITE_BOTH_READ_OLD], "the next join"
    )
    world.nodes["a1"].mute = False
    world.run()
    assert status_of(world, "join-b2") is RequestStatus.DONE


def test_failed_cleanup_blocks_no_other_request_and_is_retried() -> None:
    world = three_nodes()
    world.add("a2")
    world.until(lambda: world.image.membership.nodes["a1"].cleanup_since, "the cleanup")
    world.nodes["a1"].fails = 100
    world.add("b2")
    world.until(lambda: status_of(world, "join-b2") is RequestStatus.DONE, "the next join")
    failed = world.nodes["a1"].fails
    world.until(lambda: world.nodes["a1"].fails == failed - 3, "three failures")
    world.nodes["a1"].fails = 1
    world.pass_s(5)
    assert world.image.membership.nodes["a1"].cleanup_since
    orders = len(world.orders("a1", OrderKind.CLEANUP))
    steps = world.pass_s(Limits().silence_s / 2)
    assert len(world.orders("a1", OrderKind.CLEANUP)) == orders
    assert "disk full" in waiting_for(steps)
    world.run()
    assert not world.image.membership.nodes["a1"].cleanup_since


def test_node_that_returns_late_is_cleaned_up() -> None:
    world = three_nodes()
    world.add("a2")
    world.until(lambda: world.orders("a1", OrderKind.CLEANUP), "the order to clean up")
    world.nodes["a1"].alive = False
    world.pass_s(300)
    world.nodes["a1"].alive = True
    world.run()


# Barriers and fences.


def test_barrier_waits_for_every_node_and_names_the_blocker() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False)
    world.nodes["b1"].applies = False
    steps = world.pass_s(5)
    assert [b.node_id for b in blockers(steps)] == ["b1"]
    assert "has applied epoch" in blockers(steps)[0].why


def test_quorum_is_enough_after_the_patience() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False, rf=3)
    world.nodes["b1"].applies = False
    version = world.version
    took_s = world.until(lambda: world.image.topology.fence_version == version, "the fence")
    assert took_s >= Limits().barrier_patience_s - 1
    world.nodes["a2"].mute = False
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join without b1")


def test_patience_is_spent_once_per_node_across_rounds() -> None:
    world = three_nodes(rf=3)
    world.add("a2")
    world.until(lambda: world.version > world.images[-2].topology.version, "the first round")
    world.nodes["b1"].applies = False
    began_s = world.now_s
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join without b1")
    assert world.now_s - began_s < 2 * Limits().barrier_patience_s


def test_node_that_acknowledges_again_is_awaited_again() -> None:
    world = three_nodes(rf=3)
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.JOIN_GROUP0, fenced=False)
    world.nodes["b1"].applies = False
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD)
    assert world.brain.memory.left_out == {"b1"}
    world.nodes["b1"].applies = True
    world.pass_s(2)
    assert not world.brain.memory.left_out
    world.nodes["b1"].applies = world.nodes["a2"].mute = False
    world.until(lambda: world.orders("a2"), "the order")
    version = world.version
    world.until(lambda: world.version > version, "the next round")
    began_s = world.now_s
    world.until(world.fenced, "its fence")
    assert world.now_s - began_s >= Limits().barrier_patience_s - 1


def test_requests_of_an_older_version_block_the_barrier() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False)
    world.nodes["b1"].holds = 1
    steps = world.pass_s(5)
    assert "older than" in blockers(steps)[0].why
    world.nodes["b1"].holds = None
    world.nodes["a2"].mute = False
    world.run()


def test_fence_does_not_move_without_a_quorum() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=False)
    for name in ("a1", "b1", "c1"):
        world.nodes[name].applies = False
    version = world.version
    world.pass_s(25)
    assert world.image.topology.fence_version == version - 1


def test_steady_stream_of_requests_does_not_extend_the_patience() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False, rf=3)
    world.nodes["b1"].applies = False
    version, began_s, names = world.version, world.now_s, iter(range(1000))
    while world.image.topology.fence_version < version:
        world.add(f"c{100 + next(names)}")
        world.pass_s(2)
        assert world.now_s - began_s < 30, "the fence did not move"


# Work: retries and their limit.


def test_lost_order_is_sent_again() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.pass_s(5)
    orders = world.orders("a2")
    assert len(orders) >= 2
    assert [o.index for o in orders] == sorted({o.index for o in orders})
    assert len({o.work() for o in orders}) == 1


def test_last_attempt_is_awaited() -> None:
    """The failure of the previous attempt must not count for the started one."""
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].fails = 2
    world.until(lambda: len(world.orders("a2")) == 2, "two tries")
    world.nodes["a2"].mute = True
    world.until(lambda: len(world.orders("a2")) >= 3, "the third try")
    world.pass_s(5)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    world.nodes["a2"].mute = False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_only_the_first_of_several_waiting_joins_is_planned() -> None:
    """Its plan chooses tokens, which takes longer than the rest of a look; the others would wait behind it."""
    world = three_nodes()
    world.limits = Limits(group=1, company_s=0)
    world.add("a2 a3 a4", num_tokens=16)
    for node in ("a2", "a3", "a4"):
        world.nodes[node].mute = True
    world.pass_s(3)
    planned = {request_id for ids in world.brain.memory.plans.by_ids for request_id in ids}
    assert planned == {"join-a3"}
    waits = {wait.request_ids[0]: wait.other_request for wait in world.brain.steps.waits}
    assert (waits["join-a3"], waits["join-a4"]) == ("join-a2", "join-a3")


def test_work_without_progress_is_rolled_back_by_setting() -> None:
    world = undoing(joining(STATE.WRITE_BOTH_READ_OLD))
    took_s = world.run()
    assert took_s > Limits().silence_s - 1
    assert "no progress" in world.image.requests.requests["join-a2"].error


def test_work_with_progress_is_awaited() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    order = world.orders("a2")[-1]
    for done in range(1, 40):
        report = report_of(order, ReportStatus.RUNNING, bytes_done=done)
        world.brain.reports = world.brain.reports.with_report(report, world.now_s)
        world.pass_s(5)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING


@pytest.mark.parametrize("gets_further", [False, True])
def test_work_that_restarts_without_more_progress_is_rolled_back(gets_further: bool) -> None:
    """The node crashes at each attempt: the reported bytes increase, and each attempt starts from zero. A
    node with more progress at each attempt is awaited.
    """
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    for crash in range(10):
        for done in range(4 + (crash if gets_further else 0)):
            if not world.image.topology.transitions:
                break
            report = report_of(world.orders("a2")[-1], ReportStatus.RUNNING, bytes_done=done)
            world.brain.reports = world.brain.reports.with_report(report, world.now_s)
            world.pass_s(5)
    if gets_further:
        assert status_of(world, "join-a2") is RequestStatus.RUNNING
        return
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert "restarted to stream 3 times" in world.image.requests.requests["join-a2"].error


def test_unheard_node_is_awaited_briefly_to_join_the_group() -> None:
    world = three_nodes()
    world.add("a2 b2")
    world.nodes["b2"].alive = False
    waits = world.pass_s(2 * TICK_S).waits
    assert not world.image.topology.transitions
    assert [w.blockers[0].node_id for w in waits if "others" in w.what] == ["b2"]
    world.nodes["b2"].alive = True
    world.until(lambda: world.image.topology.transitions, "an opening")
    assert len(world.transition("join-a2").subjects) == 2


def test_unheard_node_does_not_block_the_join_of_another() -> None:
    world = three_nodes()
    world.add("a2 b2")
    world.nodes["b2"].alive = False
    took_s = world.until(lambda: world.image.topology.transitions, "an opening")
    assert len(world.transition("join-a2").subjects) == 1
    assert took_s <= world.limits.company_s + 2 * TICK_S


def test_sequence_of_unheard_nodes_does_not_block_a_join() -> None:
    """A supervisor restarts such nodes, each time with another name."""
    world = three_nodes()
    world.add("a2")
    for number in range(10):
        world.add(f"b{number}2")
        world.nodes[f"b{number}2"].alive = False
        world.pass_s(world.limits.company_s / 2)
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_equal_observations_give_equal_steps_with_and_without_cached_plans() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True)
    world.apply(Leave("c1"), "leave-c1")
    world.tick()
    brain, image = world.brain, world.image
    seen = Observed(image, brain.acks, brain.reports, brain.term, world.now_s)
    found = []
    for plans in (brain.memory.plans, brain.memory.plans, PlanCache()):
        memory = msgspec.structs.replace(brain.memory, plans=plans)
        steps = next_steps(memory, seen, world.limits)
        memory = msgspec.structs.replace(steps.memory, plans=plans)
        found.append((steps.commands, steps.orders, steps.waits, memory.timers, memory.orders))
    assert found[0] == found[1] == found[2]
    assert found[0][2], "the leave waits for room"


def test_waiting_request_is_planned_once_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Image] = []

    def counted(image: Image, requests: list[Request]) -> GroupPlan:
        planned.append(image)
        return plan_group(image, requests)

    monkeypatch.setattr(model, "plan_group", counted)
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True)
    world.apply(Leave("c1"), "leave-c1")
    for _ in range(3):
        world.tick()
    assert planned.count(world.image) == 1
    before = world.image
    assert world.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    world.tick()
    assert planned.count(before) == planned.count(world.image) == 1
