"""Ranges of the ring and the placement: the replicas of each range (reference: cassandra_tcm 5.1, 5.2).

Ranges are half-open, (start, end]. From tokens t0 < … < tn come (MIN,t0], (t0,t1], …, (tn,MIN]: no range
wraps, the ring's wrap-around is two rows with equal replicas. A ring without tokens is (MIN,MIN].
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Final, Self

import msgspec

from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN


class PlacementError(ValueError):
    """Rows that are no placement, or a change that does not fit one; the text says which and why."""


class Range(msgspec.Struct, frozen=True, order=True):
    """(start, end], in tokens."""

    start: int
    end: int


class RangeReplicas(msgspec.Struct, frozen=True):
    """One row of a placement: who serves reads of (start, end] and who receives its writes.

    Order matters: the first replica is the primary. Whoever serves reads also receives writes. ``version``
    is the topology version that gave the range these replicas: requests of older versions are refused once
    it is fenced, those of unchanged ranges go on (design, I3). ``version_before`` gave it those before them,
    0 when it had none: until ``version`` is fenced it says which requests are stale.
    """

    start: int
    end: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    version: int = 0
    version_before: int = 0


def upper_bound(end: int) -> int:
    """A range's end as a number that compares: MIN_TOKEN, being infinity, is above all tokens."""
    return MAX_TOKEN + 1 if end == MIN_TOKEN else end


def range_of(row: RangeReplicas) -> Range:
    return Range(row.start, row.end)


def contains(range_: Range, token: int) -> bool:
    """True when the range holds the token; MIN_TOKEN as a token lies in the last range."""
    if token == MIN_TOKEN:
        return range_.end == MIN_TOKEN
    return range_.start < token <= upper_bound(range_.end)


def ranges_of(tokens: Iterable[int]) -> tuple[Range, ...]:
    """The ranges that the tokens cut the ring into, in ring order; at least one."""
    inner = sorted(set(tokens) - {MIN_TOKEN})
    return tuple(Range(start, end) for start, end in pairwise((MIN_TOKEN, *inner, MIN_TOKEN)))


def split_row(row: RangeReplicas, boundaries: Sequence[int]) -> tuple[RangeReplicas, ...]:
    """The row cut at those sorted boundaries that lie inside it; all pieces keep its replicas."""
    low = bisect_right(boundaries, row.start)
    high = bisect_left(boundaries, upper_bound(row.end))
    cuts = pairwise((row.start, *boundaries[low:high], row.end))
    return tuple(msgspec.structs.replace(row, start=start, end=end) for start, end in cuts)


def _check_cover(rows: Sequence[RangeReplicas]) -> None:
    """Each row begins where the one before ended, from MIN_TOKEN to infinity."""
    expected = MIN_TOKEN
    for index, row in enumerate(rows):
        if index and expected == MIN_TOKEN:
            raise PlacementError(f"Row {index}, {_text(row)}, comes after the ring's end.")
        if row.start != expected:
            flaw = "leaves a gap after" if row.start > expected else "is out of order or overlaps"
            raise PlacementError(f"Row {index}, {_text(row)}, {flaw} {expected}.")
        if row.start >= upper_bound(row.end):
            raise PlacementError(f"Row {index}, {_text(row)}, is no range: it holds no token.")
        expected = row.end
    if not rows or expected != MIN_TOKEN:
        raise PlacementError(
            f"The rows do not cover the ring: nothing holds what is above {expected}."
        )


def _check_replicas(row: RangeReplicas) -> None:
    for name, nodes in (("reads", row.reads), ("writes", row.writes)):
        if len(set(nodes)) != len(nodes):
            raise PlacementError(f"The {name} of {_text(row)} name a node twice: {nodes}.")
    unwritten = [node for node in row.reads if node not in row.writes]
    if unwritten:
        raise PlacementError(f"{_text(row)} is read from {unwritten}, which receive no writes.")


def _text(range_: Range | RangeReplicas) -> str:
    return f"({range_.start}, {range_.end}]"


@dataclass(frozen=True, slots=True)
class Placement:
    """Replicas of every range of the ring: rows sorted by start, without gaps. Made by ``of``."""

    rows: tuple[RangeReplicas, ...]
    starts: tuple[int, ...] = field(repr=False, compare=False)
    """The rows' starts as a column of their own, for the search by token."""

    @classmethod
    def of(cls, rows: Iterable[RangeReplicas]) -> Self:
        """A placement of rows in ring order.

        Raises PlacementError unless they cover the ring exactly and each row's replicas are sound.
        """
        checked = tuple(rows)
        _check_cover(checked)
        for row in checked:
            _check_replicas(row)
        return cls(checked, tuple(row.start for row in checked))

    def row_for(self, token: int) -> RangeReplicas:
        """The row that holds the token, in O(log rows)."""
        # Index -1 is right for MIN_TOKEN: as a token it is the end of the last row.
        return self.rows[bisect_left(self.starts, token) - 1]

    def overlapping(self, range_: Range) -> tuple[RangeReplicas, ...]:
        """The rows that share a token with the range, in ring order."""
        low = bisect_right(self.starts, range_.start) - 1
        high = bisect_left(self.starts, upper_bound(range_.end))
        return self.rows[low:high]


EMPTY_RING: Final = Placement.of((RangeReplicas(MIN_TOKEN, MIN_TOKEN, (), ()),))
"""The placement of a ring in which no node has tokens: one range that nobody replicates."""


def apply(
    placement: Placement, removed: Sequence[Range], added: Sequence[RangeReplicas]
) -> Placement:
    """The placement without exactly the rows ``removed`` and with the rows ``added``.

    Raises PlacementError when a range to remove is no row, or the result does not cover the ring.
    """
    outgoing = set(removed)
    if len(outgoing) != len(removed):
        raise PlacementError("A range is removed twice by one change.")
    kept = [row for row in placement.rows if range_of(row) not in outgoing]
    if len(kept) + len(outgoing) != len(placement.rows):
        missing = min(outgoing - {range_of(row) for row in placement.rows})
        raise PlacementError(f"Range {_text(missing)} cannot be removed: it is no row.")
    for row in added:
        _check_replicas(row)
    rows = tuple(sorted((*kept, *added), key=attrgetter("start")))
    _check_cover(rows)
    return Placement(rows, tuple(row.start for row in rows))
