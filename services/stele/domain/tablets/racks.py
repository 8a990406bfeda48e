"""Racks and the replicas of a tablet: none gets more of them than the fullest one of its dc has."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
