"""The object of balancing: rows of replicas in columns.

The columns are nodes or the shards of a node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from stele.domain.balance.shares import Bools, Ints, Reals

MUST_GO: Final = 1e6
"""Level of a column whose share is zero, above all others."""


class Pile:
    """The replicas of one row in one column, ordered by load; equal ones in the order given."""

    def __init__(self, loads: list[float], replicas: list[int]) -> None:
        self.loads, self.replicas = loads, replicas

    def take(self, at: int) -> int:
        self.loads.pop(at)
        return self.replicas.pop(at)

    def near(self, load: float, most: float) -> Iterator[int]:
        """Yield places of replicas with a load below ``most``, the nearest to ``load`` first."""
        loads = self.loads
        end = bisect_left(loads, most)
        above = min(bisect_left(loads, load), end)
        below = above - 1
        while below >= 0 or above < end:
            if above >= end or (below >= 0 and load - loads[below] <= loads[above] - load):
                yield below
                below -= 1
            else:
                yield above
                above += 1


class BoardNodes(Protocol):
    """The cluster behind a board."""

    def pile(self, row: int, column: int) -> Pile:
        """Return the replicas that may be moved. The board requests each pile once."""
        ...

    def fits(self, replica: int, column: int) -> bool:
        """Return True if the rules of placement allow the replica in the column."""
        ...

    def waits(self, replica: int) -> bool:
        """Return True if the replica may move only in another round."""
        ...

    def move(self, replica: int, source: int, target: int, reason: Callable[[], str]) -> bool:
        """Move the replica. Return False if the target takes no more in this round."""
        ...


@dataclass(slots=True)
class Board:
    """Shares, replicas and loads by row and column.

    ``wanted``, ``held`` and ``load`` have shape (rows, columns): shares in replicas, replicas, and
    their load. ``largest`` is the load of the largest unit of each row. ``measured`` names the unit
    of loads, for people.
    """

    places: BoardNodes
    wanted: Reals
    held: Ints
    load: Reals
    largest: Reals
    leaves: Bools
    threshold: float
    measured: str
    row_names: list[str]
    column_names: list[str]
    total: Reals = field(init=False)
    missing: Reals = field(init=False)
    """Replicas that each column lacks to its share."""
    goal_row: Reals = field(init=False)
    goal: Reals = field(init=False)
    level: Reals = field(init=False)
    closed: Bools = field(init=False)
    piles: dict[tuple[int, int], Pile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mean = self.load.sum(axis=1) / np.maximum(1, self.held.sum(axis=1))
        self.total = self.load.sum(axis=0)
        self.missing = (self.wanted - self.held).sum(axis=0)
        self.goal_row = self.wanted * mean[:, None]
        self.goal = self.goal_row.sum(axis=0)
        # A column without a share is above all others while it holds anything.
        empty = np.where(self.total > 0, MUST_GO + self.total, 0.0)
        self.level = np.divide(self.total, self.goal, out=empty, where=self.goal > 0)
        self.closed = self.leaves.copy()

    def uneven(self) -> bool:
        """Return True if loads differ by more than the threshold, over columns or within a row.

        Any load in a place without a share is uneven, too.
        """
        if self.total[self.leaves].any():
            return True
        real = self.goal > 0
        if _spread(self.level[real]) > self.threshold:
            return True
        real_rows = self.goal_row > 0
        at = np.divide(self.load, self.goal_row, out=np.zeros(self.load.shape), where=real_rows)
        most = at.max(axis=1, initial=0.0)
        fewest = np.where(real_rows, at, np.inf).min(axis=1, initial=np.inf)
        outside = self.load[~real_rows].any()
        return bool(outside or (most - fewest > self.threshold * most).any())

    def pile(self, row: int, column: int) -> Pile:
        pile = self.piles.get((row, column))
        if pile is None:
            pile = self.piles[row, column] = self.places.pile(row, column)
        return pile

    def move(self, row: int, source: int, target: int, at: int, reason: Callable[[], str]) -> None:
        """Move the replica at this place of the pile of (row, source)."""
        pile = self.pile(row, source)
        load = pile.loads[at]
        # The state contains the move in either case. A full target is closed for this round.
        if not self.places.move(pile.take(at), source, target, reason):
            self.closed[target] = True
        for column, sign in ((source, -1), (target, 1)):
            self.held[row, column] += sign
            self.load[row, column] += sign * load
            self.total[column] += sign * load
            self.missing[column] -= sign
            goal = self.goal[column]
            total = self.total[column]
            self.level[column] = total / goal if goal > 0 else (MUST_GO + total) * (total > 0)


def _spread(levels: Reals) -> float:
    most = levels.max(initial=0.0)
    return float((most - levels.min()) / most) if most > 0 else 0.0
