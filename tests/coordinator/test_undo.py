"""Operations that cannot continue: dead nodes, cancels, rollbacks, and reads that must not move."""

from stele.coordinator.steps import Limits
from stele.domain.commands import Cancel, DropKeyspace
from stele.domain.names import NodeState, RequestStatus, TransitionState
from tests.coordinator.stories import error_of, joining, reach, status_of, undoing
from tests.coordinator.waits import blockers
from tests.coordinator.world import World, empty_cluster, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState


# Dead nodes.


def test_join_waits_for_needed_dead_nodes_without_a_limit() -> None:
    world = three_nodes(rf=3)
    world.nodes["b1"].alive = world.nodes["c1"].alive = False
    world.pass_s(6)
    world.replace_brain()
    world.add("a2")
    steps = world.pass_s(5 * Limits().dead_node_patience_s)
    assert status_of(world, "join-a2") is RequestStatus.PENDING
    assert [b.node_id for b in blockers(steps)] == ["b1", "c1"]
    world.nodes["b1"].alive = True
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join")


def test_flapping_node_does_not_delay_the_rejection_of_a_drop() -> None:
    world = undoing(three_nodes(rf=1))
    world.nodes["b1"].alive = False
    world.pass_s(6)
    assert world.apply(DropKeyspace("library"), "drop") is None
    for _ in range(6):
        world.nodes["c1"].alive = not world.nodes["c1"].alive
        world.pass_s(8)
    error = error_of(world, "drop")
    assert error.startswith("Canceled. Dead nodes: b1. Start them: 2 ranges (")
    assert error.endswith("of library may have acknowledged writes that no other live node has.")
    assert "exclude" not in error


def test_only_node_that_dies_during_its_join_does_not_lock_the_cluster() -> None:
    world = undoing(empty_cluster())
    world.add("a1")
    reach(world, "join-a1", STATE.JOIN_GROUP0, fenced=False)
    world.nodes["a1"].alive = False
    world.add("b1")
    world.until(lambda: world.state("a1") is NodeState.LEFT, "a1 to be given up")
    world.until(lambda: world.state("b1") is NodeState.NORMAL, "b1 to join")


# Rollbacks.


def test_cancel_before_the_fence_uses_no_third_version() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=False)
    version = world.version
    assert world.apply(Cancel("join-a2")) is None
    topology = world.image.topology
    assert topology.version == version == topology.fence_version + 1
    assert world.transition("join-a2").mark
    assert code_of(world.apply(Cancel("join-a2"), "again")) == "past_point_of_no_return"


# A joining node that has its data and dies before reads move to it.


def _all_streamed_and_dead() -> World:
    """Return a world in which a2 has streamed, and its report arrives after it counts as down."""
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    node = world.nodes["a2"]
    world.until(lambda: node.orders, "the order to stream")
    world.pass_s(2)
    node.alive = False
    world.pass_s(Limits().down_after_s + 1)
    for order in [order for each in world.nodes.values() for order in each.orders]:
        world.report(order)
    return world


def test_reads_move_once_the_joining_node_is_back() -> None:
    world = _all_streamed_and_dead()
    world.pass_s(2)
    world.nodes["a2"].alive, world.nodes["a2"].mute = True, False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_join_is_rolled_back_if_its_node_does_not_return() -> None:
    world = undoing(_all_streamed_and_dead())
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert world.state("a2") is NodeState.LEFT
