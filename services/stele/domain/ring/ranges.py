"""Tokens: signed 64-bit integers, positions on the ring.

``partitioner`` computes the token of a key.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

MIN_TOKEN: Final = -(2**63)
"""Lower bound of the ring as a range's start, "infinity" as a range's end. No key hashes to it."""

MAX_TOKEN: Final = 2**63 - 1

RING_SIZE: Final = 2**64
"""Number of positions on the ring."""


def distance(start: int, end: int) -> int:
    """Return the number of positions in (start, end], up and around the ring.

    It is in [1, RING_SIZE], and RING_SIZE when both are equal.
    """
    return (end - start) % RING_SIZE or RING_SIZE


def wrapped(position: int) -> int:
    """Return the token at a position that may be beyond either end of the ring."""
    return (position - MIN_TOKEN) % RING_SIZE + MIN_TOKEN


# Ranges of the ring, and rows: the replicas of one range.
#
# Ranges are half-open, (start, end]. Tokens t0 < … < tn give (MIN,t0], (t0,t1], …, (tn,MIN]. No
# range wraps: the wrap-around of the ring is two rows with equal replicas. A ring without tokens is
# (MIN,MIN]. Cassandra's counterpart is ``tcm/ownership/ReplicaGroups``.


class Range(msgspec.Struct, frozen=True, order=True, gc=False):
    """(start, end], in tokens."""

    start: int
    end: int


class RangeReplicas(msgspec.Struct, frozen=True, gc=False):
    """One row of a placement: the replicas that serve reads of (start, end], and those that receive
    writes.

    Order matters: the first replica is the primary. A replica that serves reads also receives
    writes. ``other`` are the replicas on the other side of a move; a write needs a quorum of them
    as well (``ring.quorum``). They are the replicas after the move while reads are as before, those
    before it once reads have moved, and none at rest. ``version`` is the topology version that gave
    the range these replicas, ``version_before`` the one that gave it those before. A replica
    refuses requests by the newer of the two that is fenced (docs/design.md, rule 31).

    ``shards`` are the places of ``writes`` within their nodes, one for each; empty means 0 for all.
    ``other_shards`` are the shards on the other side of a move between shards of a node, in the
    same order. Empty means that no replica moves.
    """

    start: int
    end: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    version: int = 0
    version_before: int = 0
    other: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    other_shards: tuple[int, ...] = ()

    def shard_of(self, node: str) -> int:
        """Return the shard of a node's replica that serves its reads.

        Raises ValueError for any other node.
        """
        return self.shards[self.writes.index(node)] if self.shards else 0

    def shards_of(self, node: str) -> tuple[int, ...]:
        """Return the shards of a node that receive its writes, the one that serves reads first.

        Empty if the node has no replica.
        """
        if node not in self.writes:
            return ()
        first = self.shard_of(node)
        if not self.other_shards:
            return (first,)
        return tuple(dict.fromkeys((first, self.other_shards[self.writes.index(node)])))

    def place(self, node: str) -> str:
        """Return a node with a replica, for people, with its shard where that is not 0.

        Examples are n1 and n1:2, or n1:0+3 while the replica moves between shards.
        """
        shards = self.shards_of(node)
        return f"{node}:{'+'.join(map(str, shards))}" if any(shards) else node

    def places(self, nodes: Iterable[str]) -> tuple[int, ...]:
        """Return the shards of these replicas, in their order; empty if all are 0."""
        return packed_shards(tuple(map(self.shard_of, nodes))) if self.shards else ()


def packed_shards(shards: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shards as rows keep them: empty if all are 0.

    That is so in a cluster whose nodes have one shard each.
    """
    return shards if any(shards) else ()


def upper_bound(end: int) -> int:
    """Return a range's end as a number that compares.

    MIN_TOKEN means infinity and is above all tokens.
    """
    return MAX_TOKEN + 1 if end == MIN_TOKEN else end


def range_of(row: RangeReplicas) -> Range:
    return Range(row.start, row.end)


def contains(range_: Range, token: int) -> bool:
    """Return True when the range holds the token. MIN_TOKEN as a token lies in the last range."""
    if token == MIN_TOKEN:
        return range_.end == MIN_TOKEN
    return range_.start < token <= upper_bound(range_.end)


