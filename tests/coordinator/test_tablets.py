"""Regressions of tablets: leftovers, and a balancer that starves, loops or cancels too much."""

from __future__ import annotations

from collections import Counter

import pytest

from stele.agent.cleanup import foreign_ranges
from stele.coordinator.openings import MOST_AT_ONCE
from stele.domain.commands import CreateKeyspace, CreateTable, Exclude, Leave, MoveTablets, Remove
from stele.domain.messages import Order
from stele.domain.model.operations import TabletMove
from stele.domain.names import OrderKind, RequestStatus, TransitionState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tablets.maps import held_by
from tests.coordinator.stories import reach, status_of
from tests.coordinator.world import World, empty_cluster

STATE = TransitionState
TABLE = "music.songs"


def tablets(world: World, name: str = TABLE) -> list[RangeReplicas]:
    data = world.image.schema.serving(name)
    assert data is not None
    return [*world.image.ring.placements[data.placement].rows]


def with_table(nodes: str, tablets: int, rf: int = 2, rack: str = "r") -> World:
    """Return nodes and a table. All nodes are in one rack unless ``rack`` is empty."""
    world = empty_cluster()
    for name in nodes.split():
        world.add(name, rack=rack)
    world.run()
    world.create_table({"dc1": rf}, tablets)
    return world


@pytest.mark.parametrize("how", ["fails", "is down"])
def test_late_cleanup_of_a_migration_is_done_later(how: str) -> None:
    """The order may also arrive before the end of the migration."""
    world = with_table("a1 b1 c1 d1", 4)
    row = tablets(world)[0]
    source, target = row.reads[0], min({"a1", "b1", "c1", "d1"} - {*row.reads})
    deleted = list[bool]()
    deliver = world.deliver

    def watch(order: Order) -> None:
        deliver(order)
        if order.kind is OrderKind.CLEANUP and not world.image.topology.of_session(order.session):
            (table,) = world.image.schema.with_tablets()
            found = foreign_ranges(world.image, order.node_id, table.data_id)
            deleted.append(row.end in {each.end for each in found})

    world.deliver = watch  # type: ignore[method-assign]
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    assert world.apply(MoveTablets((move,)), "migration") is None
    reach(world, "migration", STATE.CLEANUP, fenced=None)
    if how == "fails":
        world.nodes[source].fails = world.limits.attempts
    else:
        world.crash(source)
        reach(world, "migration", STATE.END_MIGRATION, fenced=None)
        world.nodes[source].alive = True
    world.run()
    assert deleted and all(deleted)
    assert status_of(world, "migration") is RequestStatus.DONE


def test_lost_replicas_do_not_take_room_of_other_tables() -> None:
    """A table without other copies takes no room of others, and no leave is cancelled because of it."""
    world = with_table("a1 b1 c1 d1 e1", 16)
    single = CreateKeyspace("one", {"dc1": 1}, tablets=True, initial_tablets=64)
    assert world.apply(single) is None
    assert world.apply(CreateTable("one.t")) is None
    world.balances = True
    world.pass_s(30)
    world.crash("d1")
    world.pass_s(20)
    assert world.apply(Exclude(("d1",), force=True)) is None
    world.pass_s(200)
    assert world.apply(Leave("c1"), "leave") is None
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 900)
    left = [row.reads for row in tablets(world) if "d1" in row.reads]
    assert left == [], "each of them has another replica"
    assert any("d1" in row.reads for row in tablets(world, "one.t"))


def asked_of(world: World) -> int:
    return sum(bool(r.to_node) for r in world.image.requests.requests.values())


def test_member_that_goes_down_during_a_drain_receives_no_more_tablets() -> None:
    world = with_table("a1 b1 c1 d1", 32)
    world.balances = True
    assert world.apply(Leave("c1"), "leave") is None
    world.until(lambda: held_by(world.image)["c1"] < 12, "the first tablets to have moved", 60)
    world.crash("d1")
    world.pass_s(15)
    world.until(lambda: not world.image.topology.transitions, "those under way", 60)
    before = held_by(world.image)["d1"]
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 300)
    assert held_by(world.image)["d1"] == before


def test_removal_of_a_live_node_moves_no_tablets() -> None:
    """The node is up, so it is not excluded, and the request is rejected."""
    world = with_table("a1 b1 c1 d1", 16)
    world.balances = True
    assert world.apply(Remove(node_id="c1"), "remove") is None
    world.until(lambda: status_of(world, "remove") is RequestStatus.FAILED, "its end", 300)
    world.pass_s(30)
    assert asked_of(world) == 0


def test_only_some_of_several_impossible_leaves_are_cancelled() -> None:
    """Three nodes of one rack leave, and each tablet has a replica there: if one stays, the others may go."""
    world = empty_cluster()
    for number in range(6):
        world.add(f"n{number}", rack=f"r{number % 2}")
    world.run()
    world.create_table({"dc1": 2}, 8)
    leaving = [f"leave-{name}" for name in ("n1", "n3", "n5")]
    for request_id in leaving:
        assert world.apply(Leave(request_id.removeprefix("leave-")), request_id) is None
    world.balances = True
    world.run(600)
    ends = Counter(status_of(world, request_id) for request_id in leaving)
    assert ends == {RequestStatus.CANCELLED: 1, RequestStatus.DONE: 2}


def test_move_into_a_full_rack_is_refused() -> None:
    world = with_table("a1 a2 b1 b2", 4, rack="")
    row = tablets(world)[0]
    (of_b,) = (name for name in row.reads if name.startswith("b"))
    (free_a,) = {"a1", "a2"} - {*row.reads}
    (free_b,) = {"b1", "b2"} - {*row.reads}
    refused = world.apply(
        MoveTablets((TabletMove(table=TABLE, tablet=0, from_node=of_b, to_node=free_a),))
    )
    assert refused is not None and refused.code == "rack_is_full"
    allowed = TabletMove(table=TABLE, tablet=0, from_node=of_b, to_node=free_b)
    assert world.apply(MoveTablets((allowed,))) is None


def test_many_moves_open_in_limited_rounds() -> None:
    world = with_table("a1 b1 c1", 256, rf=1)
    moves = tuple(
        TabletMove(
            table=TABLE,
            tablet=at,
            from_node=row.reads[0],
            to_node=min({"a1", "b1", "c1"} - {*row.reads}),
        )
        for at, row in enumerate(tablets(world))
    )
    assert world.apply(MoveTablets(moves)) is None
    world.run()
    opened = [
        sum(type(fact).__name__ == "TransitionOpened" for fact in epoch.facts)
        for epoch in world.epochs
    ]
    assert max(opened) <= MOST_AT_ONCE
    assert [row.reads for row in tablets(world)] == [(move.to_node,) for move in moves]


def test_requests_are_found_by_every_named_node() -> None:
    world = with_table("a1 b1 c1 d1", 4)
    row = tablets(world)[0]
    source, target = row.reads[0], min({"a1", "b1", "c1", "d1"} - {*row.reads})
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    assert world.apply(MoveTablets((move,)), "migration") is None
    assert world.apply(Remove(node_id="d1", ignore_nodes=("c1",)), "removal") is None
    asked = world.image.requests.requests.values()
    found = {node: {r.request_id for r in asked if node in r.nodes()} for node in world.nodes}
    assert all("migration" in found[node] for node in (source, target))
    assert all("removal" in found[node] for node in ("c1", "d1"))
    assert "removal" not in found["a1"]
