"""Shards: each replica of a tablet has a place within its node, which is chosen, kept, and evened out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stele.domain.balancer.load import NO_CONDITIONS
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    CreateTable,
    Exclude,
    Join,
    Leave,
    MoveTablets,
    RepairTable,
    ResizeTable,
    SwitchBalancingOff,
)
from stele.domain.model.operations import TabletMove
from stele.domain.names import MAX_SHARDS, NodeState, RequestKind, RequestStatus, TransitionState
from stele.domain.planner.planned import Kind
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tablets.maps import apart, new_map
from stele.domain.topology.operations.table import OPERATIONS
from tests.coordinator.stories import reach, status_of
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of

TABLE = "music.songs"
STATE = TransitionState


def with_shards(nodes: str, tablets: int, rf: int = 1) -> World:
    """Return a table on nodes of one rack. ``a1*2`` is a node with two shards."""
    world = empty_cluster()
    for text in nodes.split():
        name, _, shards = text.partition("*")
        world.add(name, rack="r", shards=int(shards or 1))
    world.run()
    world.create_table({"dc1": rf}, tablets)
    return world


def rows(world: World, name: str = TABLE) -> list[RangeReplicas]:
    data = world.image.schema.serving(name)
    assert data is not None
    return [*world.image.ring.placements[data.placement].rows]


def held(world: World, name: str = TABLE) -> dict[str, Counter[int]]:
    """Return by node the number of tablets of each shard."""
    found: dict[str, Counter[int]] = {
        node_id: Counter(dict.fromkeys(range(node.shards), 0))
        for node_id, node in world.image.membership.normal().items()
    }
    for row in rows(world, name):
        for node_id in row.reads:
            found[node_id][row.shard_of(node_id)] += 1
    return found


def spread(counts: Counter[int]) -> int:
    return max(counts.values()) - min(counts.values())


def within(tablet: int, node: str, shard: int = -1) -> MoveTablets:
    move = TabletMove(table=TABLE, tablet=tablet, from_node=node, to_node=node, to_shard=shard)
    return MoveTablets((move,))


def on_shard(world: World, node: str, shard: int) -> list[int]:
    return [at for at, r in enumerate(rows(world)) if node in r.reads and r.shard_of(node) == shard]


def crowd(world: World, node: str, shard: int) -> None:
    """Move all tablets of a node to one of its shards."""
    for tablet, row in enumerate(rows(world)):
        if node in row.reads and row.shard_of(node) != shard:
            assert world.apply(within(tablet, node, shard)) is None
    world.run()
    assert set(held(world)[node].elements()) == {shard}


def test_new_tables_are_even_over_shards_and_by_shards_over_nodes() -> None:
    world = with_shards("a1*4 b1*2 c1*2", 64, rf=2)
    found = held(world)
    assert all(spread(counts) <= 1 for counts in found.values())
    assert {node: counts.total() for node, counts in found.items()} == {
        "a1": 64,
        "b1": 32,
        "c1": 32,
    }
    for number in range(3):
        assert world.apply(CreateTable(f"music.t{number}")) is None
        assert all(spread(counts) <= 1 for counts in held(world, f"music.t{number}").values())


def test_number_of_tablets_follows_the_number_of_shards() -> None:
    """Scylla's test_tablet_option_and_config_changes: a number for each shard, rounded up to a power of two."""
    world = with_shards("a1*3", 2)
    assert world.apply(CreateKeyspace("wide", {"dc1": 1}, tablets=True)) is None
    assert world.apply(CreateTable("wide.t")) is None
    assert len(rows(world, "wide.t")) == 32, "10 for each of 3 shards"


def test_created_map_equals_the_folded_map() -> None:
    """This holds for rows whose replicas are all on shard 0 as well."""
    world = with_shards("a1*2 b1*3", 8, rf=2)
    (table,) = world.image.schema.with_tablets()
    folded = world.image.ring.placements[table.placement]
    replicas, shards = (
        np.array([[number(row, node) for node in row.writes] for row in folded.rows], np.int32)
        for number in (lambda _, node: folded.nodes.numbers[node], RangeReplicas.shard_of)
    )
    assert not shards.any(axis=1).all() and shards.any()
    made = new_map(replicas, folded.nodes, shards)
    assert made == folded
    assert made.table.hash_sum() == folded.table.hash_sum()


def test_rows_without_shards_store_none() -> None:
    world = with_shards("a1 b1", 8, rf=2)
    assert {row.shards for row in rows(world)} == {()}
    (table,) = world.image.schema.with_tablets()
    columns = world.image.ring.placements[table.placement].table.all().values
    assert [column.shape[1] for column in columns[-2:]] == [0, 0]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (within(0, "a1", 2), "unknown_shard"),
        (within(0, "a1", -2), "unknown_shard"),
        (within(0, "a1", 0), "other_replicas"),
        (within(0, "b1", 0), "other_replicas"),
        (within(1, "c1", 0), "one_shard"),
        (within(9, "a1", 1), "unknown_tablet"),
    ],
)
def test_invalid_move_within_a_node_is_refused(command: MoveTablets, expected: str) -> None:
    world = with_shards("a1*2 b1*2 c1", 4)
    assert [row.reads[0] for row in rows(world)][:2] == ["a1", "c1"], "as these rows expect"
    assert code_of(world.apply(command)) == expected


@pytest.mark.parametrize("shards", [0, -1, MAX_SHARDS + 1])
def test_invalid_number_of_shards_is_refused(shards: int) -> None:
    world = empty_cluster()
    asked = Join(
        node_id="x",
        cluster="demo",
        address="http://x",
        dc="d",
        rack="r",
        host_id="h",
        shards=shards,
    )
    assert code_of(world.apply(asked)) == "bad_shards"


