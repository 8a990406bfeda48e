"""A lower bound of the bytes that any plan must move to end as even as a given one."""

from __future__ import annotations

import numpy as np

from stele.domain.balance.evenness import bytes_of
from stele.domain.balance.scopes import scopes, standing
from stele.domain.balance.shares import Reals
from stele.domain.balance.state import LEAVING, BalanceColumns


def least_bytes(state: BalanceColumns, before: Reals) -> int:
    """Return the bytes that must go from node to node at least.

    ``before`` has shape (tables, nodes), and ``state`` is the state at the end. In each dc, the
    bytes above the fullest level of the end must leave their node. The bytes missing to the
    emptiest level must arrive. Both hold for nodes and for each table; the largest of these counts.
    Levels are fractions of the shares.
    """
    after = bytes_of(state)
    now = standing(state, draining=False)
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
