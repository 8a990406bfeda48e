"""Ranges of the ring, and rows: the replicas of one range (reference: cassandra_tcm 5.1, 5.2).

Ranges are half-open, (start, end]. From tokens t0 < … < tn come (MIN,t0], (t0,t1], …, (tn,MIN]: no range
wraps, the ring's wrap-around is two rows with equal replicas. A ring without tokens is (MIN,MIN].
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN


class Range(msgspec.Struct, frozen=True, order=True, gc=False):
    """(start, end], in tokens."""

    start: int
    end: int


class RangeReplicas(msgspec.Struct, frozen=True, gc=False):
    """One row of a placement: who serves reads of (start, end] and who receives its writes.

    Order matters: the first replica is the primary. Whoever serves reads also receives writes.
    ``other`` are the replicas on the other side of a move, of which a write needs a quorum as well
    (``ring.quorum``): those after it while reads are as before, those before it while reads have moved;
    none at rest. ``version`` is the topology version that gave the range these replicas,
    ``version_before`` the one that gave it those before: requests are refused by the newer of the two
    that is fenced (design, I3; ``domain.fencing``).

    ``shards`` are the places of ``writes`` within their nodes, one for each; empty: all are 0. Where a replica
    goes from a shard of its node to another, ``other_shards`` are those that receive the writes as well, in
    the same order, as ``other`` has the nodes on the other side; empty: nobody moves so.
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
        """Where in the node the replica is that serves its reads. Raises ValueError for who has none."""
        return self.shards[self.writes.index(node)] if self.shards else 0

    def shards_of(self, node: str) -> tuple[int, ...]:
        """The shards of a node that receive its writes, the one that serves reads first; none, no replica."""
        if node not in self.writes:
            return ()
        first = self.shard_of(node)
        if not self.other_shards:
            return (first,)
        return tuple(dict.fromkeys((first, self.other_shards[self.writes.index(node)])))

    def place(self, node: str) -> str:
        """A node that has a replica, for people, with its shard where that is not 0: n1, n1:2; n1:0+3 while it
        goes from one to another.
        """
        shards = self.shards_of(node)
        return f"{node}:{'+'.join(map(str, shards))}" if any(shards) else node

    def places(self, nodes: Iterable[str]) -> tuple[int, ...]:
        """The shards of these replicas, in their order; none where all are 0."""
        return packed_shards(tuple(map(self.shard_of, nodes))) if self.shards else ()


def packed_shards(shards: tuple[int, ...]) -> tuple[int, ...]:
    """As rows keep them: nothing where all are 0, as in a cluster whose nodes have one shard each."""
    return shards if any(shards) else ()


def upper_bound(end: int) -> int:
    """A range's end as a number that compares: MIN_TOKEN, being infinity, is above all tokens."""
    return MAX_TOKEN + 1 if end == MIN_TOKEN else end


def range_of(row: RangeReplicas) -> Range:
    return Range(row.start, row.end)


def contains(range_: Range, token: int) -> bool:
    """True when the range holds the token; MIN_TOKEN as a token lies in the last range."""
    if token == MIN_TOKEN:
        return range_.end == MIN_TOKEN
    return range_.start < token <= upper_bound(range_.end)


def ranges_of(tokens: Iterable[int]) -> tuple[Range, ...]:
    """The ranges that the tokens cut the ring into, in ring order; at least one."""
    inner = sorted(set(tokens) - {MIN_TOKEN})
    return tuple(Range(start, end) for start, end in pairwise((MIN_TOKEN, *inner, MIN_TOKEN)))


def split_row(row: RangeReplicas, boundaries: Sequence[int]) -> tuple[RangeReplicas, ...]:
    """The row cut at those sorted boundaries that lie inside it; all pieces keep its replicas."""
    low = bisect_right(boundaries, row.start)
    high = bisect_left(boundaries, upper_bound(row.end))
    cuts = pairwise((row.start, *boundaries[low:high], row.end))
    return tuple(msgspec.structs.replace(row, start=start, end=end) for start, end in cuts)
