"""What is told of some tablets of a table, in columns, and what that says of another number of tablets."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stele.domain.messages import TabletSizes

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
SIZE, READS, WRITES, LOWER = range(4)
"""Bytes, reads and writes a second, and those of both in the lower half of the tablet's range."""
COLUMNS: Final = 4


class Part(NamedTuple):
    """Some tablets of a map ``of`` so many, ascending, and the columns of each; NaN: unknown."""

    of: int
    tablets: Ints
    told: Reals


class Told(NamedTuple):
    """All tablets of a table, of one replica of each; NaN: unknown. Shape (tablets, columns)."""

    columns: Reals

    @property
    def sizes(self) -> Reals:
        """Bytes."""
        found: Reals = self.columns[:, SIZE]
        return found

    def size_bytes(self) -> float | None:
        """Of the whole table; None unless all tablets are known."""
        total = float(self.sizes.sum())
        return None if np.isnan(total) else total

    @property
    def rates(self) -> Reals:
        """Reads and writes a second."""
        found: Reals = self.columns[:, READS] + self.columns[:, WRITES]
        return found

    @property
    def lower(self) -> Reals:
        """Those in the lower half; unknown after a split or a merge until they are counted."""
        found: Reals = np.minimum(self.columns[:, LOWER], self.rates)
        return found


NOTHING: Final = Part(1, np.zeros(0, np.int64), np.zeros((0, COLUMNS)))


def part_of(told: TabletSizes) -> Part:
    columns = np.full((len(told.tablets), COLUMNS), np.nan)
    columns[:, SIZE] = told.sizes_bytes
    if told.reads_per_s:
        rates = np.array([*told.rates()], np.float64)
        columns[:, READS:] = np.where(rates < 0, np.nan, rates)
    return Part(told.tablet_count, np.array(told.tablets, np.int64), columns)


def resized(part: Part | None, count: int) -> Part:
    """A part by a map of ``count``. Bytes of split tablets are shared out equally, and rates by the halves that
    were counted; merged ones have the sum of all that they were.

    What was not told of a tablet in whole is left out; so are counts of which neither is a multiple.
    """
    if part is None or part.of == count:
        return part or NOTHING
    if count % part.of == 0:
        return _split(part, count // part.of)
    if part.of % count == 0:
        return _merged(part, part.of // count)
    return NOTHING


def _split(part: Part, times: int) -> Part:
    """Nobody has counted the halves of what is new: equal ones would say that another split helps."""
    tablets = (part.tablets[:, None] * times + np.arange(times)).ravel()
    shares = np.full((len(part.tablets), times), 1 / times)
    total, lower = part.told[:, READS] + part.told[:, WRITES], part.told[:, LOWER]
    known = (total > 0) & ~np.isnan(lower)
    if times % 2 == 0:
        of_lower = np.minimum(1.0, lower[known] / total[known])
        half = times // 2
        shares[known, :half] = of_lower[:, None] / half
        shares[known, half:] = (1 - of_lower)[:, None] / half
    told = np.full((len(tablets), COLUMNS), np.nan)
    told[:, SIZE] = np.repeat(part.told[:, SIZE] / times, times)
    for column in (READS, WRITES):
        told[:, column] = (part.told[:, column, None] * shares).ravel()
    return Part(part.of * times, tablets, told)


def _merged(part: Part, times: int) -> Part:
    tablets, at, pieces = np.unique(part.tablets // times, return_inverse=True, return_counts=True)
    rates = part.told[:, READS] + part.told[:, WRITES]
    in_lower = part.tablets % times < times / 2
    half = np.where(in_lower, rates, 0.0 * rates) if times % 2 == 0 else np.full(len(at), np.nan)
    columns = (*(part.told[:, column] for column in (SIZE, READS, WRITES)), half)
    sums = np.stack([np.bincount(at, column, len(tablets)) for column in columns], axis=1)
    whole = pieces == times
    return Part(part.of // times, tablets[whole], sums[whole])


def noted(left: Part | None, before: Part, now: Part | None) -> Part | None:
    """``left`` is what was told of tablets and is told no more; with what ``now`` lacks of ``before``."""
    count = before.of if now is None else now.of
    before, after = resized(before, count), now or NOTHING
    gone = ~np.isnan(before.told) & np.isnan(_of(after, before.tablets))
    rows = gone.any(axis=1)
    if not rows.any():
        return left
    known = resized(left, count)
    tablets = np.union1d(known.tablets, before.tablets[rows])
    told = _of(known, tablets)
    at = np.searchsorted(tablets, before.tablets[rows])
    told[at] = np.where(gone[rows], before.told[rows], told[at])
    return Part(count, tablets, told)


def _of(part: Part, tablets: Ints) -> Reals:
    """What a part tells of these tablets."""
    found = np.full((len(tablets), COLUMNS), np.nan)
    at = np.searchsorted(part.tablets, tablets)
    there = np.append(part.tablets, -1)[at] == tablets
    found[there] = part.told[at[there]]
    return found
