"""Balancing of units of equal size: by quotas, which the fewest moves reach."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stele.domain.balance.board import Board
from stele.domain.balance.shares import Bools, Ints, quotas


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
