"""The object of balancing: rows of replicas in columns.

The columns are nodes or the shards of a node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import numpy as np

from stele.domain.planner.cluster import BalanceBy, NodeRole
from stele.domain.planner.moves import Round, by_shard
from stele.domain.planner.scopes import BalanceScope, weights
from stele.domain.planner.shares import Bools, Ints, Reals
from stele.domain.planner.state import LEAVING, BalanceColumns

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


# Boards of nodes and of shards, the two levels that are balanced in the same way.


class NodePlaces:
    """The nodes of a scope as columns, and its tables as rows."""

    def __init__(self, plan: Round, columns: Ints, table: Ints) -> None:
        self._plan = plan
        self._columns: list[int] = columns.tolist()
        self._table: list[int] = table.tolist()
        self._members = dict[int, tuple[Ints, Ints]]()
        down = plan.state.state == NodeRole.DOWN
        self._keeps: list[bool] = (down | weights(plan.state)[1]).tolist()
        """Nodes that give nothing, and get only replicas of leaving nodes."""

    def pile(self, row: int, column: int) -> Pile:
        """Return the replicas by load. Equal loads start with the fullest shard, then alternate."""
        state, node = self._plan.state, self._columns[column]
        if node not in self._members:
            replicas = state.members(node)
            self._members[node] = (replicas, state.table[replicas // state.width])
        replicas, tables = self._members[node]
        replicas = replicas[tables == self._table[row]]
        # The members were read earlier in this round. Replicas that have left since are dropped.
        replicas = replicas[state.node.ravel()[replicas] == node]
        return _pile(state, replicas)

    def fits(self, replica: int, column: int) -> bool:
        """Return True if the replica may move to the node.

        A node that is down or of unknown capacity gives nothing, and gets only replicas of leaving
        nodes. A table that stands still gives only replicas on leaving nodes.
        """
        state, target = self._plan.state, self._columns[column]
        source = int(state.node.ravel()[replica])
        if self.waits(replica) or replica in state.pinned or state.is_shut(source, target):
            return False
        # Replicas of a leaving node ignore switches and unknown capacities, because a leave must
        # not wait.
        if state.state[source] not in LEAVING:
            still = int(state.table[replica // state.width]) in state.still
            if still or self._keeps[source] or self._keeps[target]:
                return False
        return state.fits(replica, target)

    def waits(self, replica: int) -> bool:
        return self._plan.waits(replica)

    def move(self, replica: int, source: int, target: int, reason: Callable[[], str]) -> bool:
        state, node = self._plan.state, self._columns[source]
        leaves = state.state[node]
        if leaves == NodeRole.DRAINING:
            reason = partial(str, f"{state.nodes[node].id} is draining")
        elif leaves == NodeRole.EXCLUDED:
            reason = partial(str, f"{state.nodes[node].id} is dead for good")
        return self._plan.move(replica, self._columns[target], None, reason)


class ShardPlaces:
    """The shards of one node as columns, and its tables as rows."""

    def __init__(self, plan: Round, node: int, table: Ints) -> None:
        self._plan, self._node = plan, node
        self._table: list[int] = table.tolist()
        state = plan.state
        self._replicas = state.members(node)
        self._tables = state.table[self._replicas // state.width]

    def pile(self, row: int, column: int) -> Pile:
        state = self._plan.state
        replicas = self._replicas[self._tables == self._table[row]]
        replicas = replicas[state.shard.ravel()[replicas] == column]
        return _pile(state, replicas)

    def fits(self, replica: int, column: int) -> bool:
        """Return True if the replica may move.

        All shards of a node are equal to the rules of placement, but its table may stand still.
        """
        del column
        state = self._plan.state
        still = int(state.table[replica // state.width]) in state.still
        return not (still or self._node in state.shut or self.waits(replica))

    def waits(self, replica: int) -> bool:
        return self._plan.waits(replica)

    def move(self, replica: int, source: int, target: int, reason: Callable[[], str]) -> bool:
        del source
        return self._plan.move(replica, self._node, target, reason)


def _pile(state: BalanceColumns, replicas: Ints) -> Pile:
    loads = state.unit_load[replicas // state.width]
    shard = state.shard.ravel()[replicas].astype(np.int64)
    order = np.lexsort((replicas, shard))
    sizes = np.bincount(shard, minlength=1)
    rank = np.empty(len(replicas), np.int64)
    starts = np.cumsum(sizes) - sizes
    rank[order] = sizes[shard[order]] - (np.arange(len(order)) - starts[shard[order]])
    order = np.lexsort((replicas, -rank, loads))
    return Pile(loads[order].tolist(), replicas[order].tolist())


def node_board(plan: Round, scope: BalanceScope, names: list[str]) -> Board:
    """Return the board of a scope's nodes at present; ``names`` are those of all tables."""
    state = plan.state
    at = np.ix_(scope.table, scope.columns)
    return Board(
        places=NodePlaces(plan, scope.columns, scope.table),
        wanted=scope.wanted,
        held=np.where(scope.mask, state.count[at], 0),
        load=np.where(scope.mask, state.load[at], 0.0),
        largest=state.largest[scope.table],
        leaves=scope.leaves,
        threshold=threshold_of(state),
        measured=state.measured(),
        row_names=[names[table] for table in scope.table],
        column_names=[state.nodes[node].id for node in scope.columns],
    )


def shard_board(plan: Round, node: int, names: list[str]) -> Board:
    """Return the board of a node's shards at present."""
    state = plan.state
    table, held, load = by_shard(state, node)
    shards = int(state.shards[node])
    wanted = np.repeat(held.sum(axis=1)[:, None] / shards, shards, axis=1)
    name = state.nodes[node].id
    return Board(
        places=ShardPlaces(plan, node, table),
        wanted=wanted,
        held=held,
        load=load,
        largest=state.largest[table],
        leaves=np.zeros(shards, np.bool_),
        threshold=threshold_of(state),
        measured=state.measured(),
        row_names=[names[number] for number in table],
        column_names=[f"shard {shard} of {name}" for shard in range(shards)],
    )


def threshold_of(state: BalanceColumns) -> float:
    """Return the difference that counts as even.

    Counts are even only when no move can improve them.
    """
    by_count = state.options.balance_by is BalanceBy.COUNT
    return 0.0 if by_count else state.options.size_threshold
