"""Balancing of rows of replicas in columns: the nodes, or the shards of a node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from stele.domain.planner.cluster import BalanceBy, NodeRole
from stele.domain.planner.moves import Round, by_shard
from stele.domain.planner.scopes import BalanceScope, weights
from stele.domain.planner.shares import Bools, Ints, Reals, quotas
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


@dataclass(slots=True)
class Board:
    """Shares, replicas and loads by row and column.

    ``wanted``, ``held`` and ``load`` have shape (rows, columns): shares in replicas, replicas, and
    their load. ``largest`` is the load of the largest unit of each row. ``measured`` names the unit
    of loads, for people.
    """

    places: NodePlaces | ShardPlaces
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
        if _unevenness(self.level[real]) > self.threshold:
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


def _unevenness(levels: Reals) -> float:
    most = levels.max(initial=0.0)
    return float((most - levels.min()) / most) if most > 0 else 0.0


# Boards of nodes and of shards, the two levels that are balanced in the same way.


class NodePlaces:
    """The nodes of a scope as columns, and its tables as rows.

    The board requests each pile once.
    """

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
        is_dead = bool(state.state[source] == NodeRole.EXCLUDED)
        if self.waits(replica) or replica in state.pinned:
            return False
        if state.is_shut(target, of_excluded=is_dead):
            return False
        # Replicas of a leaving node ignore switches and unknown capacities, because a leave must
        # not wait.
        if state.state[source] not in LEAVING:
            still = int(state.table[replica // state.width]) in state.still
            if still or self._keeps[source] or self._keeps[target]:
                return False
        return state.fits(replica, target)

    def waits(self, replica: int) -> bool:
        """Return True if the replica may move only in another round."""
        return self._plan.waits(replica)

    def move(self, replica: int, source: int, target: int, reason: Callable[[], str]) -> bool:
        """Move the replica. Return False if the target takes no more in this round."""
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


# Balancing of units: those of equal size by quotas, others by the measures that a move lowers.


def even_counts(board: Board, sources: Bools) -> Iterator[None]:
    """Bring each column and each row to its share, rounded down or up, as far as the rules allow.

    ``sources`` are the columns that may give. The most loaded one gives first, to the least loaded
    one. Yields after each move.
    """
    quota = quotas(board.wanted, board.held)
    surplus = board.held - quota
    gives = sources & (surplus > 0).any(axis=0)
    while gives.any():
        source = int(np.where(gives, board.level, -1.0).argmax())
        row = int(surplus[:, source].argmax())
        if surplus[row, source] <= 0:
            gives[source] = False
        elif _give(board, surplus, quota, row, source):
            yield
        else:
            # The row cannot leave this column now. The loop must not choose it again.
            surplus[row, source] = 0
            if not board.leaves.any() and not (surplus < 0)[:, ~board.closed].any():
                return  # no column takes more in this round


def _give(board: Board, surplus: Ints, quota: Ints, row: int, source: int) -> bool:
    """Move one replica of the row from ``source`` to a column that lacks one.

    False if no rule allows it.
    """
    missing = _by_level(board, surplus[row] < 0)
    for target in missing:
        if _move(board, surplus, quota, row, source, target):
            return True
    if not missing and not board.leaves[source]:
        return False
    if any(map(board.places.waits, board.pile(row, source).replicas)):
        return False  # no rule forbids it, only this round: the next one needs no detour
    for target in missing:
        for between in _by_level(board, board.wanted[row] > 0):
            if between in (source, target):
                continue
            if _detour(board, surplus, quota, row, (source, between, target)):
                return True
    # A column that must be emptied gives its replica even to a column that lacks none, unless a
    # column that lacks one takes it in a later round: then the replica would move twice.
    if board.leaves[source] and not _later(board, surplus, row, source):
        for target in _by_level(board, board.wanted[row] > 0):
            if _move(board, surplus, quota, row, source, target):
                return True
    return False


def _later(board: Board, surplus: Ints, row: int, source: int) -> bool:
    """Return True if a column that lacks a replica takes one only in a later round."""
    full = np.flatnonzero((surplus[row] < 0) & board.closed & ~board.leaves).tolist()
    return any(_fitting(board, row, source, target) is not None for target in full)


def _by_level(board: Board, which: Bools) -> list[int]:
    found = np.flatnonzero(which & ~board.closed)
    order: list[int] = found[np.argsort(board.level[found], kind="stable")].tolist()
    return order


def _fitting(board: Board, row: int, source: int, target: int) -> int | None:
    fits = board.places.fits
    pile = board.pile(row, source)
    return next((at for at, one in enumerate(pile.replicas) if fits(one, target)), None)


def _move(board: Board, surplus: Ints, quota: Ints, row: int, source: int, target: int) -> bool:
    at = _fitting(board, row, source, target)
    if at is None:
        return False
    held = [(board.column_names[c], board.held[row, c], quota[row, c]) for c in (source, target)]

    def reason() -> str:
        (giver, has, share), (getter, few, wants) = held
        name = board.row_names[row]
        return f"{giver} has {has} replicas of {name}, its share is {share}; {getter} has {few} of {wants}"

    board.move(row, source, target, at, reason)
    surplus[row, source] -= 1
    surplus[row, target] += 1
    return True


def _detour(board: Board, surplus: Ints, quota: Ints, row: int, way: tuple[int, int, int]) -> bool:
    """Make two moves if no single one is allowed: the column between gives one and gets one."""
    source, between, target = way
    if _fitting(board, row, source, between) is None:
        return False
    if not _move(board, surplus, quota, row, between, target):
        return False
    if _move(board, surplus, quota, row, source, between):
        return True
    surplus[row, between] = 0  # the rest waits until this replica has arrived
    return True


# Balancing of units of different size: each move lowers one measure and never inverts an order.
#
# The measure is the sum of squared deviations from the shares, each divided by its share. The sum
# covers the columns and, with less weight, the rows of each column. Each move lowers the measure,
# so the moves come to an end. At the end no move lowers it.


COLUMN_WEIGHT: Final = 8.0
"""Weight of columns in comparison with rows. A full disk is worse than an uneven table."""
ROW_THRESHOLD: Final = 0.1
"""Fraction of a share. A row is even if its excess is below this fraction plus its largest unit."""
LARGE: Final = 0.25
"""Fraction of a column's share. Larger units are placed before smaller ones fill the rest."""
PASSES: Final = 4
"""Largest number of passes in a round. The rest is left for the next one."""
_LESS: Final = 1 - 1e-9


