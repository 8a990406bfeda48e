"""Operations count beside bytes: their sum is evened out, and a hot tablet gets its own node if necessary."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from stele.domain.planner.cluster import RATE_WEIGHT, BalanceBy, BalanceOptions, Cluster
from stele.domain.planner.offline import plan_offline
from tests.domain.planner.clusters import (
    GIB,
    balanced,
    bytes_of,
    cluster,
    node,
    replicas_of,
    table,
)

NODES, RACKS, TABLETS = 12, 3, 600


def loads(which: Cluster) -> dict[str, float]:
    """Return by node the mean of its shares of all bytes and of all operations, relative to the average."""
    found = defaultdict[str, float](float)
    tablets = [tablet for each in which.tables for tablet in each.tablets]
    bytes_ = sum((t.size_bytes or 0) * len(t.replicas) for t in tablets)
    rates = sum((t.rate or 0) * len(t.replicas) for t in tablets)
    for tablet in tablets:
        for name, _ in tablet.replicas:
            found[name] += (tablet.size_bytes or 0) / bytes_ + (tablet.rate or 0) / rates
    return {each.id: found[each.id] * len(which.nodes) / 2 for each in which.nodes}


def zipf(sizes: str, exponent: float, seed: int) -> Cluster:
    """Return four tables with one replica in each rack, on random nodes, with the hottest tablets at random."""
    draw = np.random.default_rng(seed)
    nodes = [node(f"n{at}", 1, f"r{at % RACKS}") for at in range(NODES)]
    of_rack = [[n.id for n in nodes if n.rack == f"r{rack}"] for rack in range(RACKS)]
    rates = 1e6 / draw.permutation(np.arange(1, TABLETS + 1)) ** exponent
    bytes_ = np.full(TABLETS, 5.0) if sizes == "equal" else draw.lognormal(1, 1, TABLETS)
    tables = []
    for at in range(4):
        part = range(at, TABLETS, 4)
        rows = [[str(draw.choice(names)) for names in of_rack] for _ in part]
        size = [int(bytes_[n] * GIB) for n in part]
        served = [float(rates[n]) for n in part]
        tables.append(table(rows, f"t{at}", 3, size_bytes=size, rates=served))
    return cluster(nodes, *tables, options=BalanceOptions())


@pytest.mark.parametrize("sizes", ["equal", "lognormal"])
@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("seed", range(3))
def test_sum_of_bytes_and_zipf_rates_is_evened_out(sizes: str, exponent: float, seed: int) -> None:
    before = zipf(sizes, exponent, seed)
    plan, after = balanced(before)
    now = loads(after).values()
    assert max(loads(before).values()) > 1.15
    assert max(now) < 1.02
    moved = Counter((m.table, m.tablet, m.source[0]) for m in plan.moves)
    assert sum(moved.values()) < 1.1 * len(moved), "hardly a replica moves twice"
    assert plan.after.max_over_mean == pytest.approx(max(now), rel=0.02)


def one_hot(rate: float, weight: int = RATE_WEIGHT, by: BalanceBy = BalanceBy.SIZE) -> Cluster:
    """Return four nodes with ten tablets each. One tablet serves much more than the others."""
    rows = [[f"n{at % 4}"] for at in range(40)]
    rates = [rate, *[100.0] * 39]
    options = BalanceOptions(balance_by=by, rate_weight=weight)
    nodes = [node(f"n{at}", 1) for at in range(4)]
    return cluster(nodes, table(rows, rates=rates), options=options)


@pytest.mark.parametrize(("rate", "others"), [(100.0, 9), (1000.0, 6), (5000.0, 0), (10**6, 0)])
def test_node_with_a_hot_tablet_has_fewer_other_tablets(rate: float, others: int) -> None:
    _, after = balanced(one_hot(rate))
    counts = replicas_of(after)
    assert counts["n0"] == others + 1
    assert max(counts.values()) - min(counts[name] for name in ("n1", "n2", "n3")) <= 1


def test_rates_are_ignored_by_count_and_without_weight() -> None:
    for silent in (one_hot(10**6, by=BalanceBy.COUNT), one_hot(10**6, weight=0)):
        assert not plan_offline(silent).moves


def test_full_rate_weight_ignores_bytes() -> None:
    of = table([["n0"]] * 4, size_bytes=[90 * GIB, 1, 1, 1], rates=[100.0] * 4)
    nodes = [node("n0", 1), node("n1", 1)]
    _, after = balanced(cluster(nodes, of, options=BalanceOptions(rate_weight=100)))
    assert replicas_of(after) == {"n0": 2, "n1": 2}


def test_no_node_has_more_than_twice_its_share_of_bytes_or_operations() -> None:
    """The default weight guarantees this even if all bytes are in idle tablets."""
    rows = [[f"n{at % 4}"] for at in range(200)]
    size = [5 * GIB if at % 2 else 1 for at in range(200)]
    rates = [0.0 if at % 2 else 1000.0 for at in range(200)]
    before = cluster(
        [node(f"n{at}", 1) for at in range(4)],
        table(rows, size_bytes=size, rates=rates),
        options=BalanceOptions(minimal_tablet_size_bytes=1),
    )
    _, after = balanced(before)
    mean = sum(bytes_of(before).values()) / 4
    assert max(bytes_of(after).values()) <= 2.05 * mean
    assert max(loads(after).values()) < 1.05


def test_few_operations_do_not_outweigh_gigabytes() -> None:
    """One tablet serves one operation a second, and all others are idle."""
    rows = [[f"n{at % 4}"] for at in range(40)]
    quiet = cluster(
        [node(f"n{at}", 1) for at in range(4)],
        table(rows, rates=[1.0, *[0.0] * 39]),
        options=BalanceOptions(),
    )
    assert not plan_offline(quiet).moves


def test_plan_reports_the_rates_of_nodes() -> None:
    plan, _ = balanced(one_hot(5000.0))
    assert [each.rate for each in plan.before.nodes] == [5900.0, 1000.0, 1000.0, 1000.0]
    assert plan.after.nodes[0].rate == 5000.0
    assert all("of its share of bytes and operations" in move.reason for move in plan.moves)
