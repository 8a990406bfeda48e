"""A placement's rows as a fact carries them: plain lists of numbers, and large changes in pieces."""

from collections.abc import Iterator, Sequence
from struct import pack
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.ring.columns import Ints, Keys, Rows, joined, widened
from stele.domain.ring.numbers import PAD, NodeNumbers, Numbers, lengths, padded
from stele.domain.ring.placement import (
    Change,
    Placement,
    check_removed,
)
from stele.domain.ring.ranges import Range
from stele.domain.ring.replicas import (
    LISTED,
    OTHER_SHARDS,
    SHARDS,
    WRITES,
    replica_columns,
    shards_of,
)
from stele.domain.ring.shards import MAX_SHARDS
from stele.domain.ring.spans import PlacementError, Ranges, ranges_by_column
from stele.domain.ring.tokens import MAX_TOKEN

_KINDS: Final = range(3)
"""Of lists that a row has: writes, reads where they are listed, and others."""


class PackedRows(msgspec.Struct, frozen=True):
    """Rows by column, nodes by number; of equal length but for ``nodes``.

    ``nodes`` has the writes of each row behind each other, ``writes`` of them a row. ``reads`` of them,
    the first ones, are its reads; or where that is negative, so many more nodes follow, the reads. Behind
    these stand ``others`` of them, the other side of a range that moves.

    ``shards`` are those of all rows' writes behind each other; empty: all are 0. So are ``other_shards``, to
    which replicas go within their nodes; empty: they are the same.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    versions: tuple[int, ...]
    versions_before: tuple[int, ...]
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    others: tuple[int, ...]
    nodes: tuple[int, ...]
    shards: tuple[int, ...] = ()
    other_shards: tuple[int, ...] = ()


def packed(rows: Rows, ends: Keys) -> PackedRows:
    versions, versions_before, counts, writes, listed, others, *_ = rows.values
    reads = np.where(counts == LISTED, -lengths(listed), counts)
    nodes = np.hstack((writes, listed, others))
    return PackedRows(
        starts=_plain(rows.keys),
        ends=_plain(ends),
        versions=_plain(versions),
        versions_before=_plain(versions_before),
        writes=_plain(lengths(writes)),
        reads=_plain(reads),
        others=_plain(lengths(others)),
        nodes=_plain(nodes[nodes != PAD]),
        **_packed_shards(rows),
    )


def _packed_shards(rows: Rows) -> dict[str, tuple[int, ...]]:
    there, shards = rows.values[WRITES] != PAD, shards_of(rows)
    found = {"shards": _plain(shards[there])} if rows.values[SHARDS].shape[1] else {}
    onto = rows.values[OTHER_SHARDS]
    if onto.shape[1]:
        moving = np.where(onto[:, :1] == PAD, shards, widened(onto, shards.shape[1]))
        found["other_shards"] = _plain(moving[there])
    return found


def unpacked(removed: Sequence[Range], added: PackedRows, nodes: NodeNumbers) -> Change:
    """The change by column. Raises PlacementError when the columns do not fit together."""
    columns = map(_column, msgspec.structs.astuple(added))
    starts, ends, newest, before, writes, reads, others, numbers, shards, other_shards = columns
    if len({*map(len, (starts, ends, newest, before, writes, reads, others))}) > 1:
        raise _no_rows()
    counts = np.empty((len(starts), len(_KINDS)), np.int64)
    counts[:, 0], counts[:, 2] = writes, others
    np.maximum(-reads, 0, out=counts[:, 1])
    if np.count_nonzero(counts < 0) or counts.sum() != len(numbers):
        raise _no_rows()
    if np.count_nonzero(numbers.view(np.uint64) >= len(nodes.names)):
        raise PlacementError("Packed rows name a node by a number that nobody has.")
    lists = _lists(numbers.astype(np.int32), counts)
    places = _places(writes, shards, other_shards)
    values = _as_kept((newest, before), np.minimum(reads, writes), lists, places)
    return _in_ring_order(ranges_by_column(removed), Rows(starts, values), ends, nodes)


def _places(
    counts: Keys, shards: Keys, other_shards: Keys
) -> tuple[Numbers | None, Numbers | None]:
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
    none = np.zeros(total, np.int32)
    on = padded(shards.astype(np.int32) if len(shards) else none, counts, longest)
    onto = padded(other_shards.astype(np.int32), counts, longest) if len(other_shards) else on
    zero = np.flatnonzero((on <= 0).all(axis=1))
    stay = np.flatnonzero((on == onto).all(axis=1))
    on, onto = on.copy(), onto.copy()
    on[zero], onto[stay] = PAD, PAD
    return on, onto


def _no_rows() -> PlacementError:
    return PlacementError("Packed rows whose columns have different lengths are no rows.")


def _plain(column: Ints) -> tuple[int, ...]:
    return tuple(column.tolist())


def _column(numbers: tuple[int, ...]) -> Keys:
    """By way of ``struct``, which reads small numbers twice as fast as numpy does."""
    return np.frombuffer(pack(f"{len(numbers)}q", *numbers), np.int64)


def _lists(numbers: Numbers, counts: Keys) -> list[Numbers]:
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
    versions: Sequence[Keys],
    counts: Keys,
    lists: Sequence[Numbers],
    places: tuple[Numbers | None, Numbers | None],
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


def pieces_of(placement: Placement, change: Change, at_most: int) -> Iterator[Change]:
    """The change in pieces that add, and that remove, at most so many rows each; at least 2.

    Each fits what the ones before it left. Where a piece ends within a row that goes, the rest of that
    row stays for the next one; where it ends within a row that comes, what has come is made whole by
    the next one. A first placement is a change of ``EMPTY_RING``.
    """
    if at_most < 2:
        raise ValueError(f"Pieces need room for 2 rows, not {at_most}.")
    check_removed(placement, change.removed)
    left = change
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


def _parted(placement: Placement, change: Change, last: int) -> tuple[Change, Change]:
    """What the change does to rows that begin up to ``last``, and what is left to do then.

    Where such a row goes on behind ``last``, on the other side one ends there.
    """
    removed, rows, ends = change.removed, change.rows, change.ends
    gone = int(np.searchsorted(removed.starts, last, "right"))
    come = int(np.searchsorted(rows.keys, last, "right"))
    going, coming, coming_ends = removed.cut(0, gone), rows.cut(0, come), ends[:come]
    staying, begun = removed.cut(gone, len(removed)), come
    if int(going.lasts()[-1]) > last:
        rest = _rest(placement, int(going.starts[-1]), last + 1)
        coming, coming_ends = joined((coming, rest)), np.append(coming_ends, going.ends[-1])
        staying = _behind(last + 1, int(going.ends[-1]), staying)
    elif int(change.added.lasts()[come - 1]) > last:
        begun -= 1
        coming_ends = np.append(coming_ends[:-1], last + 1)
        staying = _behind(int(rows.keys[begun]), last + 1, staying)
    piece = Change(going, coming, coming_ends, change.nodes)
    return piece, Change(staying, rows.cut(begun, len(rows)), ends[begun:], change.nodes)


def _rest(placement: Placement, token: int, start: int) -> Rows:
    """The row that holds what is behind ``token``, from ``start`` on."""
    at, place = placement.table.find(token)
    row = placement.table.chunks[at].rows.cut(place, place + 1)
    return Rows(np.array([start], np.int64), row.values)


def _behind(start: int, end: int, ranges: Ranges) -> Ranges:
    """The ranges behind one more."""
    return Ranges(np.insert(ranges.starts, 0, start), np.insert(ranges.ends, 0, end))
