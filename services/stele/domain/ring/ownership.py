"""What each node holds of the ring, counted by replicas."""

from collections.abc import Iterable

from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.tokens import distance


def tokens_in(row: RangeReplicas) -> int:
    return distance(row.start, row.end)


def held_tokens(rows: Iterable[RangeReplicas]) -> dict[str, int]:
    """Node -> how many tokens of the ring it serves reads of; RING_SIZE is a replica of everything."""
    held: dict[str, int] = {}
    for row in rows:
        size = tokens_in(row)
        for node in row.reads:
            held[node] = held.get(node, 0) + size
    return held
