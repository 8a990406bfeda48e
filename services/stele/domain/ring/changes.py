"""A placement's rows as a fact carries them: plain lists of numbers, and large changes in pieces."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

import msgspec

from stele.domain.ring.numbers import NodeNumbers
from stele.domain.ring.placement import Placement, PlacementError
from stele.domain.ring.ranges import Range, RangeReplicas, upper_bound
from stele.domain.ring.transition import PlacementDelta

replace = msgspec.structs.replace
_START: Final = attrgetter("start")


class PackedRows(msgspec.Struct, frozen=True):
    """Rows by column, nodes by number; of equal length but for ``nodes``.

    ``nodes`` has the writes of each row behind each other, ``writes`` of them a row. ``reads`` of them,
    the first ones, are its reads; or where that is negative, so many more nodes follow, the reads. Behind
    these stand ``others`` of them, the other side of a range that moves.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    versions: tuple[int, ...]
    versions_before: tuple[int, ...]
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    others: tuple[int, ...]
    nodes: tuple[int, ...]


def packed(rows: Sequence[RangeReplicas], nodes: NodeNumbers) -> PackedRows:
    """Raises KeyError for a node without a number: a fact must number it first."""
    number = nodes.numbers.__getitem__
    numbers, reads = list[int](), list[int]()
    for row in rows:
        read, written = row.reads, row.writes
        numbers.extend(map(number, written))
        if read == written[: len(read)]:
            reads.append(len(read))
        else:
            reads.append(-len(read))
            numbers.extend(map(number, read))
        numbers.extend(map(number, row.other))
    return PackedRows(
        starts=tuple([row.start for row in rows]),
        ends=tuple([row.end for row in rows]),
        versions=tuple([row.version for row in rows]),
        versions_before=tuple([row.version_before for row in rows]),
        writes=tuple([len(row.writes) for row in rows]),
        reads=tuple(reads),
        others=tuple([len(row.other) for row in rows]),
        nodes=tuple(numbers),
    )


def unpacked(rows: PackedRows, nodes: NodeNumbers) -> tuple[RangeReplicas, ...]:
    """The rows by name. Raises PlacementError when the columns do not fit together."""
    alone = sum(-count for count in rows.reads if count < 0)
    listed = sum(rows.writes) + alone + sum(rows.others)
    columns = (
        rows.starts,
        rows.ends,
        rows.versions,
        rows.versions_before,
        rows.writes,
        rows.reads,
        rows.others,
    )
    if (
        len(set(map(len, columns))) > 1
        or listed != len(rows.nodes)
        or min(min(rows.writes, default=0), min(rows.others, default=0)) < 0
    ):
        raise PlacementError("Packed rows whose columns have different lengths are no rows.")
    if rows.nodes and not 0 <= min(rows.nodes) <= max(rows.nodes) < len(nodes.names):
        raise PlacementError("Packed rows name a node by a number that nobody has.")
    return tuple(_rows(rows, nodes.names))


def nodes_to_number(
    rows: Sequence[RangeReplicas], nodes: NodeNumbers
) -> tuple[tuple[int, str], ...]:
    """(number, node id) of each node that the rows name and that has none yet: facts to come before."""
    lists = chain.from_iterable((row.writes, row.reads, row.other) for row in rows)
    names = nodes.with_nodes(chain.from_iterable(lists)).names
    return tuple(enumerate(names))[len(nodes.names) :]


def pieces_of(
    placement: Placement, delta: PlacementDelta, at_most: int
) -> Iterator[PlacementDelta]:
    """The change in pieces that add, and that remove, at most so many rows each; at least 2.

    Each fits what the ones before it left. Where a piece ends within a row that goes, the rest of that
    row stays for the next one; where it ends within a row that comes, what has come is made whole by
    the next one. A first placement is a change of ``EMPTY_RING``.
    """
    if at_most < 2:
        raise ValueError(f"Pieces need room for 2 rows, not {at_most}.")
    added = sorted(delta.added, key=_START)
    removed = [_row_at(placement, range_) for range_ in sorted(delta.removed)]
    while len(added) > at_most or len(removed) > at_most:
        last_rows = (*added[at_most - 2 : at_most - 1], *removed[at_most - 1 : at_most])
        cut = min(upper_bound(row.end) for row in last_rows)
        going, removed = _parted(removed, cut)
        coming, added = _parted(added, cut)
        outgoing = tuple(Range(row.start, row.end) for row in going)
        if upper_bound(going[-1].end) > cut:
            rest = replace(going[-1], start=cut)
            coming.append(rest)
            removed.insert(0, rest)
        elif upper_bound(coming[-1].end) > cut:
            added.insert(0, coming[-1])
            coming[-1] = replace(coming[-1], end=cut)
            removed.insert(0, coming[-1])
        yield PlacementDelta(outgoing, tuple(coming))
    if added or removed:
        yield PlacementDelta(tuple(Range(row.start, row.end) for row in removed), tuple(added))


def _row_at(placement: Placement, range_: Range) -> RangeReplicas:
    row = placement.row_from(range_.start)
    if row is None or row.end != range_.end:
        raise PlacementError(f"({range_.start}, {range_.end}] cannot be removed: it is no row.")
    return row


def _parted(rows: list[RangeReplicas], cut: int) -> tuple[list[RangeReplicas], list[RangeReplicas]]:
    """Those that begin below the cut, and the others."""
    place = bisect_left(rows, cut, key=_START)
    return rows[:place], rows[place:]


def _rows(rows: PackedRows, names: Sequence[str]) -> Iterator[RangeReplicas]:
    place = 0
    name, numbers = names.__getitem__, rows.nodes
    changes = zip(rows.versions, rows.versions_before, strict=True)
    columns = (rows.starts, rows.ends, changes, rows.writes, rows.reads, rows.others)
    for start, end, (newest, before), writes, reads, others in zip(*columns, strict=True):
        written = tuple(map(name, numbers[place : place + writes]))
        place += writes
        read = written[:reads]
        if reads < 0:
            read = tuple(map(name, numbers[place : place - reads]))
            place -= reads
        other = tuple(map(name, numbers[place : place + others])) if others else ()
        place += others
        yield RangeReplicas(start, end, read, written, newest, before, other)
