"""Properties of any cluster: rules at each prefix, a fixed point, fewest moves; changes equal a rebuild."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.planner.cluster import (
    BalanceBy,
    BalanceOptions,
    Cluster,
    ClusterTable,
    NodeRole,
)
from stele.domain.planner.moves import BalanceLimits
from stele.domain.planner.offline import described, plan_offline
from stele.domain.planner.plan import plan_round, plan_to_fixed_point
from stele.domain.planner.state import BalanceColumns, ReplicaRates
from tests.domain.planner.clusters import (
    COUNT,
    GIB,
    balanced,
    cluster,
    node,
    replicas_of,
    shards_of,
    spread,
    table,
)

pytestmark = pytest.mark.slow

STATES = st.sampled_from([*[NodeRole.NORMAL] * 6, *NodeRole])
SIZES = {
    "equal": st.just(5 * GIB),
    "uniform": st.integers(GIB, 9 * GIB),
    "lognormal": st.floats(-2, 2).map(lambda x: int(GIB * np.exp(x))),
    "zipf": st.integers(1, 1000).map(lambda rank: 100 * GIB // rank),
    "unknown": st.one_of(st.none(), st.integers(0, GIB)),
}


RATES = {
    "unknown": st.none(),
    "alike": st.just(500.0),
    "zipf": st.integers(1, 1000).map(lambda rank: 50_000 / rank),
    "few": st.sampled_from([None, 0.0, 0.0, 0.0, 0.5, 20_000.0]),
}


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Return any cluster: unequal racks and capacities, nodes in all states, all kinds of sizes and rates."""
    racks = draw(st.integers(1, 4))
    nodes = [
        node(
            f"n{at}",
            draw(st.integers(1, 3)),
            f"r{draw(st.integers(0, racks - 1))}",
            draw(st.sampled_from(["dc1", "dc1", "dc1", "dc2"])),
            draw(STATES),
            draw(st.one_of(st.none(), st.integers(50, 400).map(lambda part: part * GIB))),
        )
        for at in range(draw(st.integers(1, 9)))
    ]
    sizes = SIZES[draw(st.sampled_from(sorted(SIZES)))]
    rates = RATES[draw(st.sampled_from(sorted(RATES)))]
    tables = []
    for number in range(draw(st.integers(1, 3))):
        most = min(3, len(nodes))
        rows = draw(
            st.lists(
                st.lists(
                    st.sampled_from(nodes), min_size=1, max_size=most, unique_by=lambda n: n.id
                ),
                max_size=20,
            )
        )
        on = [[(each.id, draw(st.integers(0, each.shards - 1))) for each in row] for row in rows]
        size = [draw(sizes) for _ in on]
        served = [draw(rates) for _ in on]
        tables.append(table(on, f"t{number}", 3, size_bytes=size, rates=served))
    by, weight = draw(st.sampled_from(list(BalanceBy))), draw(st.sampled_from([0, 20, 50, 100]))
    return cluster(nodes, *tables, options=BalanceOptions(balance_by=by, rate_weight=weight))


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_every_prefix_obeys_the_rules_and_a_second_pass_plans_nothing(before: Cluster) -> None:
    plan, after = balanced(before)
    leaving = {n.id for n in before.nodes if n.state in (NodeRole.DRAINING, NodeRole.EXCLUDED)}
    left = sum(count for name, count in replicas_of(after).items() if name in leaving)
    assert left == len(plan.unmovable)
    total = sum(replicas_of(before).values())
    assert len(plan.moves) <= 1 + 10 * total


@settings(max_examples=50, deadline=None)
@given(clusters())
def test_same_cluster_has_the_same_plan(before: Cluster) -> None:
    assert plan_offline(before) == plan_offline(
        msgspec.json.decode(msgspec.json.encode(before), type=Cluster)
    )


@st.composite
def racks_alike(draw: st.DrawFn) -> Cluster:
    """Return tables with one replica in each rack, equal sizes, all nodes normal."""
    racks = draw(st.integers(1, 3))
    sizes = [draw(st.integers(1, 5)) for _ in range(racks)]
    names = [[f"{rack}-{at}" for at in range(size)] for rack, size in enumerate(sizes)]
    shards = draw(st.integers(1, 3))
    nodes = [node(name, shards, f"r{rack}") for rack, row in enumerate(names) for name in row]
    tables = []
    for number in range(draw(st.integers(1, 4))):
        row = st.tuples(
            *(st.tuples(st.sampled_from(of), st.integers(0, shards - 1)) for of in names)
        )
        tables.append(table(draw(st.lists(row, min_size=1, max_size=25)), f"t{number}", racks))
    by = draw(st.sampled_from(list(BalanceBy)))
    return cluster(nodes, *tables, options=BalanceOptions(balance_by=by))


