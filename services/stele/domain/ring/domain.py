"""The differences between two placements.

Shared chunks are skipped, so the cost is that of the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from immutables import Map

from stele.domain.hashing import HASH_BYTES, MODULUS, row_hash
from stele.domain.registry_entry import Domain
from stele.domain.ring.columns import Columns, NodeNumbers
from stele.domain.ring.model import (
    WHOLE_RING,
    NodeNumbered,
    PackedRows,
    PlacementChanged,
    PlacementDropped,
    RingFact,
    RingImage,
    packed_ranges,
    unpacked,
)
from stele.domain.ring.placement import EMPTY_RING, Placement, changed
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.tables import Json, row_json

Rows = tuple[RangeReplicas, ...]


def differences(before: Placement | None, after: Placement | None) -> tuple[Rows, Rows]:
    """Return the removed and the added rows, in ring order; None stands for a missing placement.

    Both must be of one history, in which a node keeps its number.
    """
    old, new = _rows_apart(before, after), _rows_apart(after, before)
    were, are = set(old), set(new)
    return (
        tuple(row for row in old if row not in are),
        tuple(row for row in new if row not in were),
    )


def _rows_apart(placement: Placement | None, other: Placement | None) -> Rows:
    """Return the rows in chunks that the other placement does not share.

    After a shared chunk the next row begins at the same token in both. The changed rows therefore
    cover the same tokens before and after.
    """
    if placement is None:
        return ()
    shared = frozenset[int]() if other is None else frozenset(map(id, other.table.chunks))
    return tuple(
        row
        for at, chunk in enumerate(placement.table.chunks)
        if id(chunk) not in shared
        for row in placement.overlapping(
            Range(chunk.keys[0], placement.end_of(at, len(chunk.keys) - 1))
        )
    )


# The entry of placements in the registry.


def node_numbered(image: RingImage, fact: NodeNumbered) -> RingImage:
    return image.with_node(fact.number, fact.node_id)


SHARED_TABLES: Final = 4096
_WHOLE: Final = packed_ranges(WHOLE_RING)


def placement_changed(image: RingImage, fact: PlacementChanged) -> RingImage:
    before = image.placement(fact.placement)
    # One row replaces the only row, so the result depends on the new row alone.
    if len(before) == len(fact.added) == 1 and fact.removed == _WHOLE:
        table = _table_of_one_row(fact.added, len(image.nodes.names))
        after = Placement(table, image.nodes)
    else:
        after = changed(before, unpacked(fact.removed, fact.added, image.nodes))
    return image.with_placement(fact.placement, after)


@lru_cache(maxsize=SHARED_TABLES)
def _table_of_one_row(row: PackedRows, known: int) -> Columns:
    """Return the table of a placement with one row: one object for equal rows.

    ``known`` is the number of nodes that have a number; errors name nodes by it. Thousands of
    tables have a map of one tablet, on the same few nodes. A table of one row takes 2 kB, and 60 µs
    to check and build.
    """
    nodes = _numbers_of(known)
    return changed(Placement(EMPTY_RING.table, nodes), unpacked(_WHOLE, row, nodes)).table


@lru_cache(maxsize=1)
def _numbers_of(count: int) -> NodeNumbers:
    """Return numbers in place of names: tables must not keep the names of every earlier epoch."""
    return NodeNumbers(tuple(map(str, range(count))))


def placement_dropped(image: RingImage, fact: PlacementDropped) -> RingImage:
    return image.with_placement(fact.placement, None)


def to_facts(image: RingImage) -> Iterable[RingFact]:
    # All numbers are written first, so that the placements below add none.
    numbered = RingImage(nodes=image.nodes)
    for number, node_id in enumerate(image.nodes.names):
        yield NodeNumbered(number, node_id)
    for name in sorted(image.placements):
        yield from numbered.creation(name, image.placements[name])


def hash_of(image: RingImage) -> int:
    """Hash the rows by their chunks, which store their sums.

    Node numbers are facts, so they are equal in every process.
    """
    total = row_hash(",".join(image.nodes.names).encode())
    for name, placement in image.placements.items():
        rows = placement.table.hash_sum().to_bytes(HASH_BYTES, "big")
        total += row_hash(name.encode() + rows)
    return total % MODULUS


def view(image: RingImage) -> Json:
    return {"placements": RowsByPlacement(image.placements)}


class RowsByPlacement(Mapping[str, tuple[RangeReplicas, ...]]):
    """The rows of each placement, decoded on access: all of them at once may take seconds."""

    def __init__(self, placements: Map[str, Placement]) -> None:
        self._placements = placements

    def __getitem__(self, name: str) -> tuple[RangeReplicas, ...]:
        return self._placements[name].rows

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._placements))

    def __len__(self) -> int:
        return len(self._placements)


def diff(before: RingImage, after: RingImage) -> Json:
    return {"placements": _changed(before.placements, after.placements)}


def delta(before: RingImage, after: RingImage, facts: Iterable[object]) -> Json:
    """Return, by placement, how many rows an epoch removes and adds, not the rows themselves.

    An epoch may change very many rows, and its facts have them all. It changes them in pieces, and
    a row that two pieces share is counted in each.
    """
    changed: Json = {}
    for fact in facts:
        if isinstance(fact, PlacementChanged):
            counts = changed.setdefault(fact.placement, {"added": 0, "removed": 0})
            counts["added"] += len(fact.added)
            counts["removed"] += len(fact.removed)
        elif isinstance(fact, PlacementDropped):
            rows = before.placements.get(fact.placement, ())
            changed[fact.placement] = {"added": 0, "removed": len(rows)}
    # A new placement replaces a ring without tokens, whose one row does not count as removed.
    for name in changed.keys() - {*before.placements} & {*after.placements}:
        changed[name] = {"added": len(after.placements[name]), "removed": 0}
    return {"placements": changed}


def _changed(before: Map[str, Placement], after: Map[str, Placement]) -> Json:
    """Return the placements that differ, by name: {added: [row], removed: [row]} in ring order."""
    changed: Json = {}
    for name in sorted({*before, *after}):
        removed, added = differences(before.get(name), after.get(name))
        if removed or added:
            changed[name] = {
                "added": [row_json(row) for row in added],
                "removed": [row_json(row) for row in removed],
            }
    return changed


DOMAIN = Domain(
    name="ring",
    empty=RingImage(),
    decide={},
    apply={
        NodeNumbered: node_numbered,
        PlacementChanged: placement_changed,
        PlacementDropped: placement_dropped,
    },
    to_facts=to_facts,
    view=view,
    diff=diff,
    hash=hash_of,
    delta=delta,
)
