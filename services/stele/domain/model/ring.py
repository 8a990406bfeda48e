"""The rows of the placements: facts, image, and the differences between two placements.

A fact has rows by column, with nodes by number (docs/decisions/025).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Final, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
from immutables import Map

from stele.domain.base import Fact
from stele.domain.column import Ints, NumberColumn
from stele.domain.hashing import HASH_BYTES, MODULUS, row_hash
from stele.domain.names import MAX_SHARDS, TABLET_MAP
from stele.domain.planner.shares import Ints as ShareInts
from stele.domain.planner.shares import Reals, surplus
from stele.domain.registry_entry import Domain
from stele.domain.ring.columns import (
    NO_NODES,
    PAD,
    Chunk,
    Columns,
    Keys,
    NodeNumbers,
    Rows,
    joined,
    lengths,
    padded,
    widened,
)
from stele.domain.ring.placement import (
    EMPTY_RING,
    LISTED,
    OTHER,
    OTHER_SHARDS,
    SHARDS,
    WRITES,
    Placement,
    PlacementChange,
    PlacementError,
    Ranges,
    change_of,
    changed,
    check_removed,
    ends_of,
    on_nodes,
    ranges_by_column,
    read_shards,
    reads_of,
    replica_columns,
    shards_of,
)
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, RangeReplicas
from stele.domain.ring.transition import PlacementDelta
from stele.domain.tables import Json, row_json

_KINDS: Final = range(3)
"""Kinds of lists in a row: writes, reads where they are listed, and others."""


class PackedRanges(msgspec.Struct, frozen=True):
    """Ranges (start, end] by column, of equal length."""

    starts: NumberColumn
    ends: NumberColumn

    def __len__(self) -> int:
        return len(self.starts)


class PackedRows(msgspec.Struct, frozen=True):
    """Rows by column, with nodes by number. All but ``nodes`` and the shards have equal length.

    ``nodes`` concatenates the lists of all rows. Each row has ``writes`` nodes that receive its
    writes. The first ``reads`` of them serve its reads. If ``reads`` is negative, that many more
    nodes follow, which serve the reads. The last ``others`` nodes of a row are the other side of a
    range that moves.

    ``shards`` are the shards of all rows' writes, concatenated; empty means all are 0.
    ``other_shards`` are the shards that replicas move to within their nodes; empty means that no
    replica moves.
    """

    starts: NumberColumn
    ends: NumberColumn
    versions: NumberColumn
    versions_before: NumberColumn
    writes: NumberColumn
    reads: NumberColumn
    others: NumberColumn
    nodes: NumberColumn
    shards: NumberColumn = msgspec.field(default_factory=NumberColumn)
    other_shards: NumberColumn = msgspec.field(default_factory=NumberColumn)

    def __len__(self) -> int:
        return len(self.starts)


def packed_ranges(ranges: Ranges) -> PackedRanges:
    return PackedRanges(NumberColumn.of(ranges.starts), NumberColumn.of(ranges.ends))


def packed(rows: Rows, ends: Keys) -> PackedRows:
    versions, versions_before, counts, writes, listed, others, *_ = rows.values
    # A negative number marks reads that are listed.
    reads = np.where(counts == LISTED, -lengths(listed), counts)
    nodes = np.hstack((writes, listed, others))
    return PackedRows(
        starts=NumberColumn.of(rows.keys),
        ends=NumberColumn.of(ends),
        versions=NumberColumn.of(versions),
        versions_before=NumberColumn.of(versions_before),
        writes=NumberColumn.of(lengths(writes)),
        reads=NumberColumn.of(reads),
        others=NumberColumn.of(lengths(others)),
        nodes=NumberColumn.of(nodes[nodes != PAD]),
        **_packed_shards(rows),
    )


def _packed_shards(rows: Rows) -> dict[str, NumberColumn]:
    there, shards = rows.values[WRITES] != PAD, shards_of(rows)
    found = {"shards": NumberColumn.of(shards[there])} if rows.values[SHARDS].shape[1] else {}
    onto = rows.values[OTHER_SHARDS]
    if onto.shape[1]:
        moving = np.where(onto[:, :1] == PAD, shards, widened(onto, shards.shape[1]))
        found["other_shards"] = NumberColumn.of(moving[there])
    return found


def unpacked(removed: PackedRanges, added: PackedRows, nodes: NodeNumbers) -> PlacementChange:
    """Return the change by column. Raises PlacementError when the columns do not fit together."""
    columns = [column.numbers() for column in msgspec.structs.astuple(added)]
    starts, ends, newest, before, writes, reads, others, numbers, shards, other_shards = columns
    if len({*map(len, (starts, ends, newest, before, writes, reads, others))}) > 1:
        raise _no_rows()
    counts = np.empty((len(starts), len(_KINDS)), np.int64)
    counts[:, 0], counts[:, 1], counts[:, 2] = writes, reads, others
    reads_count = np.minimum(counts[:, 1], counts[:, 0])
    np.minimum(counts[:, 1], 0, out=counts[:, 1])
    np.negative(counts[:, 1], out=counts[:, 1])
    # Columns that do not fit each other must fail here, before the counts are used as places.
    if np.count_nonzero(_unsigned(counts) > len(numbers)) or counts.sum() != len(numbers):
        raise _no_rows()
    if np.count_nonzero(_unsigned(numbers) >= len(nodes.names)):
        raise PlacementError("Packed rows name a node by an unknown number.")
    lists = _lists(numbers, counts)
    places = _places(counts[:, 0], shards, other_shards)
    values = _as_kept((newest, before), reads_count, lists, places)
    rows = Rows(starts.astype(np.int64), values)
    return _in_ring_order(_ranges(removed), rows, ends.astype(np.int64), nodes)


def _ranges(packed: PackedRanges) -> Ranges:
    starts, ends = packed.starts.numbers(), packed.ends.numbers()
    if len(starts) != len(ends):
        raise _no_rows()
    return Ranges(starts.astype(np.int64), ends.astype(np.int64))


def _unsigned(numbers: Ints) -> npt.NDArray[np.uint64]:
    """Return the numbers as unsigned ones. Numbers below 0 are then greater than all others."""
    return numbers.astype(np.int64, copy=False).view(np.uint64)


def _places(counts: Keys, shards: Ints, other_shards: Ints) -> tuple[Ints | None, Ints | None]:
    """Return the columns of shards.

    A row with all replicas on shard 0 has no shards, and a row whose replicas do not move has no
    other shards.
    """
    total = int(counts.sum())
    if {len(shards), len(other_shards)} - {0, total}:
        raise _no_rows()
    if not (len(shards) or len(other_shards)):
        return None, None
    named = np.concatenate((shards, other_shards))
    if np.count_nonzero((named < 0) | (named >= MAX_SHARDS)):
        raise PlacementError("Packed rows name a shard that no node can have.")
    longest = int(counts.max(initial=0))
    none = np.zeros(total, np.int8)
    on = padded(shards if len(shards) else none, counts, longest)
    onto = padded(other_shards, counts, longest) if len(other_shards) else on
    # One form only, as for reads: shard 0 for all, and no move, are stored as empty lists.
    zero = np.flatnonzero((on <= 0).all(axis=1))
    stay = np.flatnonzero((on == onto).all(axis=1))
    on, onto = on.copy(), onto.copy()
    on[zero], onto[stay] = PAD, PAD
    return on, onto


def _no_rows() -> PlacementError:
    return PlacementError("Packed rows whose columns have different lengths are no rows.")


def _lists(numbers: Ints, counts: Keys) -> list[Ints]:
    """Return the lists of each kind, padded.

    ``counts`` has a column for each kind. The lists of a row follow each other in ``numbers``.
    """
    longest = counts.max(axis=0, initial=0).tolist()
    if not any(longest[1:]):  # at rest all numbers are writes
        none = np.empty((len(counts), 0), np.int32)
        return [padded(numbers, counts[:, 0], longest[0]), none, none]
    kind = np.repeat(np.arange(counts.size), counts.ravel()) % len(_KINDS)
    return [padded(numbers[kind == at], counts[:, at], longest[at]) for at in _KINDS]


def _as_kept(
    versions: Sequence[Ints],
    counts: Keys,
    lists: Sequence[Ints],
    places: tuple[Ints | None, Ints | None],
) -> tuple[Ints, ...]:
    """Return a placement's columns, with reads listed only where they are not the first writes."""
    newest, before = versions
    writes, listed, others = lists
    # A writer may list reads that are the first writes. Rows are stored in one form only, so that
    # equal rows have equal hashes.
    if listed.shape[1]:
        alone = np.flatnonzero(counts < 0)
        width = max(writes.shape[1], listed.shape[1])
        inside = np.arange(width) < -counts[alone, None]
        first = np.where(inside, widened(writes[alone], width), PAD)
        same = (first == widened(listed[alone], width)).all(axis=1)
        counts[alone] = np.where(same, -counts[alone], LISTED)
        listed[alone[same]] = PAD
    return replica_columns(newest, before, writes, listed, counts, others, *places)


