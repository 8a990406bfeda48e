"""The domain of repairs, entered in the registry. Operations on tables write its facts."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from stele.domain.hashing import MODULUS, row_hash
from stele.domain.registry_entry import Domain
from stele.domain.repairs.facts import (
    RepairsFact,
    RepairsForgotten,
    RepairsResized,
    RepairTimes,
    TabletRepaired,
)
from stele.domain.repairs.image import RepairsImage
from stele.domain.repairs.times import CHUNK, Ms, Times
from stele.domain.tables import Json, compared

LITTLE_ENDIAN: Final = "<i8"
TIMES_PER_FACT: Final = 64 * CHUNK
"""Of a snapshot: half a MiB."""


def tablet_repaired(image: RepairsImage, fact: TabletRepaired) -> RepairsImage:
    before = image.tables.get(fact.table_id) or Times.never(fact.of)
    assert len(before) == fact.of
    now = np.array([fact.at_ms], np.int64)
    return _with(image, fact.table_id, before.with_times(fact.tablet, now))


def repairs_resized(image: RepairsImage, fact: RepairsResized) -> RepairsImage:
    return _with(image, fact.table_id, image.tables[fact.table_id].resized(fact.tablets))


def repairs_forgotten(image: RepairsImage, fact: RepairsForgotten) -> RepairsImage:
    return RepairsImage(image.tables.delete(fact.table_id))


def repair_times(image: RepairsImage, fact: RepairTimes) -> RepairsImage:
    before = image.tables.get(fact.table_id) or Times.never(fact.of)
    times = np.frombuffer(fact.times, LITTLE_ENDIAN)
    return _with(image, fact.table_id, before.with_times(fact.first, times))


def _with(image: RepairsImage, table_id: str, times: Times) -> RepairsImage:
    return RepairsImage(image.tables.set(table_id, times))


def to_facts(image: RepairsImage) -> Iterable[RepairsFact]:
    for table_id in sorted(image.tables):
        times = image.tables[table_id].all()
        for first in range(0, len(times), TIMES_PER_FACT):
            piece = times[first : first + TIMES_PER_FACT]
            yield RepairTimes(table_id, first, len(times), _bytes(piece))


def hash_of(image: RepairsImage) -> int:
    """Of each table's id and its times as they are."""
    return sum(row_hash(k.encode() + _bytes(t.all())) for k, t in image.tables.items()) % MODULUS


def _bytes(times: Ms) -> bytes:
    return times.astype(LITTLE_ENDIAN).tobytes()


def view(image: RepairsImage) -> Json:
    """By the table's id when each tablet was repaired last."""
    return {"repairs": {k: image.tables[k].all().tolist() for k in sorted(image.tables)}}


def diff(before: RepairsImage, after: RepairsImage) -> Json:
    """By the table's id: how many tablets have times that it did not have, and when the newest was repaired."""
    added, removed, changed = compared(before.tables, after.tables)
    found: Json = {name: {"repaired": 0, "newest_ms": 0} for name in removed}
    for name in (*added, *changed):
        times = after.tables[name].all()
        known = before.tables.get(name)
        other = times != known.all() if known and len(known) == len(times) else times > 0
        found[name] = {"repaired": int(other.sum()), "newest_ms": int(times.max())}
    return {"repairs": dict(sorted(found.items()))}


DOMAIN = Domain(
    name="repairs",
    empty=RepairsImage(),
    decide={},
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
