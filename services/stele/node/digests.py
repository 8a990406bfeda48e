"""Digests that two replicas compare before they stream a range.

A digest is the number of rows, their bytes, and the sum of their hashes modulo 2**128. Hashes cover
tokens, keys, timestamps, kinds and values. The sum depends neither on the order of the rows
nor on their history.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from stele.agent.stores import Span

HASH_BYTES: Final = 16
MODULUS: Final = 1 << (8 * HASH_BYTES)
MOST_ROWS: Final = 4096
"""Most rows of one digest. More are split: this many take 10 ms, and other scans wait."""
MOST_BYTES: Final = 16 * 1024 * 1024
CALL_ROWS: Final = 16 * MOST_ROWS
CALL_BYTES: Final = 64 * 1024 * 1024
"""A reply ends after this many bytes of rows, well within the time limit of a call."""

_HEAD: Final = Struct(">qqBq")
_BOUNDED: Final = """
select count(*), coalesce(sum(size), 0) from (
    select size from cells where keyspace = ? and token > ? and token <= ? limit ?)"""
_ROWS: Final = """
select token, key, timestamp, tombstone, value from cells
where keyspace = ? and token > ? and token <= ?"""


class Digest(NamedTuple):
    """The digest of a span's rows. ``sum`` has 16 bytes."""

    keys: int
    size_bytes: int
    sum: bytes


def digest_of(rows: Sequence[tuple[int, bytes, int, int, bytes]]) -> Digest:
    """Return the digest of rows (token, key, timestamp, kind, value)."""
    total = size_bytes = 0
    for token, key, timestamp, kind, value in rows:
        head = _HEAD.pack(token, timestamp, kind, len(key))
        found = blake2b(head + key + value, digest_size=HASH_BYTES).digest()
        total += int.from_bytes(found, "big")
        size_bytes += len(key) + len(value)
    return Digest(len(rows), size_bytes, (total % MODULUS).to_bytes(HASH_BYTES, "big"))


def digest_in(store: sqlite3.Connection, span: Span) -> Digest | None:
    """Return the digest of a span, or None if it has too much data and must be split.

    A single row always has a digest.
    """
    bounds = span.bounds()
    keys, size_bytes = store.execute(_BOUNDED, (*bounds, MOST_ROWS + 1)).fetchone()
    if keys > MOST_ROWS or (size_bytes > MOST_BYTES and keys > 1):
        return None
    return digest_of(store.execute(_ROWS, bounds).fetchall())


# Finds the rows of a range that a node lacks, by comparing digests with another replica.
#
# A span with equal digests is skipped. A differing span is split further, down to a few rows, and
# these are pulled. The data moved is therefore proportional to the differences, not to the total.


FANOUT: Final = 16
LEAF_ROWS: Final = 16
"""A span of at most this many rows is pulled: another call would cost more than the rows."""
CALL_SPANS: Final = 64
BATCH_SPANS: Final = 256
"""Spans that are pulled together: 16 KiB of each request."""

Digests = list[Digest | None]


class NextStep(Enum):
    """The next step for a span."""

    NOTHING = "nothing"
    SPLIT = "split"
    PULL = "pull"


def judged(span: Span, mine: Digest | None, theirs: Digest | None) -> NextStep:
    """Return the next step for a span. A digest of None means too many rows for one digest.

    Rows that the other replica lacks cannot be pulled, so they are ignored.
    """
    if theirs is not None and (theirs == mine or not theirs.keys):
        return NextStep.NOTHING
    if mine is not None and not mine.keys:
        return NextStep.PULL
    many = mine is None or theirs is None or max(mine.keys, theirs.keys) > LEAF_ROWS
    _, start, end = span.bounds()
    return NextStep.SPLIT if many and end - start > 1 else NextStep.PULL


class SourceGone(Exception):
    """The other replica returned no digests."""


async def differing(
    spans: Sequence[Span],
    mine: Callable[[Sequence[Span]], Awaitable[Digests]],
    theirs: Callable[[Sequence[Span]], Awaitable[Digests | None]],
    on_equal: Callable[[Digest], None],
) -> AsyncIterator[list[Span]]:
    """Yield batches of spans to pull.

    Both sides may answer for only the first of the spans in a call. The rest is requested again.
    Raises SourceGone.
    """
    waiting, found = deque(spans), list[Span]()
    while waiting:
        asked = [waiting.popleft() for _ in range(min(CALL_SPANS, len(waiting)))]
        ours, others = await asyncio.gather(mine(asked), theirs(asked))
        if not others:
            raise SourceGone
        answered = min(len(ours), len(others))
        # Back to the front, in order: pulled batches stay in the order of the ring.
        waiting.extendleft(reversed(asked[answered:]))
        for span, one, other in zip(asked, ours, others, strict=False):
            verdict = judged(span, one, other)
            if verdict is NextStep.SPLIT:
                waiting.extendleft(reversed(span.split(FANOUT)))
            elif verdict is NextStep.PULL:
                found.append(span)
            elif other is not None:
                on_equal(other)
        if len(found) >= BATCH_SPANS:
            yield found
            found = []
    if found:
        yield found
