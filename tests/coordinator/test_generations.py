"""CDC generations of operations: the tokens that they include, and how they end."""

import pytest

from stele.coordinator.steps import Limits
from stele.domain.commands import (
    Advance,
    AnyCommand,
    Cancel,
    Join,
    Leave,
    Move,
    MoveNode,
    NewCdcGeneration,
    Rejection,
)
from stele.domain.names import RequestStatus, TransitionState
from stele.domain.topology.planning import plan_group
from tests.coordinator.stories import error_of, joining, reach, spread, status_of, undoing
from tests.coordinator.world import SimNode, World, empty_cluster, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState


def ends(world: World) -> set[int]:
    """Return the ends of the newest committed generation's ranges."""
    newest = world.image.cdc.newest()
    if newest is None:
        return set()
    streams = newest.streams
    return {
        int.from_bytes(streams[at : at + 8], "big", signed=True)
        for at in range(0, len(streams), 16)
    }


def tokens(world: World) -> set[int]:
    return {*world.image.membership.ring_tokens()}


def generations(world: World) -> list[str]:
    return sorted(world.image.cdc.generations)


def join_at(world: World, name: str, token: int) -> None:
    world.nodes[name] = SimNode(name)
    asked = Join(
        node_id=name,
        cluster="demo",
        address=f"http://{name}",
        dc="dc1",
        rack="r",
        initial_tokens=(token,),
        host_id=f"host-{name}",
    )
    assert world.apply(asked, f"join-{name}") is None


def repair(world: World, *, force: bool = False) -> RequestStatus:
    assert world.apply(NewCdcGeneration(force=force), "repair") is None
    return status_of(world, "repair")


def test_first_node_creates_the_first_generation() -> None:
    world = empty_cluster()
    assert generations(world) == []
    world.add("a1")
    world.run()
    assert ends(world) == tokens(world) and len(generations(world)) == 1


def test_generation_is_visible_to_all_before_its_commit() -> None:
    world = joining(STATE.COMMIT_CDC_GENERATION, fenced=False)
    before = ends(world)
    waiting = world.image.cdc.of_transition("join-a2")
    assert waiting is not None and not waiting.committed_epoch
    world.nodes["b1"].applies = False
    world.pass_s(5)
    assert world.transition("join-a2").state is STATE.COMMIT_CDC_GENERATION
    assert ends(world) == before
    world.nodes["b1"].applies = True
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=None)
    assert ends(world) == before | {*world.image.membership.nodes["a2"].tokens}


def test_one_generation_includes_all_nodes_of_a_joint_join() -> None:
    world = three_nodes()
    before = generations(world)
    world.add("a2 b2 c2")
    world.run()
    assert ends(world) == tokens(world) and len(tokens(world)) == 12
    assert len(generations(world)) == len(before) + 1


def test_zero_token_node_creates_no_generation() -> None:
    world = three_nodes()
    before = generations(world)
    world.add("z1", rack="a", num_tokens=0)
    states: list[str] = []
    world.history.on_image = lambda image: states.extend(t.state for t in image.topology.open())
    world.run()
    assert generations(world) == before
    assert STATE.WRITE_BOTH_READ_OLD in states and STATE.COMMIT_CDC_GENERATION not in states


@pytest.mark.parametrize("first", ["x1", "x2"])
def test_parallel_joins_may_commit_in_any_order(first: str) -> None:
    """The coordinator moves them together, but a round that names only one of them is legal."""
    world = spread()
    world.limits = Limits(group=1)
    join_at(world, "x1", 150)
    join_at(world, "x2", 650)
    reach(world, "join-x2", STATE.COMMIT_CDC_GENERATION, fenced=False)
    assert world.transition("join-x1").state is STATE.COMMIT_CDC_GENERATION
    other = "x2" if first == "x1" else "x1"
    held = Rejection("held", "This test moves the transitions.")
    world.refuse = lambda envelope: held if envelope.actor == "coordinator" else None
    for name in (first, other):
        world.pass_s(1)
        topology, move = world.image.topology, Move(f"join-{name}", STATE.COMMIT_CDC_GENERATION)
        fence = not topology.settled()
        moving = Advance(term=1, version=topology.version, moves=(move,), fence=fence)
        assert world.apply(moving) is None
    world.refuse = lambda _envelope: None
    world.run()
    assert ends(world) == tokens(world) and {150, 650} <= ends(world)


def test_join_cancelled_before_the_commit_leaves_no_generation() -> None:
    world = joining(STATE.COMMIT_CDC_GENERATION, fenced=False)
    before = ends(world)
    assert world.apply(Cancel("join-a2")) is None
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.CANCELLED
    assert ends(world) == before == tokens(world)
    assert all(g.committed_epoch for g in world.image.cdc.generations.values())