def test_move_without_a_shard_goes_to_the_emptiest_shard() -> None:
    world = with_shards("a1*3 b1*1", 8)
    crowd(world, "a1", 0)
    first, second, *_ = on_shard(world, "a1", 0)
    assert world.apply(within(first, "a1"), "one") is None
    assert world.apply(within(second, "a1"), "two") is None, "the first is counted where it goes"
    asked = [world.image.requests.requests[name] for name in ("one", "two")]
    assert [request.to_shard for request in asked] == [1, 2]
    assert {request.kind for request in asked} == {RequestKind.INTRANODE_MIGRATION}
    assert code_of(world.apply(within(first, "a1", 2))) == "tablet_moves"
    world.run()
    assert held(world)["a1"][1] == held(world)["a1"][2] == 1


def test_move_keeps_the_shards_of_other_replicas() -> None:
    world = with_shards("a1*2 b1*2 c1*2", 4, rf=2)
    for tablet, row in enumerate(rows(world)):
        source, other = row.reads
        (target,) = {"a1", "b1", "c1"} - {*row.reads}
        move = TabletMove(table=TABLE, tablet=tablet, from_node=source, to_node=target, to_shard=1)
        assert world.apply(MoveTablets((move,))) is None
        world.run()
        now = rows(world)[tablet]
        assert (now.shard_of(other), now.shard_of(target)) == (row.shard_of(other), 1)
        assert not now.other_shards


def test_shards_are_evened_out_and_then_nothing_moves() -> None:
    world = with_shards("a1*4 b1*2", 32)
    crowd(world, "a1", 3)
    assert {each.kind for each in proposal(world.image).moves} == {Kind.INTRANODE_MIGRATION}
    world.balances = True
    while proposal(world.image).moves:
        world.tick()
        world.run()
    assert all(spread(counts) <= 1 for counts in held(world).values())


def test_table_with_balancing_off_stays_on_its_shards() -> None:
    world = with_shards("a1*2", 8)
    crowd(world, "a1", 0)
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    assert not proposal(world.image).moves


def test_leaving_node_is_not_balanced_within() -> None:
    """Scylla's test_no_intranode_migration_on_draining_node."""
    world = with_shards("a1*5 b1*1", 16)
    crowd(world, "a1", 2)
    assert world.apply(Leave("a1")) is None
    moves = [each.move for each in proposal(world.image).moves]
    assert moves and all(move.to_node == "b1" for move in moves)


def test_streams_are_limited_per_shard() -> None:
    """A repair uses all streams of a shard: one for each shard can run at a time."""
    world = with_shards("a1*3 b1*3", 8, rf=2)
    assert world.apply(RepairTable(TABLE)) is None
    chosen = [each.tablet for each in proposal(world.image, NO_CONDITIONS).repairs]
    assert len(chosen) == 3
    assert {rows(world)[tablet].shard_of("a1") for tablet in chosen} == {0, 1, 2}


def test_siblings_move_to_the_same_shards_before_a_merge() -> None:
    world = with_shards("a1*2 b1*2 c1*3", 8, rf=2)
    (table,) = world.image.schema.with_tablets()
    assert len(apart(world.image.ring.placements[table.placement]))
    world.balances = True
    assert world.apply(ResizeTable(TABLE, 4), "merge") is None
    world.until(lambda: status_of(world, "merge") is RequestStatus.DONE, "the merge", 900)
    assert len(rows(world)) == 4


def test_replacement_spreads_tablets_over_its_own_shards() -> None:
    world = with_shards("a1*1 b1*1 c1*1", 16, rf=2)
    world.nodes["c1"].alive = False
    world.pass_s(30)
    assert world.replace("c9", "c1", rack="r", shards=4) is None
    world.balances = True
    world.run()
    assert world.state("c1") is NodeState.LEFT
    counts = held(world)["c9"]
    assert counts.total() and spread(counts) <= 1


@pytest.mark.parametrize("state", [STATE.WRITE_BOTH_READ_OLD, STATE.STREAMING])
def test_cancelled_move_keeps_the_shards(state: TransitionState) -> None:
    world = with_shards("a1*2 b1*2", 4, rf=2)
    before = rows(world)[0]
    shard = 1 - before.shard_of("a1")
    world.nodes["a1"].mute = True
    assert world.apply(within(0, "a1", shard), "move") is None
    reach(world, "move", state, fenced=None)
    assert world.apply(Cancel("move")) is None
    world.nodes["a1"].mute = False
    world.run()
    assert status_of(world, "move") is RequestStatus.CANCELLED
    assert (rows(world)[0].shards, rows(world)[0].other_shards) == (before.shards, ())


def test_forced_move_within_a_node_keeps_the_data_of_the_node() -> None:
    """A tablet whose other replicas are dead streams everything from its own shard."""
    world = with_shards("a1*2 b1*2 c1*2", 4, rf=2)
    tablet, row = next((at, r) for at, r in enumerate(rows(world)) if "a1" in r.reads)
    (other,) = {*row.reads} - {"a1"}
    world.nodes[other].alive = False
    world.pass_s(30)
    assert world.apply(Exclude((other,))) is None
    world.run()
    world.nodes["a1"].mute = True
    shard = 1 - row.shard_of("a1")
    move = TabletMove(
        table=TABLE, tablet=tablet, from_node="a1", to_node="a1", to_shard=shard, force=True
    )
    assert world.apply(MoveTablets((move,)), "move") is None
    reach(world, "move", STATE.ALLOW_WRITE_BOTH_READ_OLD, fenced=None)
    (open_,) = world.image.topology.open()
    (planned,) = (r for plan in open_.plans.values() for r in plan.rows)
    found = OPERATIONS[open_.kind].sources(world.image, open_, planned, "a1", frozenset({other}))
    assert found == (("a1",), 1)
