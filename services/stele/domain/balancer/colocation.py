"""Move sibling tablets to the same places, so that they can merge.

A place is a shard of a node. Source: ScyllaDB, topology-over-raft.md, "Tablet merging".
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from stele.domain.balancer.columns import Tablets
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table
from stele.domain.names import RequestStatus
from stele.domain.planner.cluster import NodeRole
from stele.domain.planner.moves import BalanceLimits, RunningStreams
from stele.domain.ring.placement import Placement
from stele.domain.tablets.copies import after_move, goal
from stele.domain.tablets.maps import apart, row_of


class Merge(msgspec.Struct, frozen=True):
    """A table whose merge waits until its siblings are together: full name, request and map.

    In the dcs ``listed`` racks are named, so siblings come together within a rack.
    """

    request: Request
    name: str
    placement: Placement
    listed: frozenset[str] = frozenset()


def merges_of(image: Image) -> list[Merge]:
    """Return all waiting merges, the oldest request first."""
    found = list[Merge]()
    for request in image.requests.pending():
        table = image.schema.tables.get(request.table_id) if request.resizes else None
        if table is not None and table.placement and request.status is RequestStatus.PENDING:
            placement = image.ring.placements[table.placement]
            if request.tablet_count < len(placement):
                name = image.schema.full_name(table)
                found.append(Merge(request, name, placement, listed_dcs(image, table)))
    return found


def listed_dcs(image: Image, table: Table) -> frozenset[str]:
    """Return the dcs in which the table's keyspace lists racks."""
    return frozenset(goal(image, image.schema.by_id[table.keyspace_id]).racks)


def bring_together(
    nodes: Mapping[str, Node], tablets: Tablets, merges: Sequence[Merge], limits: BalanceLimits
) -> list[TabletMove]:
    """Return the moves of one round: one replica of each pair goes to a place of its sibling.

    Pairs that already move are left out. A node with a full disk gives tablets and gets none. Other
    nodes that do not take part neither give nor get. Streams limit the number of moves.
    """
    streams = RunningStreams.of(tablets.state, limits)
    place = {node_id: at for at, node_id in enumerate(tablets.node_ids)}
    found = list[TabletMove]()
    for merge in merges:
        if merge.name not in tablets.names:
            continue  # it is being dropped
        first = tablets.first[tablets.place[merge.name]]
        for pair in apart(merge.placement).tolist():
            # A tablet has one transition at a time.
            if tablets.state.busy[first + 2 * pair : first + 2 * pair + 2].any():
                continue
            # One move for each pair: a second one, planned from the same map, could move its
            # tablets past each other.
            for way in _ways(nodes, merge.placement, merge.listed, pair):
                away, to = place[way.source], place[way.target]
                reads = tablets.state.slot(first + way.tablet, away)
                writes = int(tablets.state.first_shard[to]) + way.shard
                if (
                    tablets.state.state[away] == NodeRole.NORMAL
                    and tablets.state.state[to] == NodeRole.NORMAL
                    and to not in tablets.state.shut
                    and streams.reserve([reads], [writes])
                ):
                    found.append(_move(merge, pair, way))
                    break
    return found


class _Way(NamedTuple):
    """A move of one tablet of a pair to a shard of another node, or of the same one."""

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


def kept_apart(
    nodes: Mapping[str, Node], placement: Placement, listed: Set[str], full: Set[str]
) -> frozenset[str]:
    """Return the full nodes that keep a pair apart: each move of the pair would go to one of them.

    The result is empty if every pair has another move.
    """
    for pair in apart(placement).tolist():
        targets = {way.target for way in _ways(nodes, placement, listed, pair)}
        if targets and targets <= full:
            return frozenset(targets)
    return frozenset()


def _ways(
    nodes: Mapping[str, Node], placement: Placement, listed: Set[str], pair: int
) -> Iterator[_Way]:
    """Yield moves that make the two tablets more alike.

    Moves within a node come first, then those within a rack. At equal distance, those of the odd
    tablet come first. In the dcs ``listed`` no move leaves its rack.
    """
    evens, odds = (row_of(placement, tablet) for tablet in (2 * pair, 2 * pair + 1))
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
    # False sorts first, so moves within a rack come before those to another rack.
    for other_rack, source, target in sorted(ways):
        if other_rack and nodes[target].dc in listed:
            continue
        if after_move(nodes, odd, source, target).allowed:
            yield _Way(2 * pair + 1, source, target, evens.shard_of(target))
        if after_move(nodes, even, target, source).allowed:
            yield _Way(2 * pair, target, source, odds.shard_of(source))