def _in_ring_order(removed: Ranges, rows: Rows, ends: Keys, nodes: NodeNumbers) -> PlacementChange:
    # Facts keep the order of their writer; columns and searches need ring order.
    order = _order(removed.starts)
    if order is not None:
        removed = Ranges(removed.starts[order], removed.ends[order])
    order = _order(rows.keys)
    if order is not None:
        rows, ends = rows.chosen(order), ends[order]
    return PlacementChange(removed, rows, ends, nodes)


def _order(starts: Keys) -> npt.NDArray[np.intp] | None:
    """Return the ring order as an index, or None when the starts are in it already."""
    if np.count_nonzero(starts[1:] < starts[:-1]):
        return np.argsort(starts)
    return None


# Facts of placements: rows that are removed and added. All other rows stay as they are.


class NodeNumbered(Fact, frozen=True):
    """Rows name a node by a small number.

    Numbers are dense from 0, and a number is never reused.
    """

    number: int
    node_id: str


class PlacementChanged(Fact, frozen=True):
    """Rows of a placement are replaced. ``removed`` and ``added`` cover the same tokens.

    A placement that does not exist yet is a ring without tokens.
    """

    placement: str
    removed: PackedRanges
    added: PackedRows


class PlacementDropped(Fact, frozen=True):
    placement: str


