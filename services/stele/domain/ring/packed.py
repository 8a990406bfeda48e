"""A placement's rows as a fact carries them: by column, nodes by number."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.column import Column, Ints
from stele.domain.ring.columns import Keys, Rows, widened
from stele.domain.ring.numbers import PAD, NodeNumbers, lengths, padded
from stele.domain.ring.placement import Change
from stele.domain.ring.replicas import (
    LISTED,
    OTHER_SHARDS,
    SHARDS,
    WRITES,
    replica_columns,
    shards_of,
)
from stele.domain.ring.shards import MAX_SHARDS
from stele.domain.ring.spans import PlacementError, Ranges

_KINDS: Final = range(3)
"""Of lists that a row has: writes, reads where they are listed, and others."""


class PackedRanges(msgspec.Struct, frozen=True):
    """Ranges (start, end] by column, of equal length."""

    starts: Column
    ends: Column

    def __len__(self) -> int:
        return len(self.starts)


class PackedRows(msgspec.Struct, frozen=True):
    """Rows by column, nodes by number; of equal length but for ``nodes`` and shards.

    ``nodes`` has the writes of each row behind each other, ``writes`` of them a row. ``reads`` of them,
    the first ones, are its reads; or where that is negative, so many more nodes follow, the reads. Behind
    these stand ``others`` of them, the other side of a range that moves.

    ``shards`` are those of all rows' writes behind each other; empty: all are 0. So are ``other_shards``, to
    which replicas go within their nodes; empty: they are the same.
    """

    starts: Column
    ends: Column
    versions: Column
    versions_before: Column
    writes: Column
    reads: Column
    others: Column
    nodes: Column
    shards: Column = msgspec.field(default_factory=Column)
    other_shards: Column = msgspec.field(default_factory=Column)

    def __len__(self) -> int:
        return len(self.starts)


def packed_ranges(ranges: Ranges) -> PackedRanges:
    return PackedRanges(Column.of(ranges.starts), Column.of(ranges.ends))


def packed(rows: Rows, ends: Keys) -> PackedRows:
    versions, versions_before, counts, writes, listed, others, *_ = rows.values
    reads = np.where(counts == LISTED, -lengths(listed), counts)
    nodes = np.hstack((writes, listed, others))
    return PackedRows(
        starts=Column.of(rows.keys),
        ends=Column.of(ends),
        versions=Column.of(versions),
        versions_before=Column.of(versions_before),
        writes=Column.of(lengths(writes)),
        reads=Column.of(reads),
        others=Column.of(lengths(others)),
        nodes=Column.of(nodes[nodes != PAD]),
        **_packed_shards(rows),
    )


def _packed_shards(rows: Rows) -> dict[str, Column]:
    there, shards = rows.values[WRITES] != PAD, shards_of(rows)
    found = {"shards": Column.of(shards[there])} if rows.values[SHARDS].shape[1] else {}
    onto = rows.values[OTHER_SHARDS]
    if onto.shape[1]:
        moving = np.where(onto[:, :1] == PAD, shards, widened(onto, shards.shape[1]))
        found["other_shards"] = Column.of(moving[there])
    return found


def unpacked(removed: PackedRanges, added: PackedRows, nodes: NodeNumbers) -> Change:
    """The change by column. Raises PlacementError when the columns do not fit together."""
    columns = [column.numbers() for column in msgspec.structs.astuple(added)]
    starts, ends, newest, before, writes, reads, others, numbers, shards, other_shards = columns
    if len({*map(len, (starts, ends, newest, before, writes, reads, others))}) > 1:
        raise _no_rows()
    counts = np.empty((len(starts), len(_KINDS)), np.int64)
    counts[:, 0], counts[:, 1], counts[:, 2] = writes, reads, others
    reads_count = np.minimum(counts[:, 1], counts[:, 0])
    np.minimum(counts[:, 1], 0, out=counts[:, 1])
    np.negative(counts[:, 1], out=counts[:, 1])
    if np.count_nonzero(_unsigned(counts) > len(numbers)) or counts.sum() != len(numbers):
        raise _no_rows()
    if np.count_nonzero(_unsigned(numbers) >= len(nodes.names)):
        raise PlacementError("Packed rows name a node by a number that nobody has.")
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
    """Numbers below 0 are then greater than any others."""
    return numbers.astype(np.int64, copy=False).view(np.uint64)


def _places(counts: Keys, shards: Ints, other_shards: Ints) -> tuple[Ints | None, Ints | None]:
    """The columns of shards: rows whose replicas are on shard 0 have none, nor other ones that do not move."""
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
    zero = np.flatnonzero((on <= 0).all(axis=1))
    stay = np.flatnonzero((on == onto).all(axis=1))
    on, onto = on.copy(), onto.copy()
    on[zero], onto[stay] = PAD, PAD
    return on, onto


def _no_rows() -> PlacementError:
    return PlacementError("Packed rows whose columns have different lengths are no rows.")


def _lists(numbers: Ints, counts: Keys) -> list[Ints]:
    """The lists of each kind, padded: ``counts`` has a column for each, and those of a row stand behind each
    other in ``numbers``.
    """
    longest = counts.max(axis=0, initial=0).tolist()
    if not any(longest[1:]):  # at rest there is nothing to tell apart
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
    """A placement's columns, in which reads are listed only where they are not the first of the writes."""
    newest, before = versions
    writes, listed, others = lists
    if listed.shape[1]:
        alone = np.flatnonzero(counts < 0)
        width = max(writes.shape[1], listed.shape[1])
        inside = np.arange(width) < -counts[alone, None]
        first = np.where(inside, widened(writes[alone], width), PAD)
        same = (first == widened(listed[alone], width)).all(axis=1)
        counts[alone] = np.where(same, -counts[alone], LISTED)
        listed[alone[same]] = PAD
    return replica_columns(newest, before, writes, listed, counts, others, *places)


def _in_ring_order(removed: Ranges, rows: Rows, ends: Keys, nodes: NodeNumbers) -> Change:
    order = _order(removed.starts)
    if order is not None:
        removed = Ranges(removed.starts[order], removed.ends[order])
    order = _order(rows.keys)
    if order is not None:
        rows, ends = rows.chosen(order), ends[order]
    return Change(removed, rows, ends, nodes)


def _order(starts: Keys) -> npt.NDArray[np.intp] | None:
    """Where each stands in ring order; None when they are in it."""
    if np.count_nonzero(starts[1:] < starts[:-1]):
        return np.argsort(starts)
    return None
