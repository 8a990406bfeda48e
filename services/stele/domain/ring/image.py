"""The placements at one epoch, and the numbers by which they name nodes."""

from collections.abc import Iterable
from typing import Final

import msgspec
from immutables import Map

from stele.domain.ring.changes import nodes_to_number, packed, pieces_of
from stele.domain.ring.facts import NodeNumbered, PlacementChanged, RingFact
from stele.domain.ring.numbers import NO_NODES, NodeNumbers
from stele.domain.ring.placement import EMPTY_RING, Placement
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.ring.transition import PlacementDelta

ROWS_PER_FACT: Final = 20_000
"""A larger change is several facts, so that an epoch can go in parts: about 1 MiB each."""


class RingImage(msgspec.Struct, frozen=True):
    """Placements by name; see ``schema.facts.placement_name``."""

    placements: Map[str, Placement] = Map()
    nodes: NodeNumbers = NO_NODES

    def placement(self, name: str) -> Placement:
        """The placement as it stands; one that is not there yet is a ring without tokens."""
        return Placement(self.placements.get(name, EMPTY_RING).table, self.nodes)

    def change(self, name: str, delta: PlacementDelta) -> Iterable[RingFact]:
        """The facts of a change: numbers of nodes that have none yet, then the rows, in pieces that fit a
        fact.
        """
        nodes = self.nodes
        for number, node_id in nodes_to_number(delta.added, nodes):
            nodes = nodes.with_node(number, node_id)
            yield NodeNumbered(number, node_id)
        for piece in pieces_of(self.placement(name), delta, ROWS_PER_FACT):
            yield PlacementChanged(name, piece.removed, packed(piece.added, nodes))

    def creation(self, name: str, rows: tuple[RangeReplicas, ...]) -> Iterable[RingFact]:
        """The facts of a placement that is not there yet."""
        return self.change(name, PlacementDelta((Range(MIN_TOKEN, MIN_TOKEN),), rows))