RingFact = NodeNumbered | PlacementChanged | PlacementDropped


# Large changes of a placement, split into pieces that can be applied in order.


def pieces_of(
    placement: Placement, change: PlacementChange, at_most: int
) -> Iterator[PlacementChange]:
    """Yield the change in pieces that add, and that remove, at most ``at_most`` rows each.

    ``at_most`` is at least 2. Each piece fits the placement after the pieces before it. If a piece
    ends within a removed row, the rest of that row stays for the next piece. If it ends within an
    added row, the next piece completes that row. A first placement is a change of ``EMPTY_RING``.
    """
    if at_most < 2:
        raise ValueError(f"Pieces need room for 2 rows, not {at_most}.")
    check_removed(placement, change.removed)
    left = change
    # One added row is kept free for the rest of a removed row that the cut divides.
    while len(left.rows) > at_most or len(left.removed) > at_most:
        last = min(
            *left.added.lasts()[at_most - 2 : at_most - 1].tolist(),
            *left.removed.lasts()[at_most - 1 : at_most].tolist(),
            MAX_TOKEN,
        )
        piece, left = _parted(placement, left, last)
        yield piece
    if len(left.rows) or len(left.removed):
        yield left


def _parted(
    placement: Placement, change: PlacementChange, last: int
) -> tuple[PlacementChange, PlacementChange]:
    """Return the part of the change for rows that begin up to ``last``, and the remaining change.

    If such a row ends after ``last``, the other side gets a row that ends there.
    """
    removed, rows, ends = change.removed, change.rows, change.ends
    gone = int(np.searchsorted(removed.starts, last, "right"))
    come = int(np.searchsorted(rows.keys, last, "right"))
    going, coming, coming_ends = removed.cut(0, gone), rows.cut(0, come), ends[:come]
    staying, begun = removed.cut(gone, len(removed)), come
    if int(going.lasts()[-1]) > last:
        rest = _rest(placement, int(going.starts[-1]), last + 1)
        # The last removed row ends after the cut. Its rest is added again, and the next piece
        # removes it.
        coming, coming_ends = joined((coming, rest)), np.append(coming_ends, going.ends[-1])
        staying = _behind(last + 1, int(going.ends[-1]), staying)
    elif int(change.added.lasts()[come - 1]) > last:
        # The last added row ends after the cut. A shortened one comes now, and the next piece
        # replaces it.
        begun -= 1
        coming_ends = np.append(coming_ends[:-1], last + 1)
        staying = _behind(int(rows.keys[begun]), last + 1, staying)
    piece = PlacementChange(going, coming, coming_ends, change.nodes)
    return piece, PlacementChange(staying, rows.cut(begun, len(rows)), ends[begun:], change.nodes)


