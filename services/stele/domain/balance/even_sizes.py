"""Evening out what differs in size: moves that lower one measure of unevenness, and never turn it round.

The measure is the sum of squared deviations from the shares, each divided by its share, over the columns
and, with less weight, over the rows of each column. Each move lowers it, so there is an end; at the end no
move lowers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from stele.domain.balance.board import Board
from stele.domain.balance.shares import Bools, Reals

COLUMN_WEIGHT: Final = 8.0
"""A full disk is worse than an uneven table."""
ROW_THRESHOLD: Final = 0.1
"""A row that is nearer to its share than this part of it and its largest unit is even."""
LARGE: Final = 0.25
"""Of a column's share: a unit as large as this is placed before smaller ones fill what is left."""
PASSES: Final = 4
"""Of a round; what is left is for the next one."""
_LESS: Final = 1 - 1e-9


def even_sizes(board: Board) -> Iterator[None]:
    """Even out the columns, then rows that are far off, then the columns again. Yields after each move."""
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
    """Empty the columns that must be empty, largest replicas first, each to where it adds least unevenness.

    Yields after each move.
    """
    leaving = np.flatnonzero(board.leaves)
    for source in sorted(leaving.tolist(), key=lambda column: -board.total[column]):
        for row in np.flatnonzero(board.held[:, source]).tolist():
            pile = board.pile(row, source)
            for at in range(len(pile.replicas) - 1, -1, -1):
                if _drain_one(board, row, source, at):
                    yield


def _drain_one(board: Board, row: int, source: int, at: int) -> bool:
    pile = board.pile(row, source)
    load, replica = pile.loads[at], pile.replicas[at]
    may = np.flatnonzero((board.goal > 0) & ~board.closed)
    goal = board.goal[may]
    after = board.level[may] + load / (2 * goal)
    off = (board.load[row, may] - board.goal_row[row, may]) / goal
    for target in may[np.argsort(COLUMN_WEIGHT * after + off, kind="stable")].tolist():
        if board.places.fits(replica, target):
            board.move(row, source, target, at, lambda: "")
            return True
    return False


def _spread(board: Board, to: Callable[[Board, int, int], bool]) -> Iterator[None]:
    """Moves from the fullest column to the emptiest, as long as ``to`` finds any."""
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
    """One of the largest replicas, as long as that turns nothing round: later there is no room for it."""
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
    """One replica from ``source`` to ``target``; False: none would help, or none may."""
    room = min(board.total[source] - board.goal[source], board.goal[target] - board.total[target])
    gap = _row_gaps(board, source, target)
    rows = np.flatnonzero(board.held[:, source] > 0)
    rows = rows[np.argsort(-gap[rows], kind="stable")]
    near = _typical(board, source, target, room)
    between, per_load = _apart(board, source, target)
    turns_round, level = between / per_load * _LESS, board.level.__getitem__
    for most in (float(room), np.inf):
        for row in rows.tolist():
            limit = min(most, turns_round, _lowers(between, per_load, float(gap[row])))
            size = min(near, limit), limit
            if limit > 0 and _place(board, row, source, target, size, board.measured, level):
                return True
    return False


def _row_gaps(board: Board, source: int, target: int) -> Reals:
    """How much further above its share each row is at ``source`` than at ``target``, in parts of these."""
    here = (board.load[:, source] - board.goal_row[:, source]) / board.goal[source]
    there = (board.load[:, target] - board.goal_row[:, target]) / board.goal[target]
    gap: Reals = here - there
    return gap


def _typical(board: Board, source: int, target: int, room: float) -> float:
    """The size with which loads and numbers of replicas come to their shares together."""
    over, under = -board.missing[source], board.missing[target]
    return float(room / max(1.0, min(over, under))) if room > 0 else np.inf


def _apart(board: Board, source: int, target: int) -> tuple[float, float]:
    """How much higher the level of ``source`` is, and by how much less for each byte that moves."""
    per_load = 1 / board.goal[source] + 1 / board.goal[target]
    return float(board.level[source] - board.level[target]), float(per_load)


def _lowers(between: float, per_load: float, gap: float) -> float:
    """The load from which on a move makes nothing more even; ``gap`` is that of the row."""
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
    """Move a replica of about the first size, and of less than the second, and at least of ``least`` when both
    are one; False: none may.

    ``level`` is how full a column is with ``what``, in parts of its share: that is the reason.
    """
    pile = board.pile(row, source)
    for at in pile.near(*size):
        if pile.loads[at] < least:
            return False
        if board.places.fits(pile.replicas[at], target):
            giver, getter = (f"{board.column_names[c]} {level(c):.1%}" for c in (source, target))
            reason = partial("of their shares of {} have {} and {}".format, what, giver, getter)
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
    """How far above what is tolerated each row is in each column, in parts of the column's share."""
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
