"""Sizes and rates of this node's tablets, for the agent's load reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import expm1, log
from typing import Final, NamedTuple

import msgspec

from stele.agent.load import HeldTablets
from stele.agent.stores import placed, spans_of
from stele.domain.image import Image
from stele.domain.messages import UNKNOWN_RATE, TabletSizes
from stele.domain.tablets.maps import range_of, tablet_of
from stele.node import metrics
from stele.node.store import SqliteStore

# Read and write rates of this node's tablets, in operations per second.
#
# A rate is a mean in which the weight of an operation halves after each half-life. A burst is soon
# forgotten and hardly raises it. Counting starts from nothing at each start of the process, for a
# new tablet, and after a split or merge of the table. Until a rate rests on enough time it is
# unknown, and readers keep their former value.


HALVES: Final = 2
"""Operations are counted by the map of this many times as many tablets: the map after a split."""
KNOWN_AFTER: Final = 0.5
"""Half-lives of counting before a tablet's rate is reported.

A shorter time may show only a burst.
"""


class Rate(NamedTuple):
    """Operations per second of a tablet.

    ``lower`` counts reads and writes in the lower half of its range.
    """

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
    """Return the rate after ``elapsed_s`` (above 0) in which ``served`` operations were counted.

    ``served`` has the order of ``Rate``. The rate ``before`` was counted for ``age_s``.
    """
    now, was = _weight(elapsed_s / half_life_s), _weight(age_s / half_life_s)
    was *= 1 - now
    pairs = zip(before, served, strict=True)
    return Rate(*((rate * was + count / elapsed_s * now) / (was + now) for rate, count in pairs))


def _weight(half_lives: float) -> float:
    """Return the weight of the latest period among all periods.

    It is above 0 for the shortest time.
    """
    return -expm1(-log(2) * half_lives)


@dataclass(slots=True)
class _Tablet:
    """The rate of a tablet, counted since ``since_s`` (seconds of the clock)."""

    since_s: float
    rate: Rate = NO_RATE


@dataclass(slots=True)
class _Table:
    """Counts of one table since ``at_s``.

    The keys of ``reads`` and ``writes`` are the numbers of half tablets.
    """

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
    """Counts operations and computes rates. ``count`` runs for every operation."""

    def __init__(self, half_life_s: float, clock: Callable[[], float] | None = None) -> None:
        self._half_life_s = half_life_s
        self._clock = clock or time.monotonic
        self._tables = dict[str, _Table]()

    def count(self, data_id: str, token: int, *, written: bool) -> None:
        """Count one operation. Tables that were not reported yet are not counted."""
        table = self._tables.get(data_id)
        if table is not None:
            half = tablet_of(HALVES * table.of, token)
            counts = table.writes if written else table.reads
            counts[half] = counts.get(half, 0) + 1

    def with_rates(self, tables: Sequence[TabletSizes]) -> tuple[TabletSizes, ...]:
        """Return these tables with the rates of their tablets.

        Counts of all other tablets are discarded.
        """
        now_s = self._clock()
        self._tables = {each.data_id: self._of(each, now_s) for each in tables}
        return tuple(self._table_with_rates(each, now_s) for each in tables)

    def _of(self, told: TabletSizes, now_s: float) -> _Table:
        """Return the table's counts from now on, with rates that include the counts until now."""
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

    def _table_with_rates(self, told: TabletSizes, now_s: float) -> TabletSizes:
        tablets = self._tables[told.data_id].tablets
        rates = [self._whole(tablets[number], now_s) for number in told.tablets]
        return msgspec.structs.replace(
            told,
            reads_per_s=tuple(reads for reads, _, _ in rates),
            writes_per_s=tuple(writes for _, writes, _ in rates),
            lower_half_per_s=tuple(lower for _, _, lower in rates),
        )

    def _whole(self, tablet: _Tablet, now_s: float) -> tuple[int, int, int]:
        """Return whole numbers: on the wire, a zero takes one byte."""
        if now_s - tablet.since_s < KNOWN_AFTER * self._half_life_s:
            return UNKNOWN_RATE, UNKNOWN_RATE, UNKNOWN_RATE
        reads, writes = round(tablet.rate.reads), round(tablet.rate.writes)
        return reads, writes, min(round(tablet.rate.lower), reads + writes)


async def measured(store: SqliteStore, node_id: str, image: Image, held: HeldTablets) -> list[int]:
    """Return the current sizes of these tablets of a node, in bytes."""
    ranges = [range_of(held.of, tablet) for tablet in held.tablets]
    spans = placed(image, node_id, spans_of([held.data_id], ranges))
    with metrics.measure_seconds.time():
        return [size.size_bytes for size in await store.measure_each(spans)]


def with_rates(rates: Rates, tables: Sequence[TabletSizes]) -> tuple[TabletSizes, ...]:
    """Return the tables of the next report with rates, and set the metrics to them."""
    told = rates.with_rates(tables)
    metrics.tablet_bytes.set(sum(sum(table.sizes_bytes) for table in told))
    metrics.tablet_reads.set(known_sum(table.reads_per_s for table in told))
    metrics.tablet_writes.set(known_sum(table.writes_per_s for table in told))
    return told


def known_sum(rates: Iterable[Sequence[int]]) -> int:
    """Return the sum of all known rates."""
    return sum(rate for of_table in rates for rate in of_table if rate != UNKNOWN_RATE)