def _rest(placement: Placement, token: int, start: int) -> Rows:
    """Return the row that holds the tokens after ``token``, beginning at ``start``."""
    at, place = placement.table.find(token)
    row = placement.table.chunks[at].rows.cut(place, place + 1)
    return Rows(np.array([start], np.int64), row.values)


def _behind(start: int, end: int, ranges: Ranges) -> Ranges:
    """Return the ranges with one more in front."""
    return Ranges(np.insert(ranges.starts, 0, start), np.insert(ranges.ends, 0, end))


# The number of tablet replicas that each shard of each node serves reads of, updated with each
# change.


Counts = npt.NDArray[np.int64]
"""Counts of shape (numbers of nodes, shards). Nodes and shards beyond it have none."""

OnNodes = npt.NDArray[np.int32]
"""Counts by number of a node. Nodes beyond it have none."""

NO_REPLICAS: Counts = np.zeros((0, 1), np.int64)
MOST_KEPT: Final = 8
"""Largest number of surpluses that are kept up to date: one for each dc or list of racks."""
MAPS_AT_ONCE: Final = 512


class Weighed(NamedTuple):
    """Nodes by number, ``PAD`` for one without a number, and their weights, as bytes."""

    numbers: bytes
    weight: bytes

    @classmethod
    def of(cls, numbers: ShareInts, weight: Reals) -> Self:
        return cls(numbers.astype(np.int64).tobytes(), weight.tobytes())

    @property
    def lacks_a_number(self) -> bool:
        return bool((np.frombuffer(self.numbers, np.int64) == PAD).any())

    def surplus(self, maps: Iterable[OnNodes]) -> ShareInts:
        """Return ``shares.surplus`` of maps on these nodes."""
        numbers, weight = np.frombuffer(self.numbers, np.int64), np.frombuffer(self.weight)
        found, rest = np.zeros(len(weight), np.int64), iter(maps)
        while some := [*islice(rest, MAPS_AT_ONCE)]:
            found += surplus(np.stack([replicas_on(each, numbers) for each in some]), weight)
        return found


def replicas_on(by_number: OnNodes, numbers: ShareInts) -> OnNodes:
    """Return the replicas on each of these nodes, 0 on ``PAD``."""
    known = np.append(by_number, 0)
    found: OnNodes = known[np.where(numbers < len(by_number), numbers, PAD)]
    return found