@settings(max_examples=200, deadline=None)
@given(racks_alike())
def test_equal_sizes_end_within_one_replica_by_table_and_overall(before: Cluster) -> None:
    _, after = balanced(before)
    for rack in {each.rack for each in before.nodes}:
        names = [each.id for each in before.nodes if each.rack == rack]
        for each in (*(one.name for one in before.tables), None):
            counts = replicas_of(after, each)
            assert spread(counts[name] for name in names) <= 1
    for one in before.nodes:
        assert spread(shards_of(after, one.id)) <= 1
        assert all(spread(shards_of(after, one.id, each.name)) <= 1 for each in before.tables)


def fewest_moves(held: list[list[int]]) -> int:
    """Return the fewest moves to a difference of at most one, by row and overall. It tries all results."""
    columns = len(held[0])
    ends = []
    for row in held:
        low, extras = divmod(sum(row), columns)
        ends.append(
            [
                [low + (at in chosen) for at in range(columns)]
                for chosen in itertools.combinations(range(columns), extras)
            ]
        )
    best = sum(map(sum, held))
    for end in itertools.product(*ends):
        if spread(map(sum, zip(*end, strict=True))) <= 1:
            pairs = zip(itertools.chain(*held), itertools.chain(*end), strict=True)
            best = min(best, sum(max(0, has - gets) for has, gets in pairs))
    return best


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(0, 5), min_size=columns, max_size=columns), min_size=1, max_size=4
        )
    )
)
def test_plan_has_the_fewest_moves(held: list[list[int]]) -> None:
    nodes = [node(f"n{at}", 1) for at in range(len(held[0]))]
    tables = [
        table([[f"n{at}"] for at, count in enumerate(row) for _ in range(count)], f"t{number}")
        for number, row in enumerate(held)
        if any(row)
    ]
    plan, _ = balanced(cluster(nodes, *tables))
    assert len(plan.moves) == fewest_moves(held)


@settings(max_examples=100, deadline=None)
@given(clusters(), st.integers(1, 2), st.integers(1, 2))
def test_limited_rounds_reach_a_fixed_point(before: Cluster, streams: int, batch: int) -> None:
    what = described(before)
    state = what.state
    limits = BalanceLimits(reads=streams, writes=streams, batch=batch)
    for _ in range(1 + 10 * state.replicas):
        before_it = (state.node.copy(), state.shard.copy(), state.load.copy())
        moves = plan_round(state, what.names, limits)
        assert np.array_equal(before_it[0], state.node)
        assert np.array_equal(before_it[1], state.shard)
        assert np.array_equal(before_it[2], state.load)
        if not moves:
            break
        assert len({move.unit for move in moves}) == len(moves)
        writes = Counter(move.target for move in moves)
        assert max(writes.values()) <= streams
        into = Counter(move.target[0] for move in moves if move.source[0] != move.target[0])
        assert all(count <= batch * state.shards[name] for name, count in into.items())
        for move in moves:
            state.move(move.replica, *move.target)
    assert not plan_round(state, what.names, limits)
    assert not plan_to_fixed_point(state, what.names).moves


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_moves_equal_a_rebuild(before: Cluster) -> None:
    what = described(before)
    state = what.state
    if len(state.table):
        plan_to_fixed_point(state, what.names)
    anew = BalanceColumns(
        state.nodes,
        state.tables,
        state.table.astype(np.int64),
        state.size,
        state.node.astype(np.int64),
        state.shard.astype(np.int64),
        options=before.options,
        rates=ReplicaRates(state.rate, state._heat),
    )
    for name in (
        "count",
        "load",
        "shard_load",
        "unknown",
        "peak",
        "rack",
        "rack_room",
        "units_in",
        "first_shard",
    ):
        assert np.allclose(getattr(state, name), getattr(anew, name)), name
    for number in range(len(state.nodes)):
        assert np.array_equal(state.members(number), anew.members(number))


def test_empty_clusters_need_no_moves() -> None:
    for empty in (
        Cluster(()),
        Cluster((node("n1"),)),
        cluster([node("n1")], ClusterTable("k", "t", 1, ())),
    ):
        assert plan_offline(empty).moves == ()
    assert plan_offline(cluster([node("n1")], options=COUNT)).lower_bound_bytes == 0
