"""Times of repairs as facts: one by one, and in columns within a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
from immutables import Map

from stele.domain.base import Fact
from stele.domain.hashing import MODULUS, row_hash
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, compared


class TabletRepaired(Fact, frozen=True):
    """A repaired tablet: each of its replicas has all rows acknowledged before ``at_ms``.

    Excluded replicas do not count. ``at_ms`` is a time of the log. The table has ``of`` tablets.
    With ``restricted`` this holds only among the replicas that the table's request names, and
    counts for that request alone.
    """

    table_id: str
    tablet: int
    of: int
    at_ms: int
    restricted: bool = False


class RepairsResized(Fact, frozen=True):
    """A table now has this number of ``tablets``.

    Each half of a split tablet keeps the time of the whole. A merged tablet gets the older time of
    the two.
    """

    table_id: str
    tablets: int


class RepairsForgotten(Fact, frozen=True):
    """The table or its repaired data is gone, or its ``restricted`` repair is done."""

    table_id: str
    restricted: bool = False


class RepairTimes(Fact, frozen=True):
    """Times of a table's tablets from ``first`` on, in snapshots only.

    The table has ``of`` tablets. ``times`` are milliseconds since 1970 in 8 bytes each, little
    endian; 0 means never. ``restricted`` is that of ``TabletRepaired``.
    """

    table_id: str
    first: int
    of: int
    times: bytes
    restricted: bool = False


RepairsFact = TabletRepaired | RepairsResized | RepairsForgotten | RepairTimes


# The times of a table's tablets: a column in chunks, copied on write.


Ms = npt.NDArray[np.int64]
"""Milliseconds since 1970; 0 means never."""

CHUNK: Final = 1024
"""Tablets in a chunk. A change of one copies 8 KiB, independent of the table's number of
tablets.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Times of the last repair of each tablet, compared by value.

    Create them by ``of`` or ``never``.
    """

    chunks: tuple[Ms, ...]

    @classmethod
    def of(cls, times: Ms) -> Self:
        chunks = [times[at : at + CHUNK].astype(np.int64) for at in range(0, len(times), CHUNK)]
        for chunk in chunks:
            # Images of different epochs share chunks, so a write would change older states.
            chunk.setflags(write=False)
        return cls(tuple(chunks))

    @classmethod
    def never(cls, tablets: int) -> Self:
        return cls.of(np.zeros(tablets, np.int64))

    def __len__(self) -> int:
        return CHUNK * (len(self.chunks) - 1) + len(self.chunks[-1]) if self.chunks else 0

    def __getitem__(self, tablet: int) -> int:
        """Return the time of a tablet. Raise IndexError if there is no such tablet."""
        return int(self.chunks[tablet // CHUNK][tablet % CHUNK])

    def all(self) -> Ms:
        return np.concatenate(self.chunks) if self.chunks else np.zeros(0, np.int64)

    def with_times(self, first: int, times: Ms) -> Self:
        """Return a copy in which ``times`` replace those from the tablet ``first`` on."""
        chunks, last = list(self.chunks), first + len(times)
        for at in range(first // CHUNK, -(-last // CHUNK)):
            begin, changed = at * CHUNK, chunks[at].copy()
            low, high = max(first, begin), min(last, begin + CHUNK)
            changed[low - begin : high - begin] = times[low - first : high - first]
            changed.setflags(write=False)
            chunks[at] = changed
        return type(self)(tuple(chunks))

    def resized(self, tablets: int) -> Self:
        """Return the times for ``tablets`` tablets: halves keep theirs, pairs get the older one."""
        times = self.all()
        if tablets >= len(times):
            return self.of(np.repeat(times, tablets // len(times)))
        return self.of(times.reshape(tablets, -1).min(axis=1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Times):
            return NotImplemented
        same = len(self) == len(other)
        pairs = zip(self.chunks, other.chunks, strict=False)
        return same and all(one is two or np.array_equal(one, two) for one, two in pairs)

    __hash__ = None  # type: ignore[assignment]  # a column is known by its table


# The times of tablets' last repairs at one epoch.


class RepairsImage(msgspec.Struct, frozen=True):
    """Times by table id. A table without any repair is not included.

    ``restricted`` are times of repairs among some replicas, for the table's request that asks for
    them.
    """

    tables: Map[str, Times] = Map()
    restricted: Map[str, Times] = Map()

    def times(self, *, restricted: bool) -> Map[str, Times]:
        return self.restricted if restricted else self.tables

    def of(self, table_id: str, tablets: int, *, restricted: bool = False) -> Ms:
        """Return the times of the last repair of a table's tablets, in milliseconds; 0 is never."""
        found = self.times(restricted=restricted).get(table_id)
        return (Times.never(tablets) if found is None else found).all()


