"""Statistics of a span of the log: counts by command, actor and minute, and record sizes.

Adjacent spans can be merged, so that a long log is counted slice by slice. The module is pure and
needs no code that folds a log, so that the command line can merge too.
"""

from collections import Counter
from typing import Final, NamedTuple

import msgspec

LARGEST: Final = 10
"""Number of the largest records that are kept."""
MOST_NAMES: Final = 1000
"""Commands, and actors, that are counted by name. All others are counted as ``OTHERS``."""
OTHERS: Final = "(others)"
MINUTE_MS: Final = 60_000


class EpochCount(msgspec.Struct, frozen=True):
    """A number of epochs, and the bytes of their records."""

    epochs: int = 0
    size_bytes: int = 0

    def __add__(self, other: "EpochCount") -> "EpochCount":
        return EpochCount(self.epochs + other.epochs, self.size_bytes + other.size_bytes)


class Large(msgspec.Struct, frozen=True):
    """A large record."""

    epoch: int
    offset: int
    size_bytes: int
    command: str
    actor: str


class EpochStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the epochs from ``first`` to ``last``; empty when ``first`` is 0.

    ``minutes`` are numbered from 1970 on, by the writers' clocks. ``sizes`` is a number of bits ->
    records whose size has that many bits: 4 stands for 8 to 15 bytes. ``beside`` are records that
    won nothing, between these epochs and directly before the first.
    """

    first: int = 0
    last: int = 0
    first_offset: int = 0
    last_offset: int = 0
    first_at_ms: int = 0
    last_at_ms: int = 0
    total: EpochCount = EpochCount()
    beside: int = 0
    commands: dict[str, EpochCount] = msgspec.field(default_factory=dict)
    actors: dict[str, EpochCount] = msgspec.field(default_factory=dict)
    minutes: dict[int, int] = msgspec.field(default_factory=dict)
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    largest: tuple[Large, ...] = ()


class CountedWinner(NamedTuple):
    """A winner.

    ``beside`` is the number of losing records between the winner before it and this one.
    """

    epoch: int
    offset: int
    at_ms: int
    size_bytes: int
    command: str
    actor: str
    beside: int = 0


class Counting:
    """Counts winners in the order of the log."""

    def __init__(self) -> None:
        self._ends = list[CountedWinner]()
        self._beside = 0
        self._by = dict[str, list[int]](), dict[str, list[int]]()
        self._minutes, self._sizes = Counter[int](), Counter[int]()
        self._largest = list[Large]()

    def add(self, winner: CountedWinner) -> None:
        epoch, offset, at_ms, size_bytes, command, actor, beside = winner
        # Only the first and the last winner are kept.
        self._ends[1:] = [winner]
        self._beside += beside
        for name, counts in zip((command, actor), self._by, strict=True):
            # A limit on names keeps the memory bounded: names come from callers.
            known = name in counts or len(counts) < MOST_NAMES
            count = counts.setdefault(name if known else OTHERS, [0, 0])
            count[0] += 1
            count[1] += size_bytes
        self._minutes[at_ms // MINUTE_MS] += 1
        self._sizes[size_bytes.bit_length()] += 1
        if len(self._largest) < LARGEST or size_bytes > self._largest[-1].size_bytes:
            large = Large(epoch, offset, size_bytes, command, actor)
            self._largest = _largest([*self._largest, large])

    def stats(self) -> EpochStats:
        if not self._ends:
            return EpochStats()
        first, last = self._ends[0], self._ends[-1]
        commands, actors = (
            {name: EpochCount(*count) for name, count in counts.items()} for counts in self._by
        )
        return EpochStats(
            first=first.epoch,
            last=last.epoch,
            first_offset=first.offset,
            last_offset=last.offset,
            first_at_ms=first.at_ms,
            last_at_ms=last.at_ms,
            total=sum(commands.values(), EpochCount()),
            beside=self._beside,
            commands=commands,
            actors=actors,
            minutes=dict(self._minutes),
            sizes=dict(self._sizes),
            largest=tuple(self._largest),
        )


def merged(one: EpochStats, two: EpochStats) -> EpochStats:
    """Return the statistics of both spans; ``two`` follows ``one``."""
    if not one.first or not two.first:
        return two if not one.first else one
    return EpochStats(
        first=one.first,
        last=two.last,
        first_offset=one.first_offset,
        last_offset=two.last_offset,
        first_at_ms=one.first_at_ms,
        last_at_ms=two.last_at_ms,
        total=one.total + two.total,
        beside=one.beside + two.beside,
        commands=_added(one.commands, two.commands),
        actors=_added(one.actors, two.actors),
        minutes=dict(Counter(one.minutes) + Counter(two.minutes)),
        sizes=dict(Counter(one.sizes) + Counter(two.sizes)),
        largest=tuple(_largest([*one.largest, *two.largest])),
    )


def _added(one: dict[str, EpochCount], two: dict[str, EpochCount]) -> dict[str, EpochCount]:
    return {
        name: one.get(name, EpochCount()) + two.get(name, EpochCount()) for name in {**one, **two}
    }


def _largest(records: list[Large]) -> list[Large]:
    """Return the largest records. If sizes are equal, the earlier ones stay."""
    return sorted(records, key=lambda record: (-record.size_bytes, record.epoch))[:LARGEST]
