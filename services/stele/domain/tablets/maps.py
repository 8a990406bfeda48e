"""Tablet maps: a table's placement, with a row for each tablet."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.ring.numbers import PAD
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.replicas import WRITES
from stele.domain.ring.transition import TransitionRow, newest_before
from stele.domain.schema.facts import TABLET_MAP, Table, TableData
from stele.domain.tablets.ranges import range_of, ranges
from stele.domain.topology.facts import Transition


def row_of(placement: Placement, tablet: int) -> RangeReplicas:
    """The row of a map's tablet. Raises IndexError."""
    return placement.row_for(range_of(len(placement), tablet).end)


def new_map(replicas: Sequence[Sequence[str]]) -> tuple[RangeReplicas, ...]:
    """The rows of a map whose tablets have these replicas."""
    rows = zip(ranges(len(replicas)), map(tuple, replicas), strict=True)
    return tuple(RangeReplicas(at.start, at.end, nodes, nodes) for at, nodes in rows)


def resized(rows: Sequence[RangeReplicas], count: int) -> tuple[RangeReplicas, ...]:
    """The rows of the map with so many tablets instead. Where two become one, both have the same replicas.

    Each range keeps what versions it has been changed by; of two that become one the newer ones, so that
    requests that are older than the last move of either are refused, and made again, by both.
    """
    if count < len(rows):
        return tuple(
            _joined(left, right) for left, right in zip(rows[::2], rows[1::2], strict=True)
        )
    return tuple(
        replace(rows[tablet // 2], start=at.start, end=at.end)
        for tablet, at in enumerate(ranges(count))
    )


def _joined(left: RangeReplicas, right: RangeReplicas) -> RangeReplicas:
    version = max(left.version, right.version)
    before = newest_before((left, right), version)
    return replace(left, end=right.end, version=version, version_before=before)


def apart(placement: Placement) -> npt.NDArray[np.int64]:
    """The pairs of siblings, by number, that are not read from the same nodes: tablets 2n and 2n + 1."""
    reads = np.sort(placement.reads(), axis=1)
    return np.flatnonzero((reads[::2] != reads[1::2]).any(axis=1))


def holders(placement: Placement) -> frozenset[str]:
    """Whoever receives writes of any tablet."""
    names, numbers = placement.nodes.names, set[int]()
    for chunk in placement.table.chunks:
        numbers |= {*np.unique(chunk.rows.values[WRITES]).tolist()}
    return frozenset(names[number] for number in numbers if number != PAD)


def maps_of(image: Image) -> Iterator[tuple[Table, Placement]]:
    """All tables that have tablets, by id, with their maps."""
    for table in image.schema.with_tablets():
        yield table, image.ring.placements[table.placement]


def read_from(image: Image, node_id: str) -> Iterator[tuple[TableData, int, list[int]]]:
    """The tables that stand, by id, how many tablets each has, and which of them a node serves reads of."""
    for table, placement in maps_of(image):
        data, number = image.schema.data_of(table), placement.nodes.numbers.get(node_id)
        if not data.dropped_version and number is not None:
            its = np.flatnonzero((placement.reads() == number).any(axis=1))
            yield data, len(placement), its.tolist()


def held_by(image: Image) -> dict[str, int]:
    """How many replicas of tablets each node that has room for them, or has some, receives writes for."""
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