class TabletCounts(msgspec.Struct, frozen=True):
    """The counts of all tablet maps together, and of each by the name of its placement.

    ``surpluses`` are those that were asked for, the last one at the end. They are updated with each
    change too.
    """

    total: Counts = NO_REPLICAS
    by_map: Map[str, OnNodes] = Map()
    surpluses: dict[Weighed, ShareInts] = {}

    @classmethod
    def of(cls, maps: Mapping[str, Columns]) -> Self:
        total, by_map = NO_REPLICAS, dict[str, OnNodes]()
        for name, columns in maps.items():
            own = counts_of(columns)
            by_map[name] = own.sum(axis=1, dtype=np.int32)
            if not (np.array(own.shape) <= total.shape).all():
                total = _widened(total, own.shape)
            total[: own.shape[0], : own.shape[1]] += own
        return cls(total, Map(by_map))

    def surplus(self, key: Weighed) -> ShareInts:
        """Return ``shares.surplus`` of all maps."""
        # A node without a number gets one with its first replica. Its key is then never used again,
        # and would still be updated with each change.
        if key.lacks_a_number:
            return key.surplus(self.by_map.values())
        found = self.surpluses.pop(key, None)
        if found is None:
            found = key.surplus(self.by_map.values())
        self.surpluses[key] = found
        return found

    def with_map(self, name: str, before: Columns | None, after: Columns | None) -> Self:
        """Return the counts after a map was replaced; None: it did not exist, or exists no longer.

        The cost is that of the chunks that the two do not share.
        """
        gone = {id(chunk): chunk for chunk in (before.chunks if before is not None else ())}
        come = [c for c in (after.chunks if after is not None else ()) if not gone.pop(id(c), None)]
        change = _with_chunks(_with_chunks(NO_REPLICAS, come, 1), gone.values(), -1)
        old = self.by_map.get(name, NO_REPLICAS[:, 0].astype(np.int32))
        new = np.zeros(max(len(old), len(change)), np.int32)
        new[: len(old)] = old
        new[: len(change)] += change.sum(axis=1, dtype=np.int32)
        kept = [*self.surpluses.items()][-MOST_KEPT:]
        surpluses = {key: found + key.surplus([new]) for key, found in kept}
        if before is not None:
            surpluses = {key: found - key.surplus([old]) for key, found in surpluses.items()}
        by_map = self.by_map.delete(name) if after is None else self.by_map.set(name, new)
        return type(self)(_sum(self.total, change), by_map, surpluses)


def counts_of(columns: Columns) -> Counts:
    """Return the counts of one map."""
    return _with_chunks(NO_REPLICAS, columns.chunks, 1)


def _sum(counts: Counts, change: Counts) -> Counts:
    found = _widened(counts, change.shape)
    found[: change.shape[0], : change.shape[1]] += change
    return found


def _with_chunks(counts: Counts, chunks: Iterable[Chunk], sign: int) -> Counts:
    for chunk in chunks:
        reads = reads_of(chunk.rows)
        there = reads != PAD
        nodes, shards = reads[there], read_shards(chunk.rows, reads)[there]
        if not len(nodes):
            continue
        shape = (int(nodes.max()) + 1, int(shards.max()) + 1)
        found = np.bincount(nodes * shape[1] + shards, minlength=shape[0] * shape[1])
        # The counts of the earlier image must not change, so every step works on a copy.
        counts = _widened(counts, shape)
        counts[: shape[0], : shape[1]] += sign * found.reshape(shape)
    return counts


def _widened(counts: Counts, shape: tuple[int, ...]) -> Counts:
    """Return a copy with room for at least so many nodes and shards."""
    found = np.zeros(np.maximum(counts.shape, shape), np.int64)
    found[: counts.shape[0], : counts.shape[1]] = counts
    return found


# The placements at one epoch, and the numbers that stand for nodes in them.


ROWS_PER_FACT: Final = 20_000
"""Rows of a larger change are split into several facts of 1 MiB at most, so that an epoch can go in
parts.
"""

WHOLE_RING: Final = ranges_by_column((Range(MIN_TOKEN, MIN_TOKEN),))