def ranges_of(tokens: Iterable[int]) -> tuple[Range, ...]:
    """Return the ranges that the tokens cut the ring into, in ring order; at least one."""
    inner = sorted(set(tokens) - {MIN_TOKEN})
    return tuple(Range(start, end) for start, end in pairwise((MIN_TOKEN, *inner, MIN_TOKEN)))


def split_row(row: RangeReplicas, boundaries: Sequence[int]) -> tuple[RangeReplicas, ...]:
    """Return the row cut at the sorted boundaries that lie inside it.

    All pieces keep its replicas.
    """
    low = bisect_right(boundaries, row.start)
    high = bisect_left(boundaries, upper_bound(row.end))
    cuts = pairwise((row.start, *boundaries[low:high], row.end))
    return tuple(msgspec.structs.replace(row, start=start, end=end) for start, end in cuts)


# The part of the ring that each node holds, counted by replicas.


def held_tokens(rows: Iterable[RangeReplicas]) -> Counter[str]:
    """Return node -> number of tokens that it serves reads of.

    RING_SIZE is a replica of everything.
    """
    held = Counter[str]()
    for row in rows:
        size = distance(row.start, row.end)
        for node in row.reads:
            held[node] += size
    return held


# An index of the first claim on every token.
#
# Many sets of ranges are compared without comparing pairs.


class FirstClaims:
    """Finds the first of many claims on ranges of one placement that overlaps given ranges.

    Claims are numbers that increase. A token keeps the number of its first claim, so segments never
    overlap and stay sorted. A search costs a bisection and the segments that it overlaps.
    """

    def __init__(self) -> None:
        self._starts = list[int]()
        self._ends = list[int]()
        self._claims = list[int]()

    def first(self, ranges: Iterable[Range]) -> int | None:
        """Return the smallest claim on a token of the ranges; None when no token is claimed."""
        found: int | None = None
        for start, end in _segments(ranges):
            overlapped = self._claims[self._overlapped(start, end)]
            if overlapped:
                smallest = min(overlapped)
                found = smallest if found is None else min(found, smallest)
        return found

    def add(self, ranges: Iterable[Range], claim: int) -> None:
        """Give all tokens of the ranges that have no claim yet to a claim greater than all before
        it.
        """
        for start, end in _segments(ranges):
            there = self._overlapped(start, end)
            free_from, pieces = start, list[tuple[int, int, int]]()
            for at in range(there.start, there.stop):
                if free_from < self._starts[at]:
                    pieces.append((free_from, self._starts[at], claim))
                pieces.append((self._starts[at], self._ends[at], self._claims[at]))
                free_from = self._ends[at]
            if free_from < end:
                pieces.append((free_from, end, claim))
            self._starts[there] = [piece[0] for piece in pieces]
            self._ends[there] = [piece[1] for piece in pieces]
            self._claims[there] = [piece[2] for piece in pieces]

    def _overlapped(self, start: int, end: int) -> slice:
        return slice(bisect_right(self._ends, start), bisect_left(self._starts, end))


def _segments(ranges: Iterable[Range]) -> Iterable[tuple[int, int]]:
    """Return the ranges with bounds that compare. A range includes its end."""
    return ((range_.start, upper_bound(range_.end)) for range_ in ranges)


# Shards: places within a node.
#
# A replica of a tablet has one. Ranges of the ring are on shard 0.


ANY: Final = -1
"""No shard is named."""


def place_text(node_id: str, shard: int, *, within: bool = False) -> str:
    """Return the destination of a replica, for people.

    It is a node, with its shard if that is not 0 or the replica stays ``within`` the node.
    """
    return f"{node_id}:{shard}" if shard > 0 or within else node_id


# One hash for the placements of a cluster, from any copy: an image, a Delta table, a topic.


Placements = Mapping[str, Iterable[RangeReplicas]]
"""Placements by the placement's name, in any order."""

_JSON = msgspec.json.Encoder()


def canonical_placements(placements: Placements) -> bytes:
    """Return JSON that is equal for equal placements.

    Names are sorted, rows ascend, and replicas keep their order.
    """
    # Placements of a table or a topic come in any order.
    ordered = [
        (name, sorted(placements[name], key=lambda row: row.start)) for name in sorted(placements)
    ]
    return _JSON.encode(ordered)


def placement_hash(placements: Placements) -> str:
    """Return SHA-256 of the canonical JSON, as 64 hex digits.

    Equal placements have equal hashes.
    """
    return hashlib.sha256(canonical_placements(placements)).hexdigest()
