"""What facts carry, put plainly: row by row. Columns must come to the same."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

import msgspec

from stele.domain.ring.changes import PackedRows
from stele.domain.ring.numbers import NodeNumbers
from stele.domain.ring.ranges import Range, RangeReplicas, range_of, upper_bound
from stele.domain.ring.transition import PlacementDelta

replace = msgspec.structs.replace
by_start = attrgetter("start")

Rows = tuple[RangeReplicas, ...]


def packed(rows: Sequence[RangeReplicas], nodes: NodeNumbers) -> PackedRows:
    """Raises KeyError for a node without a number."""
    names = chain.from_iterable(_listed(row) for row in rows)
    return PackedRows(
        starts=tuple(row.start for row in rows),
        ends=tuple(row.end for row in rows),
        versions=tuple(row.version for row in rows),
        versions_before=tuple(row.version_before for row in rows),
        writes=tuple(len(row.writes) for row in rows),
        reads=tuple(len(row.reads) * (1 if _leads(row) else -1) for row in rows),
        others=tuple(len(row.other) for row in rows),
        nodes=tuple(nodes.numbers[name] for name in names),
        shards=_all_shards(rows, "shards"),
        other_shards=_all_shards(rows, "other_shards"),
    )


def _all_shards(rows: Sequence[RangeReplicas], which: str) -> tuple[int, ...]:
    """None where no row has any."""
    if not any(getattr(row, which) for row in rows):
        return ()
    lists = (getattr(row, which) or row.shards or (0,) * len(row.writes) for row in rows)
    return tuple(chain.from_iterable(lists))


def unpacked(rows: PackedRows, nodes: NodeNumbers) -> Rows:
    return tuple(_rows(rows, [nodes.names[number] for number in rows.nodes]))


def applied(rows: Rows, removed: Sequence[Range], added: Sequence[RangeReplicas]) -> Rows:
    """Whether that fits is not looked at."""
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
    place = shard = 0
    for at, writes in enumerate(rows.writes):
        shards = rows.shards[shard : shard + writes]
        onto = rows.other_shards[shard : shard + writes]
        shard += writes
        written = tuple(names[place : place + writes])
        place += writes
        read = written[: max(rows.reads[at], 0)]
        if rows.reads[at] < 0:
            read = tuple(names[place : place - rows.reads[at]])
            place -= rows.reads[at]
        other = tuple(names[place : place + rows.others[at]])
        place += rows.others[at]
        bounds, versions = (
            (rows.starts[at], rows.ends[at]),
            (rows.versions[at], rows.versions_before[at]),
        )
        still = not onto or onto == (shards or (0,) * writes)
        places = shards if any(shards) else (), () if still else onto
        yield RangeReplicas(*bounds, read, written, *versions, other, *places)
