"""A dead node, at every replication factor and in every state of an operation.

Before the point of no return the operation is rolled back and names the dead node. After it the wait names
the missing node. A bystander delays an operation for no longer than the patience.
"""

import pytest

from stele.coordinator.steps import Limits
from stele.domain.commands import Cancel, CreateKeyspace, DropKeyspace, Leave, SetSetting
from stele.domain.names import NodeState, RequestStatus, TransitionState
from tests.coordinator.stories import error_of, reach, status_of, undoing
from tests.coordinator.waits import blockers
from tests.coordinator.world import World, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState
BEFORE = (STATE.JOIN_GROUP0, STATE.COMMIT_CDC_GENERATION, STATE.WRITE_BOTH_READ_OLD)
AFTER = (STATE.WRITE_BOTH_READ_NEW, STATE.FINISHING)
LONG_S = 200.0


def begun(operation: str, state: TransitionState, rf: int, *, fenced: bool | None = False) -> World:
    """Return a join of a2 or a leave of c1 at its barrier in a state. No node has answered its stream order."""
    world = undoing(three_nodes(rf))
    if operation == "join":
        world.add("a2")
    else:
        if rf == 3:
            world.add("c2")
            world.run()
        assert world.apply(Leave("c1"), "leave-c1") is None
    for node in world.nodes.values():
        node.mute = state in BEFORE
    reach(world, request_of(operation), state, fenced=fenced)
    return world


def request_of(operation: str) -> str:
    return "join-a2" if operation == "join" else "leave-c1"


def missing(world: World) -> set[str]:
    return {b.node_id for b in blockers(world.brain.steps)}


@pytest.mark.parametrize("rf", [1, 2, 3])
@pytest.mark.parametrize(
    ("state", "fenced"),
    [
        (STATE.JOIN_GROUP0, False),
        (STATE.COMMIT_CDC_GENERATION, False),
        (STATE.WRITE_BOTH_READ_OLD, False),
        (STATE.WRITE_BOTH_READ_OLD, True),
    ],
)
def test_join_of_a_node_that_dies_is_rolled_back_with_its_name(
    state: TransitionState, *, fenced: bool, rf: int
) -> None:
    world = begun("join", state, rf, fenced=fenced)
    world.nodes["a2"].alive = False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert "a2" in error_of(world, "join-a2")
    assert world.state("a2") is NodeState.LEFT


@pytest.mark.parametrize("rf", [1, 2, 3])
@pytest.mark.parametrize("operation", ["join", "leave"])
def test_dead_replica_during_streaming_rolls_back_and_is_named(operation: str, rf: int) -> None:
    """The dead replica has some of the ranges. With a quorum left the others may continue without it."""
    world = begun(operation, STATE.WRITE_BOTH_READ_OLD, rf)
    world.nodes["b1"].alive = False
    world.until(
        lambda: status_of(world, request_of(operation)) is not RequestStatus.RUNNING,
        "the request to end",
    )
    assert status_of(world, request_of(operation)) is RequestStatus.FAILED
    assert "b1" in error_of(world, request_of(operation))
    expected = NodeState.LEFT if operation == "join" else NodeState.NORMAL
    assert world.state("a2" if operation == "join" else "c1") is expected


@pytest.mark.parametrize("rf", [1, 2, 3])
@pytest.mark.parametrize("dead", ["a1", "b1", "c1"])
@pytest.mark.parametrize("state", BEFORE)
def test_cancel_with_a_dead_node_always_ends(state: TransitionState, dead: str, rf: int) -> None:
    world = begun("join", state, rf)
    world.nodes[dead].alive = False
    world.pass_s(1)
    if status_of(world, "join-a2") is RequestStatus.RUNNING:
        assert world.apply(Cancel("join-a2"), "cancel") is None
    world.until(lambda: status_of(world, "join-a2") is not RequestStatus.RUNNING, "the end", 100)
    assert status_of(world, "join-a2") is RequestStatus.CANCELLED


@pytest.mark.parametrize("state", AFTER)
def test_wait_after_the_point_of_no_return_names_the_missing_node(state: TransitionState) -> None:
    world = begun("join", state, rf=1, fenced=None)
    for node in world.nodes.values():
        node.applies = False
    world.nodes["a2"].alive = False
    world.pass_s(1)
    for name in ("a1", "b1", "c1"):
        world.nodes[name].applies = True
    world.pass_s(LONG_S)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    assert missing(world) == {"a2"}
    assert all(b.silent_for_s > LONG_S / 2 for b in blockers(world.brain.steps))
    assert code_of(world.apply(Cancel("join-a2"))) == "past_point_of_no_return"
    world.nodes["a2"].alive = world.nodes["a2"].applies = True
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


@pytest.mark.parametrize("rf", [2, 3])
def test_drop_that_has_quorums_without_the_dead_node_continues(rf: int) -> None:
    world = three_nodes(rf=3)
    world.nodes["b1"].alive = False
    world.pass_s(rf * 5)
    assert world.apply(DropKeyspace("library"), "drop") is None
    took_s = world.until(lambda: status_of(world, "drop") is RequestStatus.DONE, "the drop")
    assert took_s <= 2 * Limits().barrier_patience_s
    assert world.image.schema.named("library") is None


def test_drop_without_quorums_waits_and_names_the_dead_node() -> None:
    world = three_nodes(rf=1)
    world.nodes["b1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    assert world.apply(DropKeyspace("library"), "drop") is None
    world.pass_s(LONG_S)
    assert status_of(world, "drop") is RequestStatus.PENDING
    assert missing(world) == {"b1"}
    undoing(world)
    world.until(lambda: status_of(world, "drop") is RequestStatus.FAILED, "the rejection", 60)
    assert error_of(world, "drop").startswith("Canceled. Dead nodes: b1. ")
    world.nodes["b1"].alive = True
    assert world.apply(DropKeyspace("library"), "drop again") is None
    world.run()
    assert status_of(world, "drop again") is RequestStatus.DONE


def test_drop_without_quorums_does_not_block_a_cancelled_join() -> None:
    world = three_nodes(rf=1)
    assert world.apply(CreateKeyspace("wide", {"dc1": 3})) is None
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD)
    world.nodes["b1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    assert world.apply(DropKeyspace("library"), "drop") is None
    assert world.apply(Cancel("join-a2"), "cancel") is None
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.CANCELLED, "the cancel", 60)


@pytest.mark.parametrize("state", BEFORE)
def test_joint_join_continues_without_the_node_that_died(state: TransitionState) -> None:
    world = undoing(three_nodes())
    world.add("a2 b2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", state, fenced=False)
    assert world.transition("join-a2").nodes() == ("a2", "b2")
    world.nodes["a2"].alive = False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert status_of(world, "join-b2") is RequestStatus.DONE


def test_step_that_exceeds_the_time_limit_is_rolled_back() -> None:
    """The limit may be set while the step runs."""
    world = three_nodes()
    world.limits = Limits(silence_s=10_000)
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD)
    world.pass_s(100)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    assert world.apply(SetSetting("step_time_limit_s", "100000")) is None
    world.pass_s(10)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    assert world.apply(SetSetting("step_time_limit_s", "60")) is None
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.FAILED, "the end", 30)
    assert "step_time_limit_s" in error_of(world, "join-a2")
