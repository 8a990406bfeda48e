"""Nodes whose tablets cannot go anywhere: their requests end, and say why."""

from stele.domain.commands import CreateKeyspace, CreateTable, MoveTablets, Remove
from stele.domain.names import RequestStatus, TransitionState
from stele.domain.topology.operations.commands import TabletMove
from tests.coordinator.operations import DOWN_S
from tests.coordinator.stories import error_of, reach, status_of
from tests.coordinator.world import World, empty_cluster


def _cluster_with_a_dead_rack() -> World:
    """a1 and a2 in one rack, b1 in another, which is dead: each tablet has a replica in both."""
    world = empty_cluster()
    world.add("a1 a2 b1")
    world.run()
    keyspace = CreateKeyspace("music", {"dc1": 2}, tablets=True, initial_tablets=4)
    assert world.apply(keyspace) is None
    assert world.apply(CreateTable("music.songs")) is None
    world.nodes["b1"].alive = False
    world.pass_s(DOWN_S)
    return world


def test_a_node_that_cannot_be_drained_is_told_so() -> None:
    world = _cluster_with_a_dead_rack()
    world.balances = True
    assert world.apply(Remove(node_id="b1"), "remove") is None
    world.until(lambda: status_of(world, "remove") is RequestStatus.CANCELLED, "it is told", 30)
    assert "no other node can take 4 tablets of 'b1'" in error_of(world, "remove")


def test_a_node_that_cannot_be_drained_is_told_so_while_other_tablets_move() -> None:
    """Whoever moves tablets all the time would keep the request waiting for ever."""
    world = _cluster_with_a_dead_rack()
    table = world.image.schema.serving("music.songs")
    assert table is not None
    rows = world.image.ring.placements[table.placement].rows
    (tablet, *_) = (at for at, row in enumerate(rows) if "a1" in row.reads)
    world.nodes["a2"].mute = True
    move = TabletMove(table="music.songs", tablet=tablet, from_node="a1", to_node="a2")
    assert world.apply(MoveTablets((move,)), "migration") is None
    reach(world, "migration", TransitionState.STREAMING, fenced=True)
    assert world.apply(Remove(node_id="b1"), "remove") is None
    world.balances = True
    world.until(lambda: status_of(world, "remove") is RequestStatus.CANCELLED, "it is told", 30)
    assert world.transition("migration").state is TransitionState.STREAMING
