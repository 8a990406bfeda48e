"""Digests: what two replicas compare of a range before they stream any of it.

A digest is the number of rows, their bytes, and the sum of their hashes modulo 2**128, over keys, timestamps,
tombstones and values. A sum does not depend on the order of the rows, nor on how they came to be there.
"""

import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from stele.agent.spans import Span

HASH_BYTES: Final = 16
MODULUS: Final = 1 << (8 * HASH_BYTES)
MOST_ROWS: Final = 4096
"""More rows are not summed up, but split: 10 ms, in which other scans wait."""
MOST_BYTES: Final = 16 * 1024 * 1024
CALL_ROWS: Final = 16 * MOST_ROWS
CALL_BYTES: Final = 64 * 1024 * 1024
"""An answer ends after so much: far within the time that a call has."""

_HEAD: Final = Struct(">qq?q")
_BOUNDED: Final = """
select count(*), coalesce(sum(size), 0) from (
    select size from cells where keyspace = ? and token > ? and token <= ? limit ?)"""
_ROWS: Final = """
select token, key, timestamp, tombstone, value from cells
where keyspace = ? and token > ? and token <= ?"""


class Digest(NamedTuple):
    """Of the rows of a span; ``sum`` has 16 bytes."""

    keys: int
    size_bytes: int
    sum: bytes


def digest_of(rows: Sequence[tuple[int, bytes, int, bool, bytes]]) -> Digest:
    """Of rows as (token, key, timestamp, tombstone, value)."""
    total = size_bytes = 0
    for token, key, timestamp, tombstone, value in rows:
        head = _HEAD.pack(token, timestamp, bool(tombstone), len(key))
        found = blake2b(head + key + value, digest_size=HASH_BYTES).digest()
        total += int.from_bytes(found, "big")
        size_bytes += len(key) + len(value)
    return Digest(len(rows), size_bytes, (total % MODULUS).to_bytes(HASH_BYTES, "big"))


def digest_in(store: sqlite3.Connection, span: Span) -> Digest | None:
    """None for a span that is to be split: it holds too much. A single row never does."""
    bounds = span.bounds()
    keys, size_bytes = store.execute(_BOUNDED, (*bounds, MOST_ROWS + 1)).fetchone()
    if keys > MOST_ROWS or (size_bytes > MOST_BYTES and keys > 1):
        return None
    return digest_of(store.execute(_ROWS, bounds).fetchall())
