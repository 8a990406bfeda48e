"""Placements as facts: rows that left and rows that came in; the rest of the ring is untouched."""

from stele.domain.base import Fact
from stele.domain.ring.packed import PackedRanges, PackedRows


class NodeNumbered(Fact, frozen=True):
    """Rows name a node by a small number, dense from 0, that nobody else ever gets."""

    number: int
    node_id: str


class PlacementChanged(Fact, frozen=True):
    """``removed`` and ``added`` cover the same tokens. A placement that is not there yet is a ring without
    tokens.
    """

    placement: str
    removed: PackedRanges
    added: PackedRows


class PlacementDropped(Fact, frozen=True):
    placement: str


RingFact = NodeNumbered | PlacementChanged | PlacementDropped
