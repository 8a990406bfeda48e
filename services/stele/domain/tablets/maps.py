"""Tablet maps: a table's placement, with a row for each tablet."""

from collections.abc import Iterator
from itertools import compress

import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints
from stele.domain.image import Image
from stele.domain.requests.facts import Request
from stele.domain.ring.columns import Keys, Rows
from stele.domain.ring.numbers import PAD, NodeNumbers, Numbers
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.replicas import WRITES, read_shards, reads_of
from stele.domain.ring.shards import MAX_SHARDS
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.ring.transition import TransitionRow
from stele.domain.schema.facts import TABLET_MAP, Table, TableData
from stele.domain.tablets.ranges import TOKEN_BITS, range_of
from stele.domain.topology.facts import Transition


def row_of(placement: Placement, tablet: int) -> RangeReplicas:
    """The row of a map's tablet. Raises IndexError."""
    return placement.row_for(range_of(len(placement), tablet).end)


def starts_of(count: int) -> Keys:
    """Where the tablets of a map of so many begin, as ``ranges`` says it."""
    shift = np.uint64(TOKEN_BITS - count.bit_length() + 1)
    behind = np.arange(count, dtype=np.uint64) << shift
    starts = behind.view(np.int64) + np.int64(MIN_TOKEN) - 1
    starts[0] = MIN_TOKEN
    return starts


def new_map(replicas: Numbers, nodes: NodeNumbers, shards: Numbers | None = None) -> Placement:
    """A map whose tablets have these replicas, on these shards; without them on shard 0."""
    return Placement.at_rest(starts_of(len(replicas)), replicas, nodes, shards)


def resized(placement: Placement, count: int) -> Rows:
    """The rows of the map with so many tablets instead. Where two become one, both have the same replicas, on
    the same shards.

    Each range keeps what versions it has been changed by; of two that become one the newer ones, so that
    requests that are older than the last move of either are refused, and made again, by both.
    """
    rows, starts = placement.table.all(), starts_of(count)
    if count > len(rows):
        return Rows(starts, tuple(np.repeat(column, 2, axis=0) for column in rows.values))
    versions, versions_before, *replicas = rows.values
    newest, before = _versions_of_both(versions, versions_before)
    return Rows(starts, (newest, before, *(column[::2] for column in replicas)))


def _versions_of_both(versions: Ints, versions_before: Ints) -> tuple[Ints, Ints]:
    """Of each two rows the newest version, and the newest of theirs before that; 0 where there is none."""
    newest = np.maximum(versions[::2], versions[1::2])
    known = np.stack((versions[::2], versions[1::2], versions_before[::2], versions_before[1::2]))
    return newest, np.where(known < newest, known, 0).max(axis=0)


def apart(placement: Placement) -> npt.NDArray[np.int64]:
    """The pairs of siblings, by number, that are not read from the same shards of the same nodes: tablets 2n
    and 2n + 1.
    """
    rows = placement.table.all()
    reads = reads_of(rows)
    places = reads.astype(np.int64) * MAX_SHARDS + read_shards(rows, reads)
    places.sort(axis=1)
    return np.flatnonzero((places[::2] != places[1::2]).any(axis=1))


def of_excluded(image: Image, placement: str) -> npt.NDArray[np.bool_]:
    """Of the replicas that reads of each tablet go to, of shape (tablets, replicas), which are excluded."""
    found, excluded = image.ring.placements[placement], image.membership.excluded()
    numbers = [found.nodes.numbers[n] for n in excluded if n in found.nodes.numbers]
    which: npt.NDArray[np.bool_] = np.isin(found.reads(), numbers)
    return which


def of_dead_alone(image: Image, placement: str) -> npt.NDArray[np.bool_]:
    """Of each tablet whether all who have it are excluded."""
    reads = image.ring.placements[placement].reads()
    alone: npt.NDArray[np.bool_] = (of_excluded(image, placement) | (reads == PAD)).all(axis=1)
    return alone


def holders(placement: Placement) -> frozenset[str]:
    """Whoever receives writes of any tablet."""
    names = placement.nodes.names
    found = np.zeros(len(names) + 1, np.bool_)
    for chunk in placement.table.chunks:
        found[chunk.rows.values[WRITES]] = True  # that of PAD is the last one
    return frozenset(compress(names, found.tolist()))


def names_tablet(image: Image, request: Request) -> bool:
    """Whether the tablet that a request is about is one: not once its table was split or merged, or dropped."""
    table = image.schema.tables.get(request.table_id)
    placement = None if table is None else image.ring.placements.get(table.placement)
    if placement is None:
        return False
    under_way = request.request_id in image.topology.transitions
    return under_way or request.tablet_count == len(placement)


def maps_of(image: Image) -> Iterator[tuple[Table, Placement]]:
    """All tablet maps, each with the table that owns it, by that one's id."""
    for table in image.schema.map_owners():
        yield table, image.ring.placements[table.placement]


def read_from(image: Image, node_id: str) -> Iterator[tuple[TableData, int, list[int]]]:
    """The tables that stand, how many tablets each has, and which of them a node serves reads of."""
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
    """How many replicas of tablets each node that has room for them, or has some, receives writes for; a tablet
    that co-located tables share counts once.
    """
    names = image.ring.nodes.names
    held = np.zeros(len(names) + 1, np.int64)
    for _, placement in maps_of(image):
        for chunk in placement.table.chunks:
            held += np.bincount(chunk.rows.values[WRITES].ravel() + 1, minlength=len(held))
    found = dict.fromkeys(image.membership.holding(), 0)
    return found | {n: count for n, count in zip(names, held[1:].tolist(), strict=True) if count}


def tablets_on(image: Image, node_id: str) -> int:
    """Replicas of tablets that a node has, gets, or has not deleted yet."""
    placements = image.ring.placements
    return held_by(image).get(node_id, 0) + sum(
        node_id not in placements[name].row_for(row.end).writes
        for _, name, row in moving(image)
        if node_id in row.old or node_id in row.new
    )


def moving(image: Image) -> Iterator[tuple[Transition, str, TransitionRow]]:
    """Each tablet that has a transition: that, the name of its map, and its replicas before and after."""
    for transition in image.topology.transitions.values():
        for name, plan in transition.plans.items():
            if name.startswith(TABLET_MAP):
                yield from ((transition, name, row) for row in plan.rows)
