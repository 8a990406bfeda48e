"""A plain implementation of placements, row by row. Columns must be equal to it."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

import msgspec

from stele.domain.column import NumberColumn
from stele.domain.model.ring import PackedRanges, PackedRows
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.ranges import Range, RangeReplicas, range_of, upper_bound
from stele.domain.ring.transition import PlacementDelta

replace = msgspec.structs.replace
by_start = attrgetter("start")

Rows = tuple[RangeReplicas, ...]


def packed(rows: Sequence[RangeReplicas], nodes: NodeNumbers) -> PackedRows:
    """Pack rows. Raise KeyError for a node without a number."""
    names = chain.from_iterable(_listed(row) for row in rows)
    return PackedRows(
        starts=column(row.start for row in rows),
        ends=column(row.end for row in rows),
        versions=column(row.version for row in rows),
        versions_before=column(row.version_before for row in rows),
        writes=column(len(row.writes) for row in rows),
        reads=column(len(row.reads) * (1 if _leads(row) else -1) for row in rows),
        others=column(len(row.other) for row in rows),
        nodes=column(nodes.numbers[name] for name in names),
        shards=column(_all_shards(rows, "shards")),
        other_shards=column(_all_shards(rows, "other_shards")),
    )


def packed_ranges(ranges: Iterable[Range]) -> PackedRanges:
    found = [*ranges]
    return PackedRanges(column(r.start for r in found), column(r.end for r in found))


def column(numbers: Iterable[int]) -> NumberColumn:
    """Encode a column byte by byte."""
    few = [*numbers]
    for width in (1, 2, 4, 8):
        if all(-(1 << 8 * width - 1) <= number < 1 << 8 * width - 1 for number in few):
            raw = b"".join(number.to_bytes(width, "little", signed=True) for number in few)
            return NumberColumn(bytes((width,)) + raw if few else b"")
    raise AssertionError("more than 64 bits")


def _all_shards(rows: Sequence[RangeReplicas], which: str) -> tuple[int, ...]:
    """Return the shards of all rows, or an empty tuple if no row has any."""
    if not any(getattr(row, which) for row in rows):
        return ()
    lists = (getattr(row, which) or row.shards or (0,) * len(row.writes) for row in rows)
    return tuple(chain.from_iterable(lists))


def unpacked(rows: PackedRows, nodes: NodeNumbers) -> Rows:
    return tuple(_rows(rows, [nodes.names[number] for number in rows.nodes]))


def applied(rows: Rows, removed: Sequence[Range], added: Sequence[RangeReplicas]) -> Rows:
    """Return the rows after the change. The result is not checked."""
    kept = [row for row in rows if range_of(row) not in removed]
    return tuple(sorted((*kept, *added), key=by_start))


def pieces_of(rows: Rows, delta: PlacementDelta, at_most: int) -> Iterator[PlacementDelta]:
    added = sorted(delta.added, key=by_start)
    removed = [row for row in rows if range_of(row) in delta.removed]
    while len(added) > at_most or len(removed) > at_most:
        last_rows = (*added[at_most - 2 : at_most - 1], *removed[at_most - 1 : at_most])
        cut = min(upper_bound(row.end) for row in last_rows)
        going, removed = _parted(removed, cut)
        coming, added = _parted(added, cut)
        outgoing = tuple(range_of(row) for row in going)
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
        yield PlacementDelta(tuple(range_of(row) for row in removed), tuple(added))


def _leads(row: RangeReplicas) -> bool:
    return row.reads == row.writes[: len(row.reads)]


def _listed(row: RangeReplicas) -> tuple[str, ...]:
    return (*row.writes, *(() if _leads(row) else row.reads), *row.other)


def _parted(rows: list[RangeReplicas], cut: int) -> tuple[list[RangeReplicas], list[RangeReplicas]]:
    place = bisect_left(rows, cut, key=by_start)
    return rows[:place], rows[place:]


def _rows(rows: PackedRows, names: Sequence[str]) -> Iterator[RangeReplicas]:
    starts, ends, versions, before, all_writes, all_reads, all_others, _, all_shards, all_onto = (
        column.tolist() for column in msgspec.structs.astuple(rows)
    )
    place = shard = 0
    for at, writes in enumerate(all_writes):
        shards = tuple(all_shards[shard : shard + writes])
        onto = tuple(all_onto[shard : shard + writes])
        shard += writes
        written = tuple(names[place : place + writes])
        place += writes
        reads = all_reads[at]
        read = written[: max(reads, 0)]
        if reads < 0:
            read = tuple(names[place : place - reads])
            place -= reads
        other = tuple(names[place : place + all_others[at]])
        place += all_others[at]
        still = not onto or onto == (shards or (0,) * writes)
        places = shards if any(shards) else (), () if still else onto
        yield RangeReplicas(
            starts[at], ends[at], read, written, versions[at], before[at], other, *places
        )
