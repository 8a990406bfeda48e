"""The reported sizes and rates of tablets in columns, and their conversion to another tablet count.

Arrays have the shape (columns, tablets): one sweep for each column covers a million tablets.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stele.domain.column import united
from stele.domain.messages import UNKNOWN_RATE, TabletSizes

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
SIZE, READS, WRITES, LOWER = range(4)
"""Bytes, reads and writes a second, and those of both in the lower half of the tablet's range."""
COLUMNS: Final = 4


class StatsPart(NamedTuple):
    """Some tablets of a map with ``of`` tablets, ascending, and their columns; NaN is unknown."""

    of: int
    tablets: Ints
    stats: Reals


class TabletStats(NamedTuple):
    """The sizes and rates of all tablets of a table, for one replica of each; NaN is unknown.

    For several tables together the values are sums. ``uncounted`` is then the number of tablets for
    which the rate of some table is unknown.
    """

    columns: Reals
    uncounted: int = 0

    @property
    def sizes(self) -> Reals:
        """Bytes of each tablet."""
        found: Reals = self.columns[SIZE]
        return found

    def size_bytes(self) -> float | None:
        """Return the bytes of the whole table, None unless all tablets are known."""
        total = float(self.sizes.sum())
        return None if np.isnan(total) else total

    @property
    def rates(self) -> Reals:
        """Reads and writes per second of each tablet."""
        found: Reals = self.columns[READS] + self.columns[WRITES]
        return found

    @property
    def lower(self) -> Reals:
        """Operations per second in the lower half of each tablet's range.

        They are unknown after a split or a merge until nodes count them.
        """
        found: Reals = np.minimum(self.columns[LOWER], self.rates)
        return found


NOTHING: Final = StatsPart(1, np.zeros(0, np.int64), np.zeros((COLUMNS, 0)))


def part_of(stats: TabletSizes) -> StatsPart:
    columns = np.full((COLUMNS, len(stats.tablets)), np.nan)
    columns[SIZE] = stats.sizes_bytes
    if stats.reads_per_s:
        rates = np.array(
            (stats.reads_per_s, stats.writes_per_s, stats.lower_half_per_s), np.float64
        )
        columns[READS:] = np.where(rates == UNKNOWN_RATE, np.nan, rates)
    return StatsPart(stats.tablet_count, np.array(stats.tablets, np.int64), columns)


def side_by_side(parts: Sequence[tuple[int, StatsPart]]) -> tuple[Ints, list[Reals]]:
    """Return the tablets of all parts and their columns.

    Each part comes with the position of its map's first tablet.
    """
    all_ = [part for _, part in parts]
    sizes = [len(part.tablets) for part in all_]
    at = np.concatenate([part.tablets for part in all_])
    at += np.repeat(np.array([first for first, _ in parts]), sizes)
    return at, [np.concatenate([part.stats[column] for part in all_]) for column in range(COLUMNS)]


def mean_of(parts: Sequence[tuple[int, StatsPart]], count: int) -> tuple[Reals, Bools]:
    """Return the mean of each value over the parts, and a mask of the known values.

    Both have the shape (columns, ``count``). See ``side_by_side``.
    """
    found, any_ = np.full((COLUMNS, count), np.nan), np.zeros((COLUMNS, count), np.bool_)
    if not parts:
        return found, any_
    at, columns = side_by_side(parts)
    for column in range(COLUMNS):
        stats = columns[column]
        known = ~np.isnan(stats)
        of, stats = (at, stats) if known.all() else (at[known], stats[known])
        replicas = np.bincount(of, minlength=count)
        any_[column] = replicas > 0
        sums = np.bincount(of, stats, count)
        np.divide(sums, replicas, out=found[column], where=any_[column])
    return found, any_


def resized(part: StatsPart | None, count: int) -> StatsPart:
    """Convert a part to a map of ``count`` tablets.

    A split divides bytes equally and rates by the counted halves. A merged tablet has the sum of
    its parts. It is left out unless all its parts were reported. The result is empty if neither
    count is a multiple of the other.
    """
    if part is None or part.of == count:
        return part or NOTHING
    if count % part.of == 0:
        return _split(part, count // part.of)
    if part.of % count == 0:
        return _merged(part, part.of // count)
    return NOTHING


def _split(part: StatsPart, times: int) -> StatsPart:
    """Split each tablet into ``times`` tablets.

    The halves of new tablets are unknown: equal ones would suggest that another split helps.
    """
    tablets = (part.tablets[:, None] * times + np.arange(times)).ravel()
    shares = np.full((len(part.tablets), times), 1 / times)
    total, lower = part.stats[READS] + part.stats[WRITES], part.stats[LOWER]
    known = (total > 0) & ~np.isnan(lower)
    if times % 2 == 0:
        of_lower = np.minimum(1.0, lower[known] / total[known])
        half = times // 2
        shares[known, :half] = of_lower[:, None] / half
        shares[known, half:] = (1 - of_lower)[:, None] / half
    stats = np.full((COLUMNS, len(tablets)), np.nan)
    stats[SIZE] = np.repeat(part.stats[SIZE] / times, times)
    for column in (READS, WRITES):
        stats[column] = (part.stats[column, :, None] * shares).ravel()
    return StatsPart(part.of * times, tablets, stats)


def _merged(part: StatsPart, times: int) -> StatsPart:
    tablets, at, pieces = np.unique(part.tablets // times, return_inverse=True, return_counts=True)
    rates = part.stats[READS] + part.stats[WRITES]
    in_lower = part.tablets % times < times / 2
    # The product with zero keeps NaN, so that an unknown rate leaves the half unknown.
    half = np.where(in_lower, rates, 0.0 * rates) if times % 2 == 0 else np.full(len(at), np.nan)
    columns = (part.stats[SIZE], part.stats[READS], part.stats[WRITES], half)
    sums = np.stack([np.bincount(at, column, len(tablets)) for column in columns]).astype(float)
    whole = pieces == times
    return StatsPart(part.of // times, tablets[whole], sums[:, whole])


def noted(left: StatsPart | None, before: StatsPart, now: StatsPart | None) -> StatsPart | None:
    """Return ``left`` with the values that ``before`` has and ``now`` lacks.

    ``left`` holds earlier values of tablets that are no longer reported.
    """
    count = before.of if now is None else now.of
    before, after = resized(before, count), now or NOTHING
    gone = ~np.isnan(before.stats) & np.isnan(_of(after, before.tablets))
    rows = gone.any(axis=0)
    if not rows.any():
        return left
    known = resized(left, count)
    tablets = united(known.tablets, before.tablets[rows])
    stats = _of(known, tablets)
    at = np.searchsorted(tablets, before.tablets[rows])
    stats[:, at] = np.where(gone[:, rows], before.stats[:, rows], stats[:, at])
    return StatsPart(count, tablets, stats)


def _of(part: StatsPart, tablets: Ints) -> Reals:
    """Return the columns of a part for these tablets; NaN where the part has none."""
    if np.array_equal(part.tablets, tablets):
        return part.stats.copy()
    found = np.full((COLUMNS, len(tablets)), np.nan)
    at = np.searchsorted(part.tablets, tablets)
    there = np.append(part.tablets, -1)[at] == tablets
    found[:, there] = part.stats[:, at[there]]
    return found
