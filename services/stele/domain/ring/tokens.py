"""Tokens: signed 64-bit integers, positions on the ring (``partitioner`` says which is a key's)."""

from typing import Final

MIN_TOKEN: Final = -(2**63)
"""Lower bound of the ring as a range's start, "infinity" as a range's end; no key hashes to it."""

MAX_TOKEN: Final = 2**63 - 1

RING_SIZE: Final = 2**64
"""Number of positions on the ring."""


def distance(start: int, end: int) -> int:
    """Positions in (start, end] going up and around the ring, in [1, RING_SIZE]; all when equal."""
    return (end - start) % RING_SIZE or RING_SIZE


def wrapped(position: int) -> int:
    """The token at a position that may have run over either end of the ring."""
    return (position - MIN_TOKEN) % RING_SIZE + MIN_TOKEN
