"""Ranges by column, with neighbours as one: what a change of a placement takes away, and what it puts there."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec
import numpy as np

from stele.domain.ring.columns import Keys
from stele.domain.ring.ranges import Range, RangeReplicas, upper_bound
from stele.domain.ring.tokens import MIN_TOKEN


class PlacementError(ValueError):
    """Rows that are no placement, or a change that does not fit one; the text says which and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges (start, end] by column."""

    starts: Keys
    ends: Keys

    def __len__(self) -> int:
        return len(self.starts)

    def cut(self, low: int, high: int) -> "Ranges":
        return Ranges(self.starts[low:high], self.ends[low:high])

    def lasts(self) -> Keys:
        """The greatest number at which a row within each may start; of the last range of a ring MAX_TOKEN."""
        return self.ends - 1  # MIN_TOKEN, being infinity, turns round to that


class Span(msgspec.Struct, frozen=True):
    """Neighbouring ranges of a change as one; they stand at ``first`` up to ``stop`` among them."""

    start: int
    end: int
    first: int
    stop: int


def ranges_by_column(ranges: Sequence[Range]) -> Ranges:
    starts = np.array([range_.start for range_ in ranges], np.int64)
    return Ranges(starts, np.array([range_.end for range_ in ranges], np.int64))


def spans_of(ranges: Ranges) -> list[Span]:
    """The ranges with neighbours as one span. Raises PlacementError unless each comes once, in ring order."""
    starts, ends = ranges.starts, ranges.ends
    found = list[Span]()
    first, reached = 0, MIN_TOKEN
    for stop in _breaks(starts, ends):
        span = Span(starts.item(first), ends.item(stop - 1), first, stop)
        if span.start < reached:
            raise PlacementError(
                f"{text_of(span)} comes twice, is out of order or overlaps {reached}."
            )
        within = starts[first:stop]
        if starts.item(stop - 1) >= upper_bound(span.end) or (
            stop - first > 1 and np.count_nonzero(within[1:] <= within[:-1])
        ):
            raise PlacementError(f"{text_of(span)} has a range that holds no token.")
        found.append(span)
        first, reached = stop, upper_bound(span.end)
    return found


def _breaks(starts: Keys, ends: Keys) -> list[int]:
    """Behind which ranges there is a gap, or nothing."""
    if len(starts) < 2:
        return [1] * len(starts)
    (breaks,) = (starts[1:] != ends[:-1]).nonzero()
    return [*(breaks + 1).tolist(), len(starts)]


def check_same_span(removed: Sequence[Span], added: Sequence[Span]) -> None:
    """What comes in covers exactly what goes out."""
    for gone, come in zip_longest(removed, added):
        if come is None or (gone is not None and gone.start < come.start):
            raise PlacementError(
                f"The change leaves a gap after {gone.start}: nothing is added there."
            )
        if gone is None or come.start < gone.start or upper_bound(gone.end) < upper_bound(come.end):
            raise PlacementError(
                f"What is added in {text_of(Range(come.start, come.end))} is out of order or overlaps "
                "rows that are not removed."
            )
        if come.end != gone.end:
            raise PlacementError(
                f"The change leaves a gap after {come.end}: nothing is added there."
            )


def text_of(range_: "Range | RangeReplicas | Span") -> str:
    return f"({range_.start}, {range_.end}]"