# The domain of repairs for the registry. Operations on tables write its facts.


LITTLE_ENDIAN: Final = "<i8"
RESTRICTED: Final = b"restricted/"
TIMES_PER_FACT: Final = 64 * CHUNK
"""Times in one fact of a snapshot: half a MiB."""


def tablet_repaired(image: RepairsImage, fact: TabletRepaired) -> RepairsImage:
    of = image.times(restricted=fact.restricted)
    before = of.get(fact.table_id) or Times.never(fact.of)
    # A resize replaces the times in the same epoch, so a repair never names another number of
    # tablets.
    assert len(before) == fact.of
    now = np.array([fact.at_ms], np.int64)
    found = of.set(fact.table_id, before.with_times(fact.tablet, now))
    return _with(image, found, restricted=fact.restricted)


def repairs_resized(image: RepairsImage, fact: RepairsResized) -> RepairsImage:
    for restricted in (False, True):
        of = image.times(restricted=restricted)
        if fact.table_id in of:
            found = of.set(fact.table_id, of[fact.table_id].resized(fact.tablets))
            image = _with(image, found, restricted=restricted)
    return image


def repairs_forgotten(image: RepairsImage, fact: RepairsForgotten) -> RepairsImage:
    found = image.restricted
    if fact.table_id in found:
        image = _with(image, found.delete(fact.table_id), restricted=True)
    # The restricted times end with either fact. The full times end only when the data is gone.
    if fact.restricted or fact.table_id not in image.tables:
        return image
    return _with(image, image.tables.delete(fact.table_id), restricted=False)


def repair_times(image: RepairsImage, fact: RepairTimes) -> RepairsImage:
    of = image.times(restricted=fact.restricted)
    before = of.get(fact.table_id) or Times.never(fact.of)
    times = np.frombuffer(fact.times, LITTLE_ENDIAN)
    found = of.set(fact.table_id, before.with_times(fact.first, times))
    return _with(image, found, restricted=fact.restricted)


def _with(image: RepairsImage, times: Map[str, Times], *, restricted: bool) -> RepairsImage:
    if restricted:
        return RepairsImage(image.tables, times)
    return RepairsImage(times, image.restricted)


def to_facts(image: RepairsImage) -> Iterable[RepairsFact]:
    for restricted in (False, True):
        of = image.times(restricted=restricted)
        for table_id in sorted(of):
            times = of[table_id].all()
            for first in range(0, len(times), TIMES_PER_FACT):
                piece = times[first : first + TIMES_PER_FACT]
                yield RepairTimes(table_id, first, len(times), _bytes(piece), restricted)


def hash_of(image: RepairsImage) -> int:
    """Return the hash of each table's id with its present times."""
    rows = [k.encode() + _bytes(t.all()) for k, t in image.tables.items()]
    # The prefix keeps equal times of the two kinds from having equal hashes.
    rows += [RESTRICTED + k.encode() + _bytes(t.all()) for k, t in image.restricted.items()]
    return sum(map(row_hash, rows)) % MODULUS


def _bytes(times: Ms) -> bytes:
    return times.astype(LITTLE_ENDIAN).tobytes()


def view(image: RepairsImage) -> Json:
    """Return by table id the time of each tablet's last repair.

    Repairs among some replicas are separate; they count for the table's request that asks for them.
    """
    return {
        name: {table_id: of[table_id].all().tolist() for table_id in sorted(of)}
        for name, of in (("repairs", image.tables), ("restricted_repairs", image.restricted))
    }


def diff(before: RepairsImage, after: RepairsImage) -> Json:
    """Return by table id the number of tablets with new times, and the newest of these times."""
    return {
        "repairs": _diff(before.tables, after.tables),
        "restricted_repairs": _diff(before.restricted, after.restricted),
    }


def _diff(before: Map[str, Times], after: Map[str, Times]) -> Json:
    added, removed, changed = compared(before, after)
    found: Json = {name: {"repaired": 0, "newest_ms": 0} for name in removed}
    for name in (*added, *changed):
        times = after[name].all()
        known = before.get(name)
        other = times != known.all() if known and len(known) == len(times) else times > 0
        found[name] = {"repaired": int(other.sum()), "newest_ms": int(times.max())}
    return dict(sorted(found.items()))


DOMAIN = Domain(
    name="repairs",
    empty=RepairsImage(),
    apply={
        TabletRepaired: tablet_repaired,
        RepairsResized: repairs_resized,
        RepairsForgotten: repairs_forgotten,
        RepairTimes: repair_times,
    },
    to_facts=to_facts,
    view=view,
    diff=diff,
    hash=hash_of,
)