def test_committed_generation_stays_after_a_rollback_and_can_be_repaired() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True)
    committed = generations(world)
    assert world.apply(Cancel("join-a2")) is None
    world.run()
    assert generations(world) == committed
    assert tokens(world) < ends(world), "smaller ranges than need be"
    assert repair(world) is RequestStatus.PENDING
    world.run()
    assert ends(world) == tokens(world)


def test_generation_request_during_a_join_includes_the_joining_node() -> None:
    world = joining(STATE.COMMIT_CDC_GENERATION, fenced=False)
    assert repair(world, force=True) is RequestStatus.PENDING
    world.nodes["a2"].mute = False
    for order in world.nodes["a2"].orders:
        world.report(order)
    world.run()
    assert status_of(world, "repair") is RequestStatus.DONE
    assert status_of(world, "join-a2") is RequestStatus.DONE
    assert ends(world) == tokens(world) and len(tokens(world)) == 8


def test_request_is_done_at_once_if_the_current_generation_fits() -> None:
    world = three_nodes()
    before = generations(world)
    assert repair(world) is RequestStatus.DONE
    assert generations(world) == before
    assert world.image.topology.of_request("repair") is None


def test_leave_creates_no_generation_and_a_request_repairs_it() -> None:
    world = three_nodes(rf=1)
    before = generations(world)
    assert world.apply(Leave("c1")) is None
    world.run()
    assert generations(world) == before
    assert tokens(world) < ends(world)
    assert repair(world) is RequestStatus.PENDING
    world.run()
    assert ends(world) == tokens(world)


def test_second_generation_request_is_refused_and_names_the_first() -> None:
    world = three_nodes()
    repair(world, force=True)
    refused = world.apply(NewCdcGeneration())
    assert refused is not None and refused.code == "cdc_generation_in_progress"
    assert refused.details == {"request_id": "repair"}


def test_generation_without_tokens_is_refused() -> None:
    assert code_of(empty_cluster().apply(NewCdcGeneration())) == "no_tokens_yet"


def test_request_cancelled_at_the_barrier_leaves_no_generation() -> None:
    world = three_nodes()
    before = generations(world)
    repair(world, force=True)
    reach(world, "repair", STATE.COMMIT_CDC_GENERATION, fenced=False)
    assert len(generations(world)) == len(before) + 1
    assert world.apply(Cancel("repair")) is None
    world.run()
    assert status_of(world, "repair") is RequestStatus.CANCELLED
    assert generations(world) == before


def test_generation_request_needs_no_locks() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True)
    repair(world, force=True)
    request = world.image.requests.requests["repair"]
    assert plan_group(world.image, [request]).refusal is None
    world.until(lambda: status_of(world, "repair") is RequestStatus.DONE, "it is done")
    assert world.transition("join-a2").state is STATE.WRITE_BOTH_READ_OLD


def test_generation_unknown_to_a_member_is_not_committed_or_published() -> None:
    """No ranges change, so no quorum is needed, but every writer must know the streams."""
    world = three_nodes()
    present = world.image.cdc.newest()
    world.nodes["b1"].applies = False
    assert world.apply(NewCdcGeneration(force=True), "again") is None
    world.pass_s(25)
    assert world.image.cdc.newest() == present
    world.nodes["b1"].applies = True
    world.run()
    newest = world.image.cdc.newest()
    assert newest != present and newest is not None and newest.published


def test_generation_is_rolled_back_for_a_silent_member_by_setting() -> None:
    world = undoing(three_nodes())
    present = world.image.cdc.newest()
    assert world.apply(NewCdcGeneration(force=True), "again") is None
    world.nodes["b1"].alive = False
    world.run(400)
    assert status_of(world, "again") is RequestStatus.FAILED
    assert "b1" in error_of(world, "again")
    assert world.image.cdc.newest() == present


@pytest.mark.parametrize("beside", [Leave("c1"), MoveNode(node_id="c1", tokens=(5, 6))])
def test_generation_includes_the_tokens_of_a_possible_rollback(beside: AnyCommand) -> None:
    world = three_nodes(rf=2)
    world.nodes["a1"].mute = world.nodes["b1"].mute = world.nodes["c1"].mute = True
    assert world.apply(beside, "beside") is None
    reach(world, "beside", STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(NewCdcGeneration(force=True), "again") is None
    world.pass_s(20)
    assert status_of(world, "again") is RequestStatus.DONE
    assert world.apply(Cancel("beside")) is None
    for name in ("a1", "b1", "c1"):
        world.nodes[name].mute = False
    world.run(400)
    assert tokens(world) <= ends(world)