def even_sizes(board: Board) -> Iterator[None]:
    """Balance the columns, then rows that are far off, then the columns again.

    Yields after each move.
    """
    # Large replicas come first. When small tablets had filled the other nodes, of four hot tablets
    # on one node three stayed together (docs/decisions/022-rates-count-as-they-were.md).
    if board.largest.max(initial=0.0) > LARGE * board.goal[board.goal > 0].min(initial=np.inf):
        yield from _spread(board, _large_to)
    for _ in range(PASSES):
        yield from _spread(board, _to)
        moved = False
        for _ in _even_rows(board):
            moved = True
            yield
        if not moved:
            return


def drain(board: Board) -> Iterator[None]:
    """Empty the columns that must become empty, the largest replicas first.

    Each goes to where it adds the least unevenness. It waits for a column below its share that
    takes no more in this round, rather than going to one above its share and moving again later.
    Yields after each move.
    """
    leaving = np.flatnonzero(board.leaves)
    for source in sorted(leaving.tolist(), key=lambda column: -board.total[column]):
        for row in np.flatnonzero(board.held[:, source]).tolist():
            pile = board.pile(row, source)
            # The largest are at the end. From there, a removal leaves the other positions valid.
            for at in range(len(pile.replicas) - 1, -1, -1):
                if _drain_one(board, row, source, at):
                    yield


def _drain_one(board: Board, row: int, source: int, at: int) -> bool:
    pile = board.pile(row, source)
    load, replica = pile.loads[at], pile.replicas[at]
    may = np.flatnonzero((board.goal > 0) & ~board.leaves)
    goal = board.goal[may]
    after = board.level[may] + load / (2 * goal)
    off = (board.load[row, may] - board.goal_row[row, may]) / goal
    waits = False
    for target in may[np.argsort(COLUMN_WEIGHT * after + off, kind="stable")].tolist():
        is_below = bool(board.level[target] < 1)
        if (waits and not is_below) or not board.places.fits(replica, target):
            continue
        if not board.closed[target]:
            board.move(row, source, target, at, lambda: "")
            return True
        waits = waits or is_below
    return False


def _spread(board: Board, to: Callable[[Board, int, int], bool]) -> Iterator[None]:
    """Move from the fullest column to the emptiest while ``to`` finds a move; yield after each."""
    tried = board.leaves | (board.goal <= 0)
    while not tried.all():
        source = int(np.where(tried, -1.0, board.level).argmax())
        most = board.level[source]
        targets = np.flatnonzero(~board.closed & (board.goal > 0))
        targets = targets[board.level[targets] < most * (1 - board.threshold)]
        order = targets[np.argsort(board.level[targets], kind="stable")]
        if not len(order):
            return
        if any(to(board, source, target) for target in order.tolist()):
            yield
        else:
            tried[source] = True


def _large_to(board: Board, source: int, target: int) -> bool:
    """Move one of the largest replicas if that inverts no order.

    Later there would be no room for it.
    """
    gap = _row_gaps(board, source, target)
    between, per_load = _apart(board, source, target)
    least, level = LARGE * board.goal[target], board.level.__getitem__
    for row in np.flatnonzero((board.held[:, source] > 0) & (board.largest > least)).tolist():
        limit = min(between / per_load * _LESS, _lowers(between, per_load, float(gap[row])))
        size = limit, limit
        if limit > least and _place(board, row, source, target, size, board.measured, level, least):
            return True
    return False


