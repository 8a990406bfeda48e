"""Initial placement: even by table and overall, by capacity, in distinct racks, on nodes that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.planner.allocation import NoRoom, allocate
from stele.domain.planner.cluster import (
    BalanceOptions,
    Cluster,
    ClusterNode,
    ClusterTable,
    NodeRole,
    Tablet,
)
from stele.domain.planner.offline import described
from tests.domain.planner.clusters import COUNT, GIB, cluster, node, replicas_of, shards_of, spread

LARGE, SMALL = 1_875_000_000_000, 468_000_000_000


def with_table(before: Cluster, name: str, tablets: int, factor: int, dc: str = "dc1") -> Cluster:
    """Return the cluster with one more table of tablets of 5 GiB."""
    nodes, shards = allocate(described(before).state, tablets, {dc: factor})
    rows = [
        tuple((before.nodes[n].id, int(s)) for n, s in zip(*row, strict=True))
        for row in zip(nodes, shards, strict=True)
    ]
    new = ClusterTable(
        "ks", name, factor, tuple(Tablet(at, row, 5 * GIB) for at, row in enumerate(rows))
    )
    return cluster(before.nodes, *before.tables, new, options=before.options)


def three_racks(*names: str) -> list[ClusterNode]:
    return [
        node(f"{name}{rack}", 7, rack, capacity_bytes=LARGE) for name in names for rack in "abc"
    ]


@pytest.mark.parametrize("options", [COUNT, BalanceOptions()], ids=["count", "size"])
def test_many_tables_fill_all_shards_evenly(options: BalanceOptions) -> None:
    found = cluster(three_racks("h"), options=options)
    for number in range(40):
        found = with_table(found, f"t{number}", 64, 3)
    for each in found.nodes:
        assert spread(shards_of(found, each.id)) <= 1


def test_table_is_spread_by_capacity() -> None:
    nodes = three_racks("h") + [node(f"s{rack}", 2, rack, capacity_bytes=SMALL) for rack in "abc"]
    found = with_table(cluster(nodes, options=BalanceOptions()), "t", 256, 3)
    used = [replicas_of(found)[each.id] * 5 * GIB / (each.capacity_bytes or 1) for each in nodes]
    assert max(used) - min(used) < 0.02


def test_leaving_and_down_nodes_get_no_replicas() -> None:
    nodes = [
        node("h1"),
        node("h2"),
        node("h3", state=NodeRole.DRAINING),
        node("h4", state=NodeRole.EXCLUDED),
        node("h5", state=NodeRole.DOWN),
    ]
    assert replicas_of(with_table(cluster(nodes), "t", 2, 1)) == {
        "h1": 1,
        "h2": 1,
        "h3": 0,
        "h4": 0,
        "h5": 0,
    }


def test_too_few_nodes_raise_no_room() -> None:
    with pytest.raises(NoRoom, match="3 replicas in dc 'dc1' need as many nodes; 2 take replicas"):
        with_table(cluster([node("h1"), node("h2"), node("h3", state=NodeRole.DOWN)]), "t", 4, 3)
    with pytest.raises(NoRoom, match="dc 'dc9'"):
        with_table(cluster([node("h1")]), "t", 4, 1, "dc9")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 5),
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
)
def test_tables_are_even_and_racks_are_distinct(
    racks: Sequence[int], factor: int, tables: Sequence[int]
) -> None:
    nodes = [
        node(f"{rack}-{at}", 2, f"r{rack}")
        for rack, count in enumerate(racks)
        for at in range(count)
    ]
    factor = min(factor, len(nodes))
    found = cluster(nodes)
    for number, tablets in enumerate(tables):
        found = with_table(found, f"t{number}", tablets, factor)
    place = {each.id: each.rack for each in nodes}
    for each in found.tables:
        for tablet in each.tablets:
            assert len({name for name, _ in tablet.replicas}) == factor
            in_racks = Counter(place[name] for name, _ in tablet.replicas)
            if factor <= len(racks):
                assert max(in_racks.values()) == 1
            if len(set(racks)) == 1:
                assert max(in_racks.values()) == -(-factor // len(racks))
        if len(set(racks)) == 1:
            assert spread(replicas_of(found, each.name).values()) <= 1
    if len(set(racks)) == 1:
        assert spread(replicas_of(found).values()) <= 1


def test_allocation_is_deterministic() -> None:
    state = described(msgspec.structs.replace(cluster(three_racks("h", "g")))).state
    first, again = (allocate(state, 32, {"dc1": 3}) for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def test_single_tablet_tables_are_spread_over_uneven_nodes() -> None:
    """A few large tablets on one node have the bytes of many small ones on the other."""
    rows = [*[("h1", 0)] * 10, *[("h2", 0)] * 100]
    tablets = [Tablet(at, (row,), 10 * GIB if at < 10 else GIB) for at, row in enumerate(rows)]
    found = cluster([node("h1"), node("h2")], ClusterTable("ks", "t", 1, tuple(tablets)))
    for number in range(20):
        found = with_table(found, f"new{number}", 1, 1)
    counts = replicas_of(found)
    assert abs(counts["h1"] - 10 - 10) <= 1 and abs(counts["h2"] - 100 - 10) <= 1
