"""Rack lists: each listed rack of a dc has one replica of a tablet, and no other rack has any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TypeVar

Rack = TypeVar("Rack", bound=Hashable)
"""A rack's name, or its number."""


def strays(racks: Collection[Rack], of: Sequence[Rack]) -> list[int]:
    """Return the positions of replicas outside the list ``racks``; ``of`` are the replicas' racks.

    They are in racks that are not listed, or in a listed rack that has several.
    """
    held = Counter(of)
    return [at for at, rack in enumerate(of) if rack not in racks or held[rack] > 1]


def vacant(racks: Collection[Rack], of: Iterable[Rack]) -> frozenset[Rack]:
    """Return the listed racks without a replica; ``of`` are the replicas' racks."""
    return frozenset(racks) - {*of}


def keeps_list(racks: Collection[Rack], of: Sequence[Rack], source: int, target: Rack) -> bool:
    """Return True if the replica at position ``source`` may move to a node of the rack ``target``.

    It stays in its rack, or it is outside the list and goes to a listed rack that has none.
    """
    return target == of[source] or (target in vacant(racks, of) and source in strays(racks, of))
