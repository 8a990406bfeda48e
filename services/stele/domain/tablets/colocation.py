"""Bringing sibling tablets to the same places, so that they can become one (seed 000, "Tablet merging").

A place is a shard of a node.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.moves import WEIGHT, Limits, fits
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.ring.placement import Placement
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.copies import goal
from stele.domain.tablets.maps import apart, row_of
from stele.domain.tablets.racks import after_move
from stele.domain.topology.operations.commands import TabletMove


class Merge(msgspec.Struct, frozen=True):
    """A table that waits for its siblings to be together: its full name, and the request that asks for it. In
    the dcs ``listed`` racks are named, so siblings come together within a rack.
    """

    request: Request
    name: str
    placement: Placement
    listed: frozenset[str] = frozenset()


def merges_of(image: Image) -> list[Merge]:
    """All of them, the first asked for first."""
    found = list[Merge]()
    for request in image.requests.pending():
        table = image.schema.tables.get(request.table_id) if request.resizes else None
        if table is not None and table.placement and request.status is RequestStatus.PENDING:
            placement = image.ring.placements[table.placement]
            if request.tablet_count < len(placement):
                racks = goal(image, image.schema.by_id[table.keyspace_id]).racks
                name = image.schema.full_name(table)
                found.append(Merge(request, name, placement, frozenset(racks)))
    return found


def bring_together(
    nodes: Mapping[str, Node], what: Tablets, merges: Sequence[Merge], limits: Limits
) -> list[TabletMove]:
    """Moves of one round: of each pair one replica of the odd tablet goes to where the even one has one.

    Not of pairs that move already, nor to or from nodes that give or get nothing; as many as there is room for
    in the streams.
    """
    reading, writing = what.state.reading.copy(), what.state.writing.copy()
    place = {node_id: at for at, node_id in enumerate(what.node_ids)}
    found = list[TabletMove]()
    for merge in merges:
        if merge.name not in what.names:
            continue  # it is being dropped
        first = what.first[what.names.index(merge.name)]
        for pair in apart(merge.placement).tolist():
            if what.state.busy[first + 2 * pair : first + 2 * pair + 2].any():
                continue
            for way in _ways(nodes, merge, pair):
                away, to = place[way.source], place[way.target]
                reads = what.state.slot(first + way.tablet, away)
                writes = int(what.state.first_shard[to]) + way.shard
                if (
                    _takes_part(what, away)
                    and _takes_part(what, to)
                    and fits(reading[reads], limits.reads)
                    and fits(writing[writes], limits.writes)
                ):
                    reading[reads] += WEIGHT
                    writing[writes] += WEIGHT
                    found.append(_move(merge, pair, way))
                    break
    return found


class _Way(NamedTuple):
    """A tablet of a pair goes from a node to another, or the same one, on this shard."""

    tablet: int
    source: str
    target: str
    shard: int


def _move(merge: Merge, pair: int, way: _Way) -> TabletMove:
    return TabletMove(
        table=merge.name,
        tablet=way.tablet,
        of=len(merge.placement),
        from_node=way.source,
        to_node=way.target,
        to_shard=way.shard,
        why=f"tablets {2 * pair} and {2 * pair + 1} are to become one",
    )


def _takes_part(what: Tablets, at: int) -> bool:
    return what.state.state[at] == NodeState.NORMAL and at not in what.state.shut


def _ways(nodes: Mapping[str, Node], merge: Merge, pair: int) -> Iterator[_Way]:
    """Moves that make the two more alike. Those within a node come first, then those within a rack, and those
    of the odd tablet.
    """
    evens, odds = (row_of(merge.placement, tablet) for tablet in (2 * pair, 2 * pair + 1))
    even, odd = evens.reads, odds.reads
    for node_id in odd:
        if node_id in even and evens.shard_of(node_id) != odds.shard_of(node_id):
            yield _Way(2 * pair + 1, node_id, node_id, evens.shard_of(node_id))
    ways = [
        (nodes[source].rack != nodes[target].rack, source, target)
        for source in odd
        for target in even
        if source not in even and target not in odd and nodes[source].dc == nodes[target].dc
    ]
    for other_rack, source, target in sorted(ways):
        if other_rack and nodes[target].dc in merge.listed:
            continue
        if after_move(nodes, odd, source, target).allowed:
            yield _Way(2 * pair + 1, source, target, evens.shard_of(target))
        if after_move(nodes, even, target, source).allowed:
            yield _Way(2 * pair, target, source, odds.shard_of(source))
