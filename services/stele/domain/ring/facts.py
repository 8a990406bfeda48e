"""Placements as facts: rows that left and rows that came in; the rest of the ring is untouched."""

from stele.domain.base import Fact
from stele.domain.ring.ranges import Range, RangeReplicas


class PlacementChanged(Fact, frozen=True):
    """``removed`` and ``added`` cover the same tokens; a placement that is not there yet has only ``added``."""

    placement: str
    removed: tuple[Range, ...]
    added: tuple[RangeReplicas, ...]


class PlacementDropped(Fact, frozen=True):
    placement: str


RingFact = PlacementChanged | PlacementDropped
