"""Rack lists: of the racks that are named for a dc each has one replica of a tablet, and no other has any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TypeVar

Rack = TypeVar("Rack", bound=Hashable)
"""A rack's name, or its number."""


def strays(racks: Collection[Rack], of: Sequence[Rack]) -> list[int]:
    """Of replicas in the racks ``of``, the places of those that are beside the list ``racks``: in racks that
    are not named, and where a named one has several.
    """
    held = Counter(of)
    return [at for at, rack in enumerate(of) if rack not in racks or held[rack] > 1]


def vacant(racks: Collection[Rack], of: Iterable[Rack]) -> frozenset[Rack]:
    """The racks of a list that have no replica; ``of`` are the racks of those that there are."""
    return frozenset(racks) - {*of}


def keeps_list(racks: Collection[Rack], of: Sequence[Rack], source: int, target: Rack) -> bool:
    """Whether the replica at place ``source`` may go to a node of the rack ``target``: it stays in its rack, or
    it is beside the list, and goes to a rack that is named and has none.
    """
    return target == of[source] or (target in vacant(racks, of) and source in strays(racks, of))
