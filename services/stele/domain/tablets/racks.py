"""The racks of a tablet's replicas.

If a keyspace lists the racks of a dc, each of them has one replica. Otherwise no rack gets more
than the fullest rack of its dc has.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stele.domain.image import Image
from stele.domain.membership.model import Node


class InRack(NamedTuple):
    """The replicas in the target's rack after a move, and those in the dc's fullest rack now."""

    would_have: int
    fullest: int

    @property
    def allowed(self) -> bool:
        return self.would_have <= self.fullest


def after_move(
    nodes: Mapping[str, Node], replicas: Sequence[str], source: str, target: str
) -> InRack:
    """Return the numbers for a move from one of the replicas to another node of its dc."""
    dc = nodes[target].dc
    racks = Counter(nodes[node_id].rack for node_id in replicas if nodes[node_id].dc == dc)
    fullest = max(racks.values())
    racks[nodes[source].rack] -= 1
    return InRack(racks[nodes[target].rack] + 1, fullest)


def emptiest_racks(image: Image, replicas: Sequence[str], dc: str) -> frozenset[str]:
    """Return the racks of a dc with the fewest of these replicas; a new one goes there.

    Only racks with another member that stays and has tokens count, even if that member is down.
    """
    nodes = image.membership.nodes
    held = Counter(nodes[node_id].rack for node_id in replicas if nodes[node_id].dc == dc)
    return fewest(held, {node.rack for node in room(image, dc) if node.node_id not in replicas})


def fewest(held: Mapping[str, int], racks: Iterable[str]) -> frozenset[str]:
    """Return the racks that have fewest."""
    counts = {rack: held.get(rack, 0) for rack in racks}
    least = min(counts.values(), default=0)
    return frozenset(rack for rack, count in counts.items() if count == least)


def room(image: Image, dc: str) -> list[Node]:
    """Return the members of a dc that take tablets, even if they are down."""
    going, holding = image.requests.going(), image.membership.holding()
    return [node for n, node in holding.items() if node.dc == dc and n not in going]
