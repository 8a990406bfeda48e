"""Small clusters with known answers, from the tests of other tablet balancers and HBase's mocks."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from stele.domain.planner.cluster import BalanceOptions, NodeRole
from stele.domain.planner.offline import described
from stele.domain.planner.plan import plan_round
from tests.domain.planner.clusters import (
    COUNT,
    GIB,
    balanced,
    bytes_of,
    cluster,
    node,
    replicas_of,
    shards_of,
    table,
)


class Mock(msgspec.Struct, frozen=True):
    """Regions of each server, the share of each server, and the fewest moves to it."""

    regions: list[int]
    floor: int
    ceil: int
    min_moves: int


class Mocks(msgspec.Struct, frozen=True):
    cases: list[Mock]


MOCKS = msgspec.json.decode(
    (Path(__file__).parent / "hbase_cluster_state_mocks.json").read_bytes(), type=Mocks
).cases
LARGE, SMALL = 1_875_000_000_000, 468_000_000_000
BOTH = pytest.mark.parametrize("options", [COUNT, BalanceOptions()], ids=["count", "size"])


@BOTH
@pytest.mark.parametrize("mock", MOCKS, ids=lambda mock: f"{len(mock.regions)}n{sum(mock.regions)}")
def test_every_server_gets_its_share_with_the_fewest_moves(
    mock: Mock, options: BalanceOptions
) -> None:
    regions = mock.regions
    nodes = [node(f"n{at}", 1) for at in range(len(regions))]
    rows = [[f"n{at}"] for at, count in enumerate(regions) for _ in range(count)]
    tables = [table(rows)] if rows else []
    plan, after = balanced(cluster(nodes, *tables, options=options))
    counts = replicas_of(after).values()
    assert min(counts) >= mock.floor
    assert max(counts) <= mock.ceil
    assert len(plan.moves) == mock.min_moves


def test_tablet_in_two_dcs_moves_in_both() -> None:
    nodes = [
        *(node(f"h{n}", 1, rack, "dc1") for n, rack in enumerate("aabb", 1)),
        *(node(f"h{n}", 1, "c", "dc2") for n in (5, 6)),
    ]
    _, after = balanced(cluster(nodes, table([["h1", "h3", "h5"]] * 2, factor=2)))
    assert set(replicas_of(after).values()) == {1}


def test_down_node_stays_empty() -> None:
    nodes = [node("h1"), node("h2"), node("h3", state=NodeRole.DOWN)]
    plan, after = balanced(cluster(nodes, table([["h1", "h2"]] * 4)))
    assert replicas_of(after)["h3"] == 0
    assert {move.kind for move in plan.moves} == {"intranode_migration"}


def test_down_node_gets_replicas_while_another_node_drains() -> None:
    nodes = [
        node("h1", state=NodeRole.DRAINING),
        node("h2", state=NodeRole.DOWN),
        node("h3"),
    ]
    _, after = balanced(cluster(nodes, table([["h1"]] * 2)))
    assert replicas_of(after) == {"h1": 0, "h2": 1, "h3": 1}


def test_colocated_tables_stay_together() -> None:
    tables = [
        table([["h1"]], "a"),
        table([["h1"]], "a2", colocated_with="ks.a"),
        table([["h1"]], "b"),
        table([["h1"]], "b2", colocated_with="ks.b"),
    ]
    plan, after = balanced(cluster([node("h1"), node("h2")], *tables))
    assert replicas_of(after) == {"h1": 2, "h2": 2}
    where = {each.name: each.tablets[0].replicas for each in after.tables}
    assert where["a"] == where["a2"]
    assert where["b"] == where["b2"]
    assert {move.table for move in plan.moves if move.target[0] == "h2"} in (
        {"a", "a2"},
        {"b", "b2"},
    )


def test_rack_that_cannot_be_drained_reports_the_reason() -> None:
    nodes = [*(node(f"h{n}", rack="a") for n in (1, 2, 3))]
    nodes.append(node("h4", rack="b", state=NodeRole.DRAINING))
    plan, after = balanced(cluster(nodes, table([["h1", "h4"], ["h2", "h4"]])))
    assert replicas_of(after)["h4"] == 2
    assert [one.node for one in plan.unmovable] == ["h4", "h4"]
    assert "rack a of h2 would have too many of its replicas" in plan.unmovable[0].reason


def test_drain_without_room_for_the_replication_factor_is_unmovable() -> None:
    nodes = [node("h1"), node("h2"), node("h3", state=NodeRole.DRAINING)]
    plan, _ = balanced(cluster(nodes, table([["h1", "h2", "h3"]])))
    assert plan.moves == ()
    reason = plan.unmovable[0].reason
    assert "h1 has a replica of this tablet already" in reason


def test_last_replica_on_an_excluded_node_is_unmovable() -> None:
    plan, _ = balanced(cluster([node("h1", state=NodeRole.EXCLUDED)], table([["h1"]])))
    assert plan.moves == ()
    assert plan.unmovable[0].node == "h1"


def test_replicas_of_an_excluded_node_are_rebuilt() -> None:
    nodes = [node("h1"), node("h2"), node("h3", state=NodeRole.EXCLUDED), node("h4")]
    plan, after = balanced(cluster(nodes, table([["h1", "h3"], ["h2", "h3"]])))
    assert [move.kind for move in plan.moves if move.source[0] == "h3"] == ["rebuild", "rebuild"]
    assert replicas_of(after)["h3"] == 0


@pytest.mark.parametrize("sizes", [[5 * GIB] * 9, [5 * GIB, 4 * GIB, 6 * GIB] * 3])
def test_replicas_of_an_excluded_node_go_straight_to_the_empty_node(sizes: list[int]) -> None:
    """On the other nodes, which have their share already, the replicas would move twice."""
    nodes = [node("h1", 1), node("h2", 1), node("h3", 1, state=NodeRole.EXCLUDED), node("h4", 1)]
    rows = [["h1", "h3"], ["h2", "h3"], ["h1", "h2"]] * 3
    what = described(cluster(nodes, table(rows, size_bytes=sizes), options=BalanceOptions()))
    moves = plan_round(what.state, what.names)
    assert [(nodes[m.source[0]].id, nodes[m.target[0]].id) for m in moves] == [("h3", "h4")]


def test_replicas_on_down_nodes_count_for_their_rack() -> None:
    nodes = [
        node("a1", rack="a"),
        node("b1", rack="b", state=NodeRole.DOWN),
        node("b2", rack="b"),
        node("c1", rack="c"),
    ]
    _, after = balanced(cluster(nodes, table([["a1", "b1"]] * 4)))
    assert replicas_of(after)["b2"] == 0
    assert replicas_of(after)["c1"] == 2


@pytest.mark.parametrize("state", [NodeRole.DRAINING, NodeRole.EXCLUDED])
@BOTH
def test_load_is_even_by_shard_on_nodes_with_unequal_shards(
    state: NodeRole, options: BalanceOptions
) -> None:
    nodes = [node("h1", 8, state=state), node("h2", 1), node("h3", 7)]
    _, after = balanced(cluster(nodes, table([["h1"]] * 16), options=options))
    assert shards_of(after, "h2") == [2]
    assert shards_of(after, "h3") == [2] * 7


def test_balance_by_count_needs_no_sizes() -> None:
    nodes = [node("h1", 8, state=NodeRole.EXCLUDED), node("h2", 1), node("h3", 7)]
    _, after = balanced(cluster(nodes, table([["h1"]] * 16, size_bytes=None)))
    assert replicas_of(after) == {"h1": 0, "h2": 2, "h3": 14}


def test_shards_of_a_draining_node_are_not_balanced() -> None:
    plan, _ = balanced(cluster([node("h1", state=NodeRole.DRAINING)], table([["h1"]] * 4)))
    assert plan.moves == ()
    assert len(plan.unmovable) == 4


def test_only_the_rack_with_a_new_node_changes() -> None:
    nodes = [node(f"h{rack}", 7, rack, capacity_bytes=LARGE) for rack in "abc"]
    count = int(0.9 * LARGE / (5 * GIB))
    rows = [[(f"h{rack}", at % 7) for rack in "abc"] for at in range(count)]
    before = cluster(nodes, table(rows), options=BalanceOptions())
    for rack in "abc":
        nodes.append(node(f"small-{rack}", 2, rack, capacity_bytes=SMALL))
        plan, after = balanced(cluster(nodes, *before.tables, options=BalanceOptions()))
        assert {move.source[0] for move in plan.moves} == {f"h{rack}"}
        before = after
    used = [
        held / (each.capacity_bytes or 1)
        for each, held in zip(nodes, bytes_of(before).values(), strict=True)
    ]
    assert max(used) - min(used) < 0.01


def test_each_shard_gets_its_share_of_each_table() -> None:
    nodes = [
        node("h1", 10, capacity_bytes=10 * 250 * GIB),
        node("h2", 8, capacity_bytes=8 * 250 * GIB),
    ]
    room = 18 * 250 * GIB
    draw = random.Random(1)
    tables = [
        table(
            [[("h1", draw.randrange(10))] for _ in range(512)],
            f"t{number}",
            size_bytes=int(part * room) // 512,
        )
        for number, part in enumerate((1 / 2, 1 / 4, 1 / 8, 1 / 1000))
    ]
    for extra in (None, node("h3", 8, capacity_bytes=8 * 250 * GIB)):
        nodes += [extra] if extra else []
        _, after = balanced(cluster(nodes, *tables, options=BalanceOptions()))
        ideal = 512 / sum(each.shards for each in nodes)
        for each in tables[:3]:
            for one in nodes:
                for held in shards_of(after, one.id, each.name):
                    assert ideal / 1.5 <= held <= ideal * 1.5, (each.name, one.id)
        tables = list(after.tables)


def test_node_with_an_unknown_size_is_not_balanced() -> None:
    sizes: list[int | None] = [5 * GIB] * 16
    known = cluster(
        [node("h1"), node("h2")], table([["h2"]] * 16, size_bytes=sizes), options=BalanceOptions()
    )
    plan, _ = balanced(known)
    assert {move.source[0] for move in plan.moves if move.kind == "migration"} == {"h2"}
    sizes[3] = None
    unknown = table([["h2"]] * 16, size_bytes=sizes)
    plan, _ = balanced(cluster([node("h1"), node("h2")], unknown, options=BalanceOptions()))
    assert plan.moves == ()


def test_node_does_not_drain_while_sizes_are_unknown() -> None:
    nodes = [node("h1"), node("h2", state=NodeRole.DRAINING), node("h3")]
    rows = [["h1"], ["h1"], ["h2"], ["h2"]]
    unknown = table(rows, size_bytes=[None, 1, None, 1])
    plan, _ = balanced(cluster(nodes, unknown, options=BalanceOptions()))
    assert plan.moves == ()
    assert "sizes of tablets in its dc are unknown" in plan.unmovable[0].reason


def test_draining_node_needs_no_capacity() -> None:
    nodes = [node("h1", capacity_bytes=100 * GIB), node("h2", state=NodeRole.DRAINING)]
    _, after = balanced(
        cluster(nodes, table([["h2"]] * 4, size_bytes=GIB), options=BalanceOptions())
    )
    assert replicas_of(after) == {"h1": 4, "h2": 0}


@pytest.mark.parametrize(("first", "moves"), [(257, False), (307, True)])
def test_shards_within_the_threshold_are_not_balanced(first: int, moves: bool) -> None:
    rows = [[("h1", 0 if at < first else 1)] for at in range(512)]
    plan, _ = balanced(
        cluster([node("h1")], table(rows, size_bytes=100 << 20), options=BalanceOptions())
    )
    assert bool(plan.moves) == moves


def test_racks_with_new_nodes_are_filled_in_parallel() -> None:
    nodes = [node(f"{rack}{n}", 1, rack) for n in range(4) for rack in "abc"]
    rows = [["a0", "b0", "c0"]] * 12
    plan, _ = balanced(cluster(nodes, table(rows)))
    assert {move.target[0][0] for move in plan.moves[:3]} == {"a", "b", "c"}
    assert len({move.target[0] for move in plan.moves[:9]}) == 9


def test_fullest_node_moves_first() -> None:
    nodes = [node(name, 1) for name in ("h1", "h2", "h3")]
    rows = [["h1"]] * 4 + [["h2"]] * 11
    plan, _ = balanced(cluster(nodes, table(rows)))
    assert plan.moves[0].source[0] == "h2"


def test_full_rack_takes_what_fits_and_other_racks_the_rest() -> None:
    nodes = [node(f"a{n}", 1, "a") for n in range(4)] + [node("b", 1, "b"), node("c", 1, "c")]
    _, after = balanced(cluster(nodes, table([["a0", "b"]] * 12)))
    counts = replicas_of(after)
    assert sum(counts[f"a{n}"] for n in range(4)) == 12
    assert counts["b"] == counts["c"] == 6


def test_movable_replica_is_not_passed_on_to_a_down_node() -> None:
    """A drain makes room by passing replicas on. Only replicas that must leave may wait for a dead node."""
    nodes = [
        node("n0"),
        node("n1", state=NodeRole.DRAINING),
        node("n2", capacity_bytes=50 * GIB),
        node("n3", state=NodeRole.DOWN, capacity_bytes=50 * GIB),
    ]
    sizes = BalanceOptions(size_threshold=0.01)
    tables = [
        table([["n0", "n1"]], name="t0", size_bytes=5 * GIB),
        table([["n2"], ["n0", "n3", "n1"]], name="t1", size_bytes=5 * GIB),
    ]
    what = described(cluster(nodes, *tables, options=sizes))
    moves = plan_round(what.state, what.names, None)
    assert {(move.source[0], move.target[0]) for move in moves} == {(1, 2)}


def test_move_between_racks_counts_once_in_the_lower_bound() -> None:
    """The replica leaves a rack with an overloaded node and enters a rack with an underloaded one."""
    nodes = [
        node("n0", 1, rack="r1", capacity_bytes=59 * GIB),
        node("n3", 1, rack="r0", capacity_bytes=58 * GIB),
        node("n4", 1, rack="r1", capacity_bytes=50 * GIB),
    ]
    one = table([["n4", "n0"]], factor=3, size_bytes=5 * GIB)
    plan, _ = balanced(cluster(nodes, one, options=BalanceOptions(size_threshold=0.01)))
    assert plan.lower_bound_bytes == plan.moved_bytes == 5 * GIB
