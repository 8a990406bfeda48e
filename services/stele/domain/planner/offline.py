"""A plan for a described cluster with its evenness before and after, for ``stele plan --file``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stele.domain.json_documents import json_schema
from stele.domain.planner.cluster import Cluster, ClusterTable, Tablet
from stele.domain.planner.moves import ReplicaMove
from stele.domain.planner.plan import plan_to_fixed_point
from stele.domain.planner.planned import (
    Evenness,
    NodeLoad,
    OfflinePlan,
    PlannedMove,
    TableSpread,
    Unmovable,
)
from stele.domain.planner.scopes import participation, scopes, stopped
from stele.domain.planner.shares import Reals
from stele.domain.planner.state import LEAVING, NOBODY, BalanceColumns, ReplicaRates, heat_of
from stele.domain.planner.verdicts import summed_up, verdicts_from

# Conversion of a cluster's description to columns, and the names behind its numbers.


@dataclass(frozen=True, slots=True)
class ClusterColumns:
    """A cluster in columns.

    ``units`` are the tablets of each unit with their tables. ``names`` are those of the units'
    tables.
    """

    state: BalanceColumns
    units: list[list[tuple[ClusterTable, Tablet]]]
    names: list[str]


def described(cluster: Cluster) -> ClusterColumns:
    """Return the columns of a cluster that has been checked."""
    groups = {table.full_name: [table] for table in cluster.tables if not table.colocated_with}
    for table in cluster.tables:
        if table.colocated_with:
            groups[table.colocated_with].append(table)
    numbers = {node.id: at for at, node in enumerate(cluster.nodes)}
    units = list[list[tuple[ClusterTable, Tablet]]]()
    of_table = list[int]()
    for number, tables in enumerate(groups.values()):
        for tablets in zip(*(table.tablets for table in tables), strict=True):
            units.append(list(zip(tables, tablets, strict=True)))
            of_table.append(number)
    width = max((len(unit[0][1].replicas) for unit in units), default=1)
    node = np.full((len(units), width), NOBODY)
    shard = np.zeros((len(units), width), np.int64)
    size, rate = np.empty(len(units)), np.zeros(len(units))
    for at, unit in enumerate(units):
        replicas = unit[0][1].replicas
        for place, (name, on) in enumerate(replicas):
            node[at, place], shard[at, place] = numbers[name], on
        sizes = [tablet.size_bytes for _, tablet in unit]
        # One tablet of unknown size makes the whole unit unknown.
        size[at] = np.nan if None in sizes else sum(filter(None, sizes))
        rate[at] = sum(tablet.rate or 0.0 for _, tablet in unit)
    busy = np.array([any(one.in_transition for _, one in unit) for unit in units], np.bool_)
    state = BalanceColumns(
        list(cluster.nodes),
        len(groups),
        np.array(of_table, np.int64),
        size,
        node,
        shard,
        busy,
        cluster.options,
        ReplicaRates(rate, heat_of(rate, cluster.options.minimal_tablet_rate)),
    )
    for number, tables in enumerate(groups.values()):
        for dc, racks in tables[0].racks.items():
            state.list_racks(number, dc, racks)
    return ClusterColumns(state, units, list(groups))


# The evenness of a cluster, for people.


def bytes_of(state: BalanceColumns) -> Reals:
    """Return bytes by (tables, nodes); unknown sizes count as 0."""
    return _sums(state, np.nan_to_num(state.size))


def _sums(state: BalanceColumns, of_unit: Reals) -> Reals:
    """Return sums of a unit's value by (tables, nodes)."""
    flat = state.node.ravel()
    there = np.flatnonzero(flat >= 0)
    unit = there // state.width
    nodes = len(state.nodes)
    key = state.table[unit].astype(np.int64) * nodes + flat[there]
    found = np.bincount(key, of_unit[unit], state.tables * nodes)
    return found.reshape(state.tables, nodes).astype(np.float64)


def evenness(state: BalanceColumns, names: list[str]) -> Evenness:
    """Return the present evenness; ``names`` are those of the tables."""
    of_share = np.full(len(state.nodes), np.nan)
    spreads = dict[int, tuple[int, int]]()
    now = participation(state, draining=False)
    for scope in scopes(state, now):
        at = np.ix_(scope.table, scope.columns)
        held = np.where(scope.mask, state.count[at], 0)
        load = np.where(scope.mask, state.load[at], 0.0)
        goal = (scope.wanted * (load.sum(axis=1) / held.sum(axis=1))[:, None]).sum(axis=0)
        has_share = goal > 0
        of_share[scope.columns[has_share]] = load.sum(axis=0)[has_share] / goal[has_share]
        for row, table in enumerate(scope.table.tolist()):
            counts = held[row][scope.wanted[row] > 0]
            spread = (int(counts.min()), int(counts.max()))
            spreads[table] = max(spreads.get(table, spread), spread, key=lambda of: of[1] - of[0])
    size, replicas = bytes_of(state).sum(axis=0), state.count.sum(axis=0)
    rate = _sums(state, state.rate).sum(axis=0)
    return Evenness(
        max_over_mean=round(float(np.nanmax(of_share, initial=0.0)), 6),
        nodes=tuple(
            NodeLoad(
                node.id,
                int(replicas[at]),
                int(size[at]),
                None if np.isnan(of_share[at]) else round(float(of_share[at]), 6),
                round(float(rate[at]), 1),
            )
            for at, node in enumerate(state.nodes)
        ),
        tables=tuple(TableSpread(names[t], *spread) for t, spread in sorted(spreads.items())),
    )


