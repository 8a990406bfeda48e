"""The placements at one epoch, and the numbers by which they name nodes."""

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
from immutables import Map

from stele.domain.ring.changes import pieces_of
from stele.domain.ring.columns import Rows
from stele.domain.ring.facts import NodeNumbered, PlacementChanged, RingFact
from stele.domain.ring.numbers import NO_NODES, PAD, NodeNumbers
from stele.domain.ring.packed import packed, packed_ranges
from stele.domain.ring.placement import (
    EMPTY_RING,
    Change,
    Placement,
    change_of,
    ends_of,
)
from stele.domain.ring.ranges import Range
from stele.domain.ring.replicas import OTHER, WRITES, on_nodes
from stele.domain.ring.spans import Ranges, ranges_by_column
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.ring.transition import PlacementDelta

ROWS_PER_FACT: Final = 20_000
"""A larger change is several facts, so that an epoch can go in parts: 1 MiB each at most."""

_WHOLE: Final = ranges_by_column((Range(MIN_TOKEN, MIN_TOKEN),))


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
        return self._facts(name, change_of(delta.removed, delta.added, self.nodes))

    def creation(self, name: str, placement: Placement) -> Iterable[RingFact]:
        """The facts of a placement that is not there yet."""
        rows, nodes = self._numbered(placement)
        return self._facts(name, Change(_WHOLE, rows, ends_of(rows.keys), nodes))

    def replacement(self, name: str, rows: Rows) -> Iterable[RingFact]:
        """The facts by which all rows of a placement go, and these, by the image's numbers, come."""
        starts = self.placements[name].table.all().keys
        removed = Ranges(starts, ends_of(starts))
        return self._facts(name, Change(removed, rows, ends_of(rows.keys), self.nodes))

    def _facts(self, name: str, change: Change) -> Iterable[RingFact]:
        known = len(self.nodes.names)
        for number, node_id in enumerate(change.nodes.names[known:], known):
            yield NodeNumbered(number, node_id)
        for piece in pieces_of(self.placement(name), change, ROWS_PER_FACT):
            added = packed(piece.rows, piece.ends)
            yield PlacementChanged(name, packed_ranges(piece.removed), added)

    def _numbered(self, placement: Placement) -> tuple[Rows, NodeNumbers]:
        """A placement's rows by the image's numbers, and these with those of nodes that had none."""
        rows = placement.table.all()
        lists = rows.values[WRITES : OTHER + 1]
        named = np.unique(np.concatenate([numbers.ravel() for numbers in lists]))
        names = (placement.nodes.names[number] for number in named.tolist() if number != PAD)
        nodes = self.nodes.with_nodes(names)
        columns = on_nodes(rows.values, lambda lists: placement.nodes.translate(lists, nodes))
        return Rows(rows.keys, columns), nodes
