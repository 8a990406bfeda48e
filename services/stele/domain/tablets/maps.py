"""Tablet maps: a table's placement, with a row for each tablet; and tables that share one."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table, TableData, TableOptions
from stele.domain.model.tablet_stats import COLUMNS, LOWER, TabletStats
from stele.domain.model.transitions import Transition
from stele.domain.names import MAX_SHARDS, TABLET_MAP
from stele.domain.ring.columns import PAD, Keys, NodeNumbers, Numbers, Rows
from stele.domain.ring.placement import WRITES, Placement, read_shards, reads_of
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas, ranges_of
from stele.domain.ring.transition import TransitionRow

# The tablet of a token, and the range of a tablet.
#
# A map has a power of two of tablets with equal ranges, numbered from 0 in ring order.


TOKEN_BITS: Final = 64
MAX_TABLETS: Final = 1 << 20
"""Largest number of tablets of one table."""


def ranges(count: int) -> tuple[Range, ...]:
    """Return the ranges of a map of ``count`` tablets, which is a power of two."""
    width = (1 << TOKEN_BITS) // count
    return ranges_of(MIN_TOKEN + width * tablet - 1 for tablet in range(1, count))


def range_of(count: int, tablet: int) -> Range:
    """Return the range of one tablet. Raise IndexError if there is no such tablet."""
    if not 0 <= tablet < count:
        raise IndexError(f"There is no tablet {tablet} of {count}.")
    width = (1 << TOKEN_BITS) // count
    begin, end = (MIN_TOKEN + width * at - 1 for at in (tablet, tablet + 1))
    return Range(begin if tablet else MIN_TOKEN, end if tablet + 1 < count else MIN_TOKEN)


def tablet_of(count: int, end: int) -> int:
    """Return the number of the tablet whose range ends at ``end``."""
    if end == MIN_TOKEN:
        return count - 1
    return (end - MIN_TOKEN) * count >> TOKEN_BITS


def row_of(placement: Placement, tablet: int) -> RangeReplicas:
    """Return the row of a map's tablet. Raise IndexError if there is no such tablet."""
    return placement.row_for(range_of(len(placement), tablet).end)


def starts_of(count: int) -> Keys:
    """Return the starts of the ranges in a map of ``count`` tablets, as ``ranges`` defines them."""
    shift = np.uint64(TOKEN_BITS - count.bit_length() + 1)
    behind = np.arange(count, dtype=np.uint64) << shift
    starts = behind.view(np.int64) + np.int64(MIN_TOKEN) - 1
    starts[0] = MIN_TOKEN
    return starts


def new_map(replicas: Numbers, nodes: NodeNumbers, shards: Numbers | None = None) -> Placement:
    """Create a map whose tablets have these replicas on these shards; the default is shard 0."""
    return Placement.at_rest(starts_of(len(replicas)), replicas, nodes, shards)


def resized(placement: Placement, count: int) -> Rows:
    """Return the map's rows for ``count`` tablets instead, twice as many or half.

    Two tablets that become one must have the same replicas on the same shards.

    Each range keeps its versions; a merged one gets the newer of both. Requests older than the last
    move of either tablet are then refused and sent again.
    """
    rows, starts = placement.table.all(), starts_of(count)
    if count > len(rows):
        return Rows(starts, tuple(np.repeat(column, 2, axis=0) for column in rows.values))
    versions, versions_before, *replicas = rows.values
    newest, before = _versions_of_both(versions, versions_before)
    return Rows(starts, (newest, before, *(column[::2] for column in replicas)))


def _versions_of_both(versions: Ints, versions_before: Ints) -> tuple[Ints, Ints]:
    """Return for each pair of rows its newest version and the newest one before that, 0 if none."""
    newest = np.maximum(versions[::2], versions[1::2])
    known = np.stack((versions[::2], versions[1::2], versions_before[::2], versions_before[1::2]))
    return newest, np.where(known < newest, known, 0).max(axis=0)


def apart(placement: Placement) -> npt.NDArray[np.int64]:
    """Return the pairs of siblings that are not read from the same shards of the same nodes.

    Pair n consists of the tablets 2n and 2n + 1.
    """
    rows = placement.table.all()
    reads = reads_of(rows)
    places = reads.astype(np.int64) * MAX_SHARDS + read_shards(rows, reads)
    # The order of replicas does not matter here. A merge first gives both tablets the same order.
    places.sort(axis=1)
    return np.flatnonzero((places[::2] != places[1::2]).any(axis=1))


def of_dead_alone(image: Image, placement: str) -> npt.NDArray[np.bool_]:
    """Return the mask of tablets whose replicas are all excluded."""
    found = image.ring.placements[placement]
    dead = found.read_on(image.membership.excluded())
    alone: npt.NDArray[np.bool_] = (dead | (found.reads() == PAD)).all(axis=1)
    return alone


def holders(placement: Placement) -> frozenset[str]:
    """Return the nodes that receive writes of any tablet."""
    names = placement.nodes.names
    found = np.zeros(len(names) + 1, np.bool_)
    for chunk in placement.table.chunks:
        found[chunk.rows.values[WRITES]] = True  # PAD indexes the last entry
    return frozenset(compress(names, found.tolist()))


