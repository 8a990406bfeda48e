"""The hash from a key to a token, as in Cassandra's Murmur3Partitioner."""

from collections.abc import Callable
from typing import Final

from cassandra.cmurmur3 import murmur3

from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN

_hash: Final[Callable[[bytes], int]] = murmur3


def token_of(key: bytes) -> int:
    """Return the token of a partition key, in [MIN_TOKEN, MAX_TOKEN], equal to Cassandra's.

    The hash MIN_TOKEN is mapped to MAX_TOKEN. Only the empty key has MIN_TOKEN, which lies in the
    last range (tn, MIN_TOKEN].
    """
    if not key:
        return MIN_TOKEN
    hashed = _hash(key)
    return MAX_TOKEN if hashed == MIN_TOKEN else hashed
