"""Short descriptions of clusters, and a checker that knows the rules but not the planner's formulas."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from stele.domain.planner.cluster import (
    BalanceBy,
    BalanceOptions,
    Cluster,
    ClusterNode,
    ClusterTable,
    NodeRole,
    Tablet,
    check,
)
from stele.domain.planner.offline import plan_offline
from stele.domain.planner.planned import OfflinePlan

COUNT = BalanceOptions(balance_by=BalanceBy.COUNT)
GIB = 1 << 30


def node(
    name: str,
    shards: int = 2,
    rack: str = "r1",
    dc: str = "dc1",
    state: NodeRole = NodeRole.NORMAL,
    capacity_bytes: int | None = None,
) -> ClusterNode:
    return ClusterNode(name, dc, rack, shards, capacity_bytes, state)


def table(
    replicas: Sequence[Sequence[str | tuple[str, int]]],
    name: str = "t",
    factor: int | None = None,
    size_bytes: int | Sequence[int | None] | None = 5 * GIB,
    colocated_with: str | None = None,
    rates: Sequence[float | None] | None = None,
) -> ClusterTable:
    """Return a table of tablets with replicas on these nodes, on shard 0 by default."""
    sizes = size_bytes if isinstance(size_bytes, Sequence) else [size_bytes] * len(replicas)
    tablets = [
        Tablet(at, tuple((one, 0) if isinstance(one, str) else one for one in row), size, rate=rate)
        for at, (row, size, rate) in enumerate(
            zip(replicas, sizes, rates or [None] * len(replicas), strict=True)
        )
    ]
    return ClusterTable(
        "ks", name, factor or max(map(len, replicas)), tuple(tablets), colocated_with
    )


def cluster(
    nodes: Iterable[ClusterNode], *tables: ClusterTable, options: BalanceOptions = COUNT
) -> Cluster:
    found = Cluster(tuple(nodes), tables, options)
    check(found)
    return found


def replayed(before: Cluster, plan: OfflinePlan) -> Cluster:
    """Return the cluster after all moves. Each move is checked against the rules of placement."""
    nodes = {each.id: each for each in before.nodes}
    where = {
        (each.keyspace, each.name, tablet.id): list(tablet.replicas)
        for each in before.tables
        for tablet in each.tablets
    }
    for move in plan.moves:
        row = where[move.keyspace, move.table, move.tablet]
        source, target = nodes[move.source[0]], nodes[move.target[0]]
        assert move.source in row, f"{move} starts where nothing is"
        assert move.reason
        assert target.dc == source.dc, f"{move} leaves its dc"
        assert target.state not in (NodeRole.DRAINING, NodeRole.EXCLUDED), f"{move}: no target"
        if source.state not in (NodeRole.DRAINING, NodeRole.EXCLUDED):
            assert NodeRole.DOWN not in (source.state, target.state), f"{move} waits for a node"
        assert move.target[1] < target.shards
        fullest = _fullest_rack(row, nodes, source.dc)
        row[row.index(move.source)] = move.target
        names = [name for name, _ in row]
        assert len(set(names)) == len(names), f"{move} makes two replicas on one node"
        if source.rack != target.rack:
            assert _fullest_rack(row, nodes, source.dc) <= fullest, f"{move} fills a rack"
        within = source.id == target.id
        assert (move.kind == "intranode_migration") == within
        assert (move.kind == "rebuild") == (source.state is NodeRole.EXCLUDED)
    tables = [
        msgspec.structs.replace(
            each,
            tablets=tuple(
                msgspec.structs.replace(
                    tablet, replicas=tuple(where[each.keyspace, each.name, tablet.id])
                )
                for tablet in each.tablets
            ),
        )
        for each in before.tables
    ]
    return msgspec.structs.replace(before, tables=tuple(tables))


def _fullest_rack(row: Iterable[tuple[str, int]], nodes: dict[str, ClusterNode], dc: str) -> int:
    racks = Counter(nodes[name].rack for name, _ in row if nodes[name].dc == dc)
    return max(racks.values())


def balanced(before: Cluster) -> tuple[OfflinePlan, Cluster]:
    """Return the plan and the cluster after it. Prefixes obey the rules, and a second pass plans nothing."""
    plan = plan_offline(before)
    assert plan.converged
    after = replayed(before, plan)
    assert plan_offline(after).moves == ()
    assert plan.lower_bound_bytes <= plan.moved_bytes
    return plan, after


def replicas_of(which: Cluster, name: str | None = None) -> dict[str, int]:
    """Return the number of replicas of each node, of one table or of all."""
    found = dict.fromkeys((each.id for each in which.nodes), 0)
    for each in which.tables:
        for tablet in each.tablets if name in (None, each.name) else ():
            for where, _ in tablet.replicas:
                found[where] += 1
    return found


def shards_of(which: Cluster, name: str, table_name: str | None = None) -> list[int]:
    """Return the number of replicas of each shard of a node."""
    shards = next(each.shards for each in which.nodes if each.id == name)
    found = Counter(
        shard
        for each in which.tables
        if table_name in (None, each.name)
        for tablet in each.tablets
        for where, shard in tablet.replicas
        if where == name
    )
    return [found[shard] for shard in range(shards)]


def bytes_of(which: Cluster) -> dict[str, int]:
    found = defaultdict[str, int](int)
    for each in which.tables:
        for tablet in each.tablets:
            for where, _ in tablet.replicas:
                found[where] += tablet.size_bytes or 0
    return {each.id: found[each.id] for each in which.nodes}


def spread(values: Iterable[int]) -> int:
    found = list(values)
    return max(found) - min(found)
