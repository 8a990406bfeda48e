"""What differs between two placements, at the cost of what differs: shared chunks are not looked at."""

from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range, RangeReplicas

Rows = tuple[RangeReplicas, ...]


def differences(before: Placement | None, after: Placement | None) -> tuple[Rows, Rows]:
    """The rows that went and those that came, in ring order; None is a placement that is not there.

    Both must be of one history, in which a node keeps its number.
    """
    old, new = _rows_apart(before, after), _rows_apart(after, before)
    were, are = set(old), set(new)
    return (
        tuple(row for row in old if row not in are),
        tuple(row for row in new if row not in were),
    )


def _rows_apart(placement: Placement | None, other: Placement | None) -> Rows:
    """The rows in chunks that the other one does not share. Where a shared chunk ends, the next row begins
    in both: what changes covers the same tokens before and after.
    """
    if placement is None:
        return ()
    shared = frozenset[int]() if other is None else frozenset(map(id, other.table.chunks))
    return tuple(
        row
        for at, chunk in enumerate(placement.table.chunks)
        if id(chunk) not in shared
        for row in placement.overlapping(
            Range(chunk.keys[0], placement.end_of(at, len(chunk.keys) - 1))
        )
    )
