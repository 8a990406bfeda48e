"""What becomes of operations that cannot go on: dead nodes, cancels, the ways back, no way back."""

import pytest

from stele.coordinator.steps import Limits
from stele.domain.commands import Cancel, CreateKeyspace, Leave
from stele.domain.names import NodeState, RequestStatus, TransitionState
from tests.coordinator.stories import error_of, joining, reach, status_of
from tests.coordinator.world import World, empty_cluster, three_nodes

STATE = TransitionState


# Dead nodes.


def test_a_request_waits_for_dead_nodes_and_is_then_rejected() -> None:
    world = three_nodes()
    world.nodes["b1"].alive = False
    world.pass_s(6)
    world.add("a2")
    steps = world.pass_s(20)
    assert [b.node_id for b in steps.blockers] == ["b1"]
    took_s = 20 + world.run()
    assert took_s >= Limits().dead_node_patience_s
    assert world.image.requests.requests["join-a2"].error.startswith(
        "Canceled. Dead nodes: b1. Start them; or if they are dead for good, `stele exclude b1`,"
    )
    assert world.state("a2") is NodeState.LEFT


def test_a_request_starts_when_the_dead_node_comes_back_in_time() -> None:
    world = three_nodes()
    world.nodes["b1"].alive = False
    world.pass_s(6)
    world.add("a2")
    world.pass_s(20)
    world.nodes["b1"].alive = True
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_a_node_that_comes_and_goes_does_not_keep_a_request_with_another_dead_one_waiting() -> None:
    world = three_nodes()
    world.nodes["b1"].alive = False
    world.pass_s(6)
    world.add("a2")
    for _ in range(6):
        world.nodes["c1"].alive = not world.nodes["c1"].alive
        world.pass_s(8)
    assert status_of(world, "join-a2") is RequestStatus.FAILED


def test_a_request_is_rejected_though_too_few_are_left_for_a_quorum() -> None:
    world = three_nodes()
    world.nodes["b1"].alive = world.nodes["c1"].alive = False
    world.pass_s(6)
    world.replace_brain()
    world.add("a2")
    world.run(limit_s=100)
    assert status_of(world, "join-a2") is RequestStatus.FAILED


@pytest.mark.parametrize(
    "state", [STATE.JOIN_GROUP0, STATE.COMMIT_CDC_GENERATION, STATE.WRITE_BOTH_READ_OLD]
)
def test_a_join_whose_node_dies_is_rolled_back(state: TransitionState) -> None:
    world = joining(state, fenced=False)
    world.nodes["a2"].alive = False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert "a2" in error_of(world, "join-a2")


def test_the_only_node_that_dies_while_it_joins_does_not_lock_the_cluster() -> None:
    world = empty_cluster()
    world.add("a1")
    reach(world, "join-a1", STATE.JOIN_GROUP0, fenced=False)
    world.nodes["a1"].alive = False
    world.until(lambda: world.state("a1") is NodeState.LEFT, "a1 to be given up")
    world.add("b1")
    world.until(lambda: world.state("b1") is NodeState.NORMAL, "b1 to join")


# The ways back.


@pytest.mark.parametrize(
    ("state", "fenced"),
    [
        (STATE.JOIN_GROUP0, False),
        (STATE.WRITE_BOTH_READ_OLD, False),
        (STATE.WRITE_BOTH_READ_OLD, True),
    ],
)
def test_a_cancelled_join_goes_back(state: TransitionState, *, fenced: bool) -> None:
    world = joining(state, fenced=fenced)
    assert world.apply(Cancel("join-a2")) is None
    world.run(limit_s=60)
    assert status_of(world, "join-a2") is RequestStatus.CANCELLED
    assert world.state("a2") is NodeState.LEFT


@pytest.mark.parametrize("fenced", [False, True])
def test_a_cancelled_leave_goes_back(*, fenced: bool) -> None:
    world = three_nodes()
    world.nodes["a1"].mute = world.nodes["b1"].mute = True
    world.apply(Leave("c1"), "leave-c1")
    reach(world, "leave-c1", STATE.WRITE_BOTH_READ_OLD, fenced=fenced)
    assert world.apply(Cancel("leave-c1")) is None
    world.nodes["a1"].mute = world.nodes["b1"].mute = False
    world.run(limit_s=60)
    assert status_of(world, "leave-c1") is RequestStatus.CANCELLED
    assert world.state("c1") is NodeState.NORMAL


def test_a_cancel_before_the_fence_takes_no_third_version_into_use() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=False)
    version = world.version
    assert world.apply(Cancel("join-a2")) is None
    topology = world.image.topology
    assert topology.version == version == topology.fence_version + 1
    assert world.transition("join-a2").mark
    rejection = world.apply(Cancel("join-a2"), "again")
    assert rejection is not None and rejection.code == "past_point_of_no_return"


def test_nothing_turns_round_after_the_point_of_no_return() -> None:
    world = three_nodes()
    world.add("a2")
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_NEW, fenced=False)
    rejection = world.apply(Cancel("join-a2"))
    assert rejection is not None and rejection.code == "past_point_of_no_return"
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_a_keyspace_counts_on_no_node_that_is_about_to_leave() -> None:
    world = three_nodes()
    world.apply(Leave("c1"), "leave-c1")
    rejection = world.apply(CreateKeyspace("wide", {"dc1": 3}))
    assert rejection is not None and rejection.code == "too_few_nodes"


# A joining node that has its data and dies before it is read from.


def _all_streamed_and_dead() -> World:
    """a2 has streamed; its report arrives when it has been silent for longer than who is up."""
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    node = world.nodes["a2"]
    world.until(lambda: node.orders, "the order to stream")
    world.pass_s(2)
    node.alive = False
    world.pass_s(Limits().down_after_s + 1)
    for order in [order for each in world.nodes.values() for order in each.orders]:
        world.report(order)
    return world


def test_reads_do_not_move_to_a_node_that_is_down() -> None:
    world = _all_streamed_and_dead()
    what = "a2 to be up before reads move there"
    world.until(lambda: what in [wait.what for wait in world.brain.steps.waits], "the wait", 20)
    (wait,) = world.brain.steps.waits
    assert [(b.node_id, b.why) for b in wait.blockers] == [("a2", "is down")]
    assert world.transition("join-a2").state is STATE.WRITE_BOTH_READ_OLD


def test_reads_move_once_it_is_back() -> None:
    world = _all_streamed_and_dead()
    world.pass_s(2)
    world.nodes["a2"].alive, world.nodes["a2"].mute = True, False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_the_join_is_undone_when_it_does_not_come_back() -> None:
    world = _all_streamed_and_dead()
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert world.state("a2") is NodeState.LEFT