# A lower bound of the bytes that any plan must move to end as even as a given one.


def least_bytes(state: BalanceColumns, before: Reals) -> int:
    """Return the bytes that must go from node to node at least.

    ``before`` has shape (tables, nodes), and ``state`` is the state at the end. In each dc, the
    bytes above the fullest level of the end must leave their node. The bytes missing to the
    emptiest level must arrive. Both hold for nodes and for each table; the largest of these counts.
    Levels are fractions of the shares.
    """
    after = bytes_of(state)
    now = participation(state, draining=False)
    counted = np.zeros(len(state.nodes), np.bool_)
    # By dc, the bytes that must leave and those that must arrive, for all columns and for each
    # table. One move may do both, even from one scope to another.
    of_columns = np.zeros((len(state.dcs), 2))
    of_rows = np.zeros((len(state.dcs), state.tables, 2))
    for scope in scopes(state, now):
        columns = scope.columns
        counted[columns] = True
        at = np.ix_(scope.table, columns)
        # ``after`` includes bytes from, and on, nodes outside the scope; ``before`` does not.
        start, end = (np.where(scope.mask, part[at], 0.0) for part in (before, after))
        held = np.where(scope.mask, state.count[at], 0)
        share = scope.wanted * (end.sum(axis=1) / held.sum(axis=1))[:, None]
        dc = int(state.dc[columns[0]])
        of_columns[dc] += _least(start.sum(axis=0), end.sum(axis=0), share.sum(axis=0))
        for table, *row in zip(scope.table.tolist(), start, end, share, strict=True):
            of_rows[dc, table] += _least(*row)
    least = np.maximum(of_columns.max(axis=1), of_rows.max(axis=2).sum(axis=1)).sum()
    left = np.isin(state.state, LEAVING) & ~counted
    leaving = (before - after)[:, left]
    return int(max(least, leaving[leaving > 0].sum()))


def _least(start: Reals, end: Reals, share: Reals) -> tuple[float, float]:
    """Return the bytes that must leave, and those that must arrive."""
    real = share > 0
    if not real.any():
        return 0.0, 0.0
    level = end[real] / share[real]
    above = np.maximum(0.0, start[real] - share[real] * level.max())
    below = np.maximum(0.0, share[real] * level.min() - start[real])
    return float(above.sum()), float(below.sum())


Named = Callable[[int], list[tuple[str, str, int | str]]]
"""The tablets of a unit: keyspace, table and id of each."""


def plan_offline(cluster: Cluster) -> OfflinePlan:
    """Plan to the fixed point. The cluster has been checked."""
    what = described(cluster)

    def named(unit: int) -> list[tuple[str, str, int | str]]:
        return [(table.keyspace, table.name, tablet.id) for table, tablet in what.units[unit]]

    return whole_plan(what.state, what.names, named)


def whole_plan(state: BalanceColumns, names: list[str], named: Named) -> OfflinePlan:
    """Plan to the fixed point, in ``state``; ``names`` are those of the tables."""
    first = bytes_of(state)
    before = evenness(state, names)
    plan = plan_to_fixed_point(state, names)
    size = np.nan_to_num(state.size)
    between = sum(size[move.unit] for move in plan.moves if move.source[0] != move.target[0])
    within = sum(size[move.unit] for move in plan.moves if move.source[0] == move.target[0])
    return OfflinePlan(
        moves=tuple(each for move in plan.moves for each in _planned_moves(state, named, move)),
        converged=plan.converged,
        unmovable=tuple(_unmovable(state, names, named)),
        before=before,
        after=evenness(state, names),
        moved_bytes=int(between),
        moved_within_nodes_bytes=int(within),
        lower_bound_bytes=least_bytes(state, first),
    )


def _planned_moves(state: BalanceColumns, named: Named, move: ReplicaMove) -> list[PlannedMove]:
    """Return the move of each tablet of a unit."""
    nodes = state.nodes
    return [
        PlannedMove(
            keyspace,
            table,
            tablet,
            (nodes[move.source[0]].id, move.source[1]),
            (nodes[move.target[0]].id, move.target[1]),
            move.kind,
            move.reason,
        )
        for keyspace, table, tablet in named(move.unit)
    ]


def _unmovable(state: BalanceColumns, names: list[str], named: Named) -> list[Unmovable]:
    found = list[Unmovable]()
    now = participation(state, draining=True)
    for node in np.flatnonzero(np.isin(state.state, LEAVING)).tolist():
        for replica in state.members(node).tolist():
            unit = replica // state.width
            if state.busy[unit]:
                reason = "the tablet moves already"
            elif stopped(state, int(state.dc[node]), now):
                reason = "sizes of tablets in its dc are unknown, so free space is unknown"
            else:
                reason = summed_up(verdicts_from(state, names, unit, node))
            found.extend(
                Unmovable(keyspace, table, tablet, state.nodes[node].id, reason)
                for keyspace, table, tablet in named(unit)
            )
    return found


def schema() -> bytes:
    """Return the JSON Schema of the file and of the answer."""
    return json_schema(Cluster, answer=OfflinePlan)
