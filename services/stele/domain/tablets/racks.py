"""Racks and the replicas of a tablet.

Where a keyspace lists the racks of a dc each has one. Else none gets more than the fullest one of its dc has.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stele.domain.image import Image
from stele.domain.membership.facts import Node


class InRack(NamedTuple):
    """Replicas that the rack of a move's target would have, and those that the fullest of its dc has now."""

    would_have: int
    fullest: int

    @property
    def allowed(self) -> bool:
        return self.would_have <= self.fullest


def after_move(
    nodes: Mapping[str, Node], replicas: Sequence[str], source: str, target: str
) -> InRack:
    """Of a move from one of the replicas to another node of its dc."""
    dc = nodes[target].dc
    racks = Counter(nodes[node_id].rack for node_id in replicas if nodes[node_id].dc == dc)
    fullest = max(racks.values())
    racks[nodes[source].rack] -= 1
    return InRack(racks[nodes[target].rack] + 1, fullest)


def emptiest_racks(image: Image, replicas: Sequence[str], dc: str) -> frozenset[str]:
    """The racks of a dc that have the fewest of these replicas, of those with another member that stays and has
    tokens, be it down: one more goes there.
    """
    nodes = image.membership.nodes
    held = Counter(nodes[node_id].rack for node_id in replicas if nodes[node_id].dc == dc)
    return fewest(held, {node.rack for node in room(image, dc) if node.node_id not in replicas})


def fewest(held: Mapping[str, int], racks: Iterable[str]) -> frozenset[str]:
    """Of the racks those that have fewest."""
    counts = {rack: held.get(rack, 0) for rack in racks}
    least = min(counts.values(), default=0)
    return frozenset(rack for rack, count in counts.items() if count == least)


def room(image: Image, dc: str) -> list[Node]:
    """The members of a dc that take tablets, be they down."""
    going, holding = image.requests.going(), image.membership.holding()
    return [node for n, node in holding.items() if node.dc == dc and n not in going]
