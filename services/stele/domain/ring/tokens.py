"""Tokens: signed 64-bit integers that keys hash to, as Cassandra's Murmur3Partitioner has them."""

from collections.abc import Callable
from typing import Final

from cassandra.cmurmur3 import murmur3

MIN_TOKEN: Final = -(2**63)
"""Lower bound of the ring as a range's start, "infinity" as a range's end; no key hashes to it."""

MAX_TOKEN: Final = 2**63 - 1

RING_SIZE: Final = 2**64
"""Number of positions on the ring."""

_hash: Final[Callable[[bytes], int]] = murmur3


def token_of(key: bytes) -> int:
    """Token of a partition key, in [MIN_TOKEN, MAX_TOKEN], equal to Cassandra's.

    The hash MIN_TOKEN is mapped to MAX_TOKEN, which leaves MIN_TOKEN to the empty key alone; it lies in
    the last range (tn, MIN_TOKEN].
    """
    if not key:
        return MIN_TOKEN
    hashed = _hash(key)
    return MAX_TOKEN if hashed == MIN_TOKEN else hashed


def distance(start: int, end: int) -> int:
    """Positions in (start, end] going up and around the ring, in [1, RING_SIZE]; all when equal."""
    return (end - start) % RING_SIZE or RING_SIZE


def wrapped(position: int) -> int:
    """The token at a position that may have run over either end of the ring."""
    return (position - MIN_TOKEN) % RING_SIZE + MIN_TOKEN