class RingImage(msgspec.Struct, frozen=True, dict=True):
    """Placements by name; see ``model.schema.placement_name``."""

    placements: Map[str, Placement] = Map()
    nodes: NodeNumbers = NO_NODES

    def with_node(self, number: int, node_id: str) -> RingImage:
        """Return the image in which a node has this number."""
        changed = RingImage(self.placements, self.nodes.with_node(number, node_id))
        changed.__dict__.update(self.__dict__)
        return changed

    def with_placement(self, name: str, placement: Placement | None) -> RingImage:
        """Return the image with another placement of this name, or without it if None.

        Counts of tablets that were used before are carried over. A change of one tablet therefore
        costs the same in a large cluster as in a small one. Raises KeyError if a placement that
        does not exist is to go: such an epoch does not fit this state.
        """
        before, there = self.placements.get(name), self.placements
        placements = there.delete(name) if placement is None else there.set(name, placement)
        changed = RingImage(placements, self.nodes)
        if "rows" in self.__dict__:
            sizes = [0 if each is None else len(each) for each in (before, placement)]
            changed.__dict__["rows"] = self.rows - sizes[0] + sizes[1]
        if self.has_tablet_counts:
            counts = self.tablet_counts
            if name.startswith(TABLET_MAP):
                counts = counts.with_map(name, _table(before), _table(placement))
            changed.__dict__["tablet_counts"] = counts
        return changed

    @cached_property
    def rows(self) -> int:
        """The number of rows of all placements."""
        return sum(map(len, self.placements.values()))

    @property
    def has_tablet_counts(self) -> bool:
        """True once ``tablet_counts`` was used; later images then have it without a recount."""
        return "tablet_counts" in self.__dict__

    @cached_property
    def tablet_counts(self) -> TabletCounts:
        """Replicas that serve reads of tablet maps, by number of node and shard."""
        return TabletCounts.of(
            {
                name: placement.renumbered(self.nodes).table
                for name, placement in self.placements.items()
                if name.startswith(TABLET_MAP)
            }
        )

    def placement(self, name: str) -> Placement:
        """Return the placement of this name. A missing one is a ring without tokens."""
        return Placement(self.placements.get(name, EMPTY_RING).table, self.nodes)

    def change(self, name: str, delta: PlacementDelta) -> Iterable[RingFact]:
        """Yield the facts of a change: numbers of nodes that have none, then the rows in pieces."""
        return self._facts(name, change_of(delta.removed, delta.added, self.nodes))

    def creation(self, name: str, placement: Placement) -> Iterable[RingFact]:
        """Yield the facts of a placement that does not exist yet."""
        rows, nodes = self._numbered(placement)
        return self._facts(name, PlacementChange(WHOLE_RING, rows, ends_of(rows.keys), nodes))

    def replacement(self, name: str, rows: Rows) -> Iterable[RingFact]:
        """Yield the facts that replace all rows of a placement by ``rows``.

        ``rows`` name nodes by the image's numbers.
        """
        starts = self.placements[name].table.all().keys
        removed = Ranges(starts, ends_of(starts))
        return self._facts(name, PlacementChange(removed, rows, ends_of(rows.keys), self.nodes))

    def _facts(self, name: str, change: PlacementChange) -> Iterable[RingFact]:
        known = len(self.nodes.names)
        # Numbers come before the rows that use them, so that every reader can decode the rows.
        for number, node_id in enumerate(change.nodes.names[known:], known):
            yield NodeNumbered(number, node_id)
        for piece in pieces_of(self.placement(name), change, ROWS_PER_FACT):
            added = packed(piece.rows, piece.ends)
            yield PlacementChanged(name, packed_ranges(piece.removed), added)

    def _numbered(self, placement: Placement) -> tuple[Rows, NodeNumbers]:
        """Return a placement's rows by the image's numbers, and the numbers with those of new
        nodes.
        """
        rows = placement.table.all()
        lists = rows.values[WRITES : OTHER + 1]
        named = np.unique(np.concatenate([numbers.ravel() for numbers in lists]))
        names = (placement.nodes.names[number] for number in named.tolist() if number != PAD)
        nodes = self.nodes.with_nodes(names)
        columns = on_nodes(rows.values, lambda lists: placement.nodes.translate(lists, nodes))
        return Rows(rows.keys, columns), nodes


def _table(placement: Placement | None) -> Columns | None:
    return None if placement is None else placement.table


RangeRows = tuple[RangeReplicas, ...]


def differences(before: Placement | None, after: Placement | None) -> tuple[RangeRows, RangeRows]:
    """Return the removed and the added rows, in ring order; None stands for a missing placement.

    Both must be of one history, in which a node keeps its number.
    """
    old, new = _rows_apart(before, after), _rows_apart(after, before)
    were, are = set(old), set(new)
    return (
        tuple(row for row in old if row not in are),
        tuple(row for row in new if row not in were),
    )


def _rows_apart(placement: Placement | None, other: Placement | None) -> RangeRows:
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