def _to(board: Board, source: int, target: int) -> bool:
    """Move one replica from ``source`` to ``target``. False if none would help or none may move."""
    room = min(board.total[source] - board.goal[source], board.goal[target] - board.total[target])
    gap = _row_gaps(board, source, target)
    rows = np.flatnonzero(board.held[:, source] > 0)
    rows = rows[np.argsort(-gap[rows], kind="stable")]
    # With this size a new node gets a fair sample, not all large replicas.
    near = _typical(board, source, target, room)
    between, per_load = _apart(board, source, target)
    turns_round, level = between / per_load * _LESS, board.level.__getitem__
    # At first no move crosses a share, so that no byte moves in vain. If none fits, it may.
    for most in (float(room), np.inf):
        for row in rows.tolist():
            limit = min(most, turns_round, _lowers(between, per_load, float(gap[row])))
            size = min(near, limit), limit
            if limit > 0 and _place(board, row, source, target, size, board.measured, level):
                return True
    return False


def _row_gaps(board: Board, source: int, target: int) -> Reals:
    """Return by row how much more ``source`` exceeds its share than ``target``, as fractions."""
    here = (board.load[:, source] - board.goal_row[:, source]) / board.goal[source]
    there = (board.load[:, target] - board.goal_row[:, target]) / board.goal[target]
    gap: Reals = here - there
    return gap


def _typical(board: Board, source: int, target: int, room: float) -> float:
    """Return the replica size that brings loads and counts to their shares together."""
    over, under = -board.missing[source], board.missing[target]
    return float(room / max(1.0, min(over, under))) if room > 0 else np.inf


def _apart(board: Board, source: int, target: int) -> tuple[float, float]:
    """Return how much higher the level of ``source`` is, and how much a moved byte lowers that."""
    per_load = 1 / board.goal[source] + 1 / board.goal[target]
    return float(board.level[source] - board.level[target]), float(per_load)


def _lowers(between: float, per_load: float, gap: float) -> float:
    """Return the smallest load whose move improves nothing. ``gap`` is that of the row."""
    return 2 * (COLUMN_WEIGHT * between + gap) / (COLUMN_WEIGHT + 1) / per_load * _LESS


def _place(
    board: Board,
    row: int,
    source: int,
    target: int,
    size: tuple[float, float],
    what: str,
    level: Callable[[int], float],
    least: float = 0.0,
) -> bool:
    """Move a replica of about the first size and below the second. False if none may move.

    With ``least``, both sizes are equal, and the replica has at least that load. ``level`` returns
    the load of a column by ``what``, as a fraction of its share; it appears in the reason.
    """
    pile = board.pile(row, source)
    for at in pile.near(*size):
        if pile.loads[at] < least:
            return False
        if board.places.fits(pile.replicas[at], target):
            reason = partial(
                "{} has {} of its share of {}, {} has {}".format,
                board.column_names[source],
                f"{100 * level(source):.1f} %",
                what,
                board.column_names[target],
                f"{100 * level(target):.1f} %",
            )
            board.move(row, source, target, at, reason)
            return True
    return False


def _even_rows(board: Board) -> Iterator[None]:
    """Move replicas of rows that are far from even, the furthest first."""
    far = _far_off(board)
    for flat in np.argsort(-far, axis=None, kind="stable")[: int((far > 0).sum())]:
        row, source = divmod(int(flat), far.shape[1])
        while board.load[row, source] > _tolerated(board, row, source):
            if not _even_row_of(board, row, source):
                break
            yield


def _tolerated(board: Board, row: int, column: int) -> float:
    return float((1 + ROW_THRESHOLD) * board.goal_row[row, column] + board.largest[row])


def _far_off(board: Board) -> Reals:
    """Return how far each row exceeds its tolerance, as a fraction of the column's share."""
    over = board.load - (1 + ROW_THRESHOLD) * board.goal_row - board.largest[:, None]
    goal = np.where(board.goal > 0, board.goal, np.inf)
    far: Reals = np.where(board.leaves, 0.0, over / goal)
    return far


def _even_row_of(board: Board, row: int, source: int) -> bool:
    low: Bools = (board.load[row] < board.goal_row[row]) & ~board.closed & (board.goal > 0)
    missing = (board.goal_row[row] - board.load[row])[low] / board.goal[low]

    def level(column: int) -> float:
        return float(board.load[row, column] / max(1.0, board.goal_row[row, column]))

    for target in np.flatnonzero(low)[np.argsort(-missing, kind="stable")].tolist():
        gap = float(_row_gaps(board, source, target)[row])
        between, per_load = _apart(board, source, target)
        limit = min(_lowers(between, per_load, gap), gap / per_load)
        size, name = (limit / 2, limit), board.row_names[row]
        if limit > 0 and _place(board, row, source, target, size, name, level):
            return True
    return False
