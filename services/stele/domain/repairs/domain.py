"""The domain of repairs, entered in the registry. Operations on tables write its facts."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from immutables import Map

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
RESTRICTED: Final = b"restricted/"
TIMES_PER_FACT: Final = 64 * CHUNK
"""Of a snapshot: half a MiB."""


def tablet_repaired(image: RepairsImage, fact: TabletRepaired) -> RepairsImage:
    of = image.times(restricted=fact.restricted)
    before = of.get(fact.table_id) or Times.never(fact.of)
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
    """Of each table's id and its times as they are."""
    rows = [k.encode() + _bytes(t.all()) for k, t in image.tables.items()]
    rows += [RESTRICTED + k.encode() + _bytes(t.all()) for k, t in image.restricted.items()]
    return sum(map(row_hash, rows)) % MODULUS


def _bytes(times: Ms) -> bytes:
    return times.astype(LITTLE_ENDIAN).tobytes()


def view(image: RepairsImage) -> Json:
    """By the table's id when each tablet was repaired last; and when among some replicas, for the request that
    asks for that.
    """
    return {
        name: {table_id: of[table_id].all().tolist() for table_id in sorted(of)}
        for name, of in (("repairs", image.tables), ("restricted_repairs", image.restricted))
    }


def diff(before: RepairsImage, after: RepairsImage) -> Json:
    """By the table's id: how many tablets have times that it did not have, and when the newest was repaired."""
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
