"""The placements at one epoch."""

import msgspec
from immutables import Map

from stele.domain.ring.ranges import Placement


class RingImage(msgspec.Struct, frozen=True):
    """Placements by name; see ``schema.facts.placement_name``."""

    placements: Map[str, Placement] = Map()
