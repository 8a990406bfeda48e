"""Clusters of some size through many changes, each planned to a fixed point."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from stele.domain.planner.cluster import BalanceBy, BalanceOptions, ClusterNode, NodeRole
from stele.domain.planner.plan import plan_to_fixed_point
from stele.domain.planner.shares import Reals
from stele.domain.planner.state import LEAVING, BalanceColumns

TABLETS, TABLES = 600, 4
SIZES: dict[str, Callable[[np.random.Generator], Reals]] = {
    "equal": lambda draw: np.full(TABLETS, 5e9),
    "uniform": lambda draw: draw.uniform(1e9, 9e9, TABLETS),
    "lognormal": lambda draw: 5e9 * draw.lognormal(0, 1, TABLETS),
    "zipf": lambda draw: 1e9 * np.minimum(50, draw.zipf(2, TABLETS)),
}


def node_of(draw: np.random.Generator, at: int, *, alike: bool) -> ClusterNode:
    capacity = 10**13 if alike else int(draw.choice([5, 10, 20])) * 10**12
    rack = int(draw.choice(3)) if at >= 6 else at % 3  # racks of unequal size
    return ClusterNode(
        f"n{at}", "dc1", f"r{rack}", 2 if alike else int(draw.integers(1, 5)), capacity
    )


def made(draw: np.random.Generator, sizes: str, by: BalanceBy, *, alike: bool) -> BalanceColumns:
    """Return a cluster with one replica of each tablet on a random node of each of three racks."""
    nodes = [node_of(draw, at, alike=alike) for at in range(12)]
    racks = [[at for at, node in enumerate(nodes) if node.rack == f"r{rack}"] for rack in range(3)]
    where = np.stack([draw.choice(of, TABLETS) for of in racks], axis=1)
    shard = np.zeros_like(where)
    table = draw.integers(0, TABLES, TABLETS)
    size = np.rint(SIZES[sizes](draw))
    return BalanceColumns(
        nodes, TABLES, table, size, where, shard, options=BalanceOptions(balance_by=by)
    )


def churned(draw: np.random.Generator, state: BalanceColumns) -> BalanceColumns:
    """Return the cluster after one change: a node joins, leaves, dies, goes down or recovers, or a tenth
    of the tablets grow.
    """
    normal = np.flatnonzero(state.state == NodeRole.NORMAL)
    node = int(draw.choice(normal))
    alone = (state.rack[normal] == state.rack[node]).sum() == 1
    what = draw.choice(["add", "add", "drain", "die", "down", "back", "grow"])
    if what == "add" or alone:
        return rebuilt(state, node_of(draw, len(state.nodes), alike=True))
    if what == "back":
        for down in np.flatnonzero(state.state == NodeRole.DOWN).tolist():
            state.state[down] = NodeRole.NORMAL
    elif what == "grow":
        for unit in draw.choice(TABLETS, TABLETS // 10, replace=False).tolist():
            state.size[unit] = np.rint(state.size[unit] * draw.uniform(1, 3))
    else:
        states = {"drain": NodeRole.DRAINING, "die": NodeRole.EXCLUDED, "down": NodeRole.DOWN}
        state.state[node] = states[what]
    return rebuilt(state)


def rebuilt(state: BalanceColumns, *new: ClusterNode) -> BalanceColumns:
    """Return the same cluster with the ``new`` nodes, rebuilt from its columns."""
    nodes = [
        msgspec.structs.replace(node, state=now)
        for node, now in zip(state.nodes, state.state, strict=True)
    ]
    nodes += new
    options = msgspec.structs.replace(
        state.options, minimal_tablet_size_bytes=int(state.minimal_size)
    )
    table, node, shard = (c.astype(np.int64) for c in (state.table, state.node, state.shard))
    return BalanceColumns(nodes, TABLES, table, state.size, node, shard, options=options)


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("by", BalanceBy)
@pytest.mark.parametrize("seed", range(2))
def test_every_change_is_planned_to_a_fixed_point(
    seed: int, by: BalanceBy, sizes: str, alike: bool
) -> None:
    draw = np.random.default_rng(seed)
    state = made(draw, sizes, by, alike=alike)
    names = [f"ks.t{table}" for table in range(TABLES)]
    for _ in range(8):
        assert plan_to_fixed_point(state, names).converged
        assert plan_to_fixed_point(rebuilt(state), names).moves == []
        racks = state.rack[state.node]
        assert all(len(set(row)) == 3 for row in racks.tolist()), "two replicas in one rack"
        left = np.isin(state.state, LEAVING)
        assert not state.count[:, left].any(), "a leaving node still has replicas"
        even(state)
        state = churned(draw, state)


def even(state: BalanceColumns) -> None:
    """Check that the live nodes of a rack have equal counts within one, or loads within 2 %."""
    part = state.state == NodeRole.NORMAL
    one_size = state.unit_load.min() == state.unit_load.max()
    by_count = state.options.balance_by is BalanceBy.COUNT
    for rack in range(3):
        here = part & (state.rack == rack)
        weight = (state.shards if by_count else state.capacity)[here].astype(float)
        if one_size and by_count:
            for row in state.count:
                ideal = row[here].sum() * weight / weight.sum()
                assert (np.abs(row[here] - ideal) < 1).all()
        if not by_count:
            level = state.load[:, here].sum(axis=0) / weight
            largest = state.unit_load.max() / weight.min()
            assert level.max() - level.min() <= 0.02 * level.mean() + (largest if one_size else 0)
