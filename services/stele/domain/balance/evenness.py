"""The evenness of a cluster, for people."""

from __future__ import annotations

import numpy as np

from stele.domain.balance.planned import Evenness, NodeLoad, TableSpread
from stele.domain.balance.scopes import scopes, standing
from stele.domain.balance.shares import Reals
from stele.domain.balance.state import BalanceColumns


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
    now = standing(state, draining=False)
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