def names_tablet(image: Image, request: Request) -> bool:
    """Return True if the request's tablet exists.

    After a split, merge or drop of its table it does not.
    """
    table = image.schema.tables.get(request.table_id)
    placement = None if table is None else image.ring.placements.get(table.placement)
    if placement is None:
        return False
    # A resize waits for open transitions of its table, so their numbers stay valid.
    under_way = request.request_id in image.topology.transitions
    return under_way or request.tablet_count == len(placement)


def maps_of(image: Image) -> Iterator[tuple[Table, Placement]]:
    """Yield all tablet maps, each with the table that owns it, in the order of the owners' ids."""
    for table in image.schema.map_owners():
        yield table, image.ring.placements[table.placement]


def read_from(image: Image, node_id: str) -> Iterator[tuple[TableData, int, list[int]]]:
    """Yield tables with their number of tablets and the tablets whose reads the node serves.

    Tables that are being dropped are left out.
    """
    for owner, placement in maps_of(image):
        number = placement.nodes.numbers.get(node_id)
        if number is None:
            continue
        its = np.flatnonzero((placement.reads() == number).any(axis=1)).tolist()
        for table in image.schema.group_of(owner):
            data = image.schema.data_of(table)
            if not data.dropped_version:
                yield data, len(placement), its


def held_by(image: Image) -> dict[str, int]:
    """Return the number of replicas that receive writes, by node.

    Nodes that take tablets are included with 0. A tablet that co-located tables share counts once.
    """
    names = image.ring.nodes.names
    held = np.zeros(len(names) + 1, np.int64)
    for _, placement in maps_of(image):
        for chunk in placement.table.chunks:
            held += np.bincount(chunk.rows.values[WRITES].ravel() + 1, minlength=len(held))
    found = dict.fromkeys(image.membership.holding(), 0)
    return found | {n: count for n, count in zip(names, held[1:].tolist(), strict=True) if count}


def tablets_on(image: Image, node_id: str) -> int:
    """Return the number of tablet replicas that a node has, receives, or has not deleted yet."""
    placements = image.ring.placements
    return held_by(image).get(node_id, 0) + sum(
        node_id not in placements[name].row_for(row.end).writes
        for _, name, row in moving(image)
        if node_id in row.old or node_id in row.new
    )


def moving(image: Image) -> Iterator[tuple[Transition, str, TransitionRow]]:
    """Yield each tablet in transition: the transition, the map's name, and the changed row."""
    for transition in image.topology.transitions.values():
        for name, plan in transition.plans.items():
            if name.startswith(TABLET_MAP):
                yield from ((transition, name, row) for row in plan.rows)


# Groups of co-located tables, which share one tablet map (Scylla's co-located tables).
#
# The balancer treats a group as one table, the owner of the map. Its tablets have the bytes and
# rates of all tables together.


def live_tables(image: Image, owner: Table) -> list[Table]:
    """Return the tables of a map that are not being dropped, the owner first."""
    schema = image.schema
    return [t for t in schema.group_of(owner) if not schema.data_of(t).dropped_version]


def combined(options: Sequence[TableOptions]) -> TableOptions:
    """Combine the options of co-located tables (Scylla's rules).

    The largest of the minima counts, the smallest of the maxima, and the mean of the expected sizes
    for each table. Repair options are those of the first table.
    """
    if len(options) == 1:
        return options[0]
    most = [each.max_tablet_count for each in options if each.max_tablet_count]
    sizes = [each.expected_data_size_in_gb for each in options if each.expected_data_size_in_gb]
    return TableOptions(
        min_tablet_count=max(each.min_tablet_count for each in options),
        max_tablet_count=min(most, default=0),
        min_per_shard_tablet_count=max(each.min_per_shard_tablet_count for each in options),
        expected_data_size_in_gb=-(-sum(sizes) * len(options) // max(1, len(sizes))),
        auto_repair_enabled=options[0].auto_repair_enabled,
        auto_repair_threshold=options[0].auto_repair_threshold,
    )


def summed(tables: Sequence[TabletStats]) -> TabletStats:
    """Add up several tables that share a tablet map.

    Unknown sizes and rates of one table count as zero beside the others.
    """
    if len(tables) == 1:
        return tables[0]
    columns = np.stack([each.columns for each in tables])
    known = ~np.isnan(columns)
    counted = np.stack([~np.isnan(each.rates) for each in tables])
    # An uncounted half of a table with a known rate makes the half of the whole group unknown.
    columns[:, LOWER] = np.where(counted, columns[:, LOWER], 0.0)
    known[:, LOWER] = counted
    found = np.full((COLUMNS, columns.shape[2]), np.nan)
    sums = np.where(known, columns, 0.0).sum(axis=0)
    np.copyto(found, sums, where=known.any(axis=0))
    return TabletStats(found, uncounted=int((~counted).any(axis=0).sum()))
