"""Quorums of a range, at rest and in transition (seed 001: read and write quorums must intersect).

A range of ``old`` replicas that is moving to ``new`` ones passes through four rows, (reads/writes):
old/old -> old/union -> new/union -> new/new. At most two adjacent rows are in use at a time, so
whatever was acknowledged by one of them must be met by the read quorums of its neighbours.
"""

from collections.abc import Set
from typing import Final

from stele.domain.ring.ranges import RangeReplicas

MAX_SHRINK: Final = 1
"""Replicas that a range may lose in one operation without successors. One node leaves at a time, so it
is one. With two, a quorum of three old replicas could be the very two that leave."""


def quorum_of(replicas: int) -> int:
    """Majority of so many replicas; 1 of 0, so that a range without replicas never has one."""
    return replicas // 2 + 1


def blocks(nodes: Set[str], replicas: Set[str]) -> bool:
    """True when no quorum of ``replicas`` can be made up without any of ``nodes``.

    That takes a majority of three, and one of two: with as many replicas that refuse a version, nothing can
    be written or read by it; and so many between them hold whatever a quorum has acknowledged.
    """
    return len(replicas - nodes) < quorum_of(len(replicas))


def blocking(replicas: int) -> int:
    """How many of so many replicas it takes to block every quorum of them; 0 of 0."""
    return replicas - quorum_of(replicas) + 1 if replicas else 0


def acks_needed(row: RangeReplicas) -> int:
    """Acknowledgements that a quorum write needs: a quorum of the reads plus one for each pending.

    This is Cassandra's blockFor + pending, ``quorum_of(rf) + len(writes) - rf``. The row does not say
    who the other set of the transition is, only that it lies in ``writes`` and has as many members or
    one more or less. Taking any such set from ``writes`` leaves out ``len(writes) - rf`` nodes (one more
    or less), so this many acks keep a majority in whichever set it is; and in ``reads`` for the same
    reason, which thus needs no count of its own. A quorum of ``reads`` alone is not enough: with
    (a,b,c) -> (c,d,e), a and b would have a write that the readers c, d, e never see.
    """
    return quorum_of(len(row.reads)) + len(row.writes) - len(row.reads)


def write_satisfied(acks: Set[str], row: RangeReplicas) -> bool:
    """True when a quorum write may be acknowledged; answers of nodes that are no replicas do not count.

    Preserves: each read quorum of this row, of the row before and of the row after it holds one of
    ``acks``. Proved by enumeration for rf 1 to 5 in the tests.
    """
    return len(acks & set(row.writes)) >= acks_needed(row)


def read_satisfied(answers: Set[str], row: RangeReplicas) -> bool:
    """True when a quorum of the range's read replicas has answered."""
    return len(answers & set(row.reads)) >= quorum_of(len(row.reads))
