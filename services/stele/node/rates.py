"""How often this node's tablets are read and written: counted as they are served, told by the second.

A rate is the mean over what was served, in which an operation weighs half as much after each half-life; so a
burst is soon forgotten, and hardly raises it. It begins with nothing at each start of the process, when a
tablet comes, and when a table is split or merged; until it rests on enough it is unknown, and readers keep
what they knew.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import expm1, log
from typing import Final, NamedTuple

import msgspec

from stele.domain.messages import UNKNOWN_RATE, TabletSizes
from stele.domain.tablets.ranges import tablet_of

HALVES: Final = 2
"""Operations are counted by the map of so many times as many tablets: that to which a split leads."""
KNOWN_AFTER: Final = 0.5
"""Half-lives that a tablet is counted before its rate is told: a shorter time may be but a burst."""


class Rate(NamedTuple):
    """Operations a second of a tablet; ``lower`` are reads and writes in the lower half of its range."""

    reads: float = 0.0
    writes: float = 0.0
    lower: float = 0.0


NO_RATE: Final = Rate()


def smoothed(
    before: Rate,
    served: tuple[float, float, float],
    age_s: float,
    elapsed_s: float,
    half_life_s: float,
) -> Rate:
    """The rate after ``elapsed_s`` above 0, in which so much was ``served``, in the order of ``Rate``; before
    that it was counted for ``age_s``.
    """
    now, was = _weight(elapsed_s / half_life_s), _weight(age_s / half_life_s)
    was *= 1 - now
    pairs = zip(before, served, strict=True)
    return Rate(*((rate * was + count / elapsed_s * now) / (was + now) for rate, count in pairs))


def _weight(half_lives: float) -> float:
    """Of what was served since, of all that ever was; above 0 for the shortest time."""
    return -expm1(-log(2) * half_lives)


@dataclass(slots=True)
class _Tablet:
    since_s: float
    rate: Rate = NO_RATE


@dataclass(slots=True)
class _Table:
    """``reads`` and ``writes`` count what was served since ``at_s``, by the number of the half."""

    of: int
    at_s: float
    tablets: dict[int, _Tablet] = field(default_factory=dict)
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    def served(self, tablet: int) -> tuple[int, int, int]:
        halves = (HALVES * tablet, HALVES * tablet + 1)
        lower, upper = ((self.reads.get(at, 0), self.writes.get(at, 0)) for at in halves)
        return lower[0] + upper[0], lower[1] + upper[1], sum(lower)


class Rates:
    """Counts, and tells. ``count`` is on the path of every operation."""

    def __init__(self, half_life_s: float, clock: Callable[[], float] | None = None) -> None:
        self._half_life_s = half_life_s
        self._clock = clock or time.monotonic
        self._tables = dict[str, _Table]()

    def count(self, data_id: str, token: int, *, written: bool) -> None:
        """One operation was served. Those of data that was not told of yet begin to count then."""
        table = self._tables.get(data_id)
        if table is not None:
            half = tablet_of(HALVES * table.of, token)
            counts = table.writes if written else table.reads
            counts[half] = counts.get(half, 0) + 1

    def told(self, tables: Sequence[TabletSizes]) -> tuple[TabletSizes, ...]:
        """With the rates of all tablets that the node has. What was counted of others is forgotten."""
        now_s = self._clock()
        self._tables = {each.data_id: self._of(each, now_s) for each in tables}
        return tuple(self._with_rates(each, now_s) for each in tables)

    def _of(self, told: TabletSizes, now_s: float) -> _Table:
        """The table from now on."""
        before = self._tables.get(told.data_id)
        if before is None or before.of != told.tablet_count:
            before = _Table(told.tablet_count, now_s)
        found, elapsed_s = _Table(before.of, now_s), now_s - before.at_s
        for number in told.tablets:
            tablet = before.tablets.get(number, _Tablet(now_s))
            if tablet.since_s < now_s and elapsed_s > 0:
                age_s = before.at_s - tablet.since_s
                served = before.served(number)
                tablet.rate = smoothed(tablet.rate, served, age_s, elapsed_s, self._half_life_s)
            found.tablets[number] = tablet
        return found

    def _with_rates(self, told: TabletSizes, now_s: float) -> TabletSizes:
        tablets = self._tables[told.data_id].tablets
        rates = [self._whole(tablets[number], now_s) for number in told.tablets]
        return msgspec.structs.replace(
            told,
            reads_per_s=tuple(reads for reads, _, _ in rates),
            writes_per_s=tuple(writes for _, writes, _ in rates),
            lower_half_per_s=tuple(lower for _, _, lower in rates),
        )

    def _whole(self, tablet: _Tablet, now_s: float) -> tuple[int, int, int]:
        """In whole numbers, of which a zero takes one byte."""
        if now_s - tablet.since_s < KNOWN_AFTER * self._half_life_s:
            return UNKNOWN_RATE, UNKNOWN_RATE, UNKNOWN_RATE
        reads, writes = round(tablet.rate.reads), round(tablet.rate.writes)
        return reads, writes, min(round(tablet.rate.lower), reads + writes)
