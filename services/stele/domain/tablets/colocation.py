"""Bringing sibling tablets to the same nodes, so that they can become one (seed 000, "Tablet merging")."""

from collections.abc import Iterator, Mapping, Sequence

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
            for tablet, source, target in _ways(nodes, merge, pair):
                away, to = place[source], place[target]
                if (
                    _takes_part(what, away)
                    and _takes_part(what, to)
                    and fits(reading[away], limits.reads)
                    and fits(writing[to], limits.writes)
                ):
                    reading[away] += WEIGHT
                    writing[to] += WEIGHT
                    found.append(_move(merge, pair, tablet, source, target))
                    break
    return found


def _move(merge: Merge, pair: int, tablet: int, source: str, target: str) -> TabletMove:
    return TabletMove(
        table=merge.name,
        tablet=tablet,
        of=len(merge.placement),
        from_node=source,
        to_node=target,
        why=f"tablets {2 * pair} and {2 * pair + 1} are to become one",
    )


def _takes_part(what: Tablets, at: int) -> bool:
    return what.state.state[at] == NodeState.NORMAL and at not in what.state.shut


def _ways(nodes: Mapping[str, Node], merge: Merge, pair: int) -> Iterator[tuple[int, str, str]]:
    """Moves that make the two more alike: a tablet, from whom and to whom. Those within a rack come first, and
    those of the odd tablet.
    """
    even, odd = (row_of(merge.placement, tablet).reads for tablet in (2 * pair, 2 * pair + 1))
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
            yield 2 * pair + 1, source, target
        if after_move(nodes, even, target, source).allowed:
            yield 2 * pair, target, source
