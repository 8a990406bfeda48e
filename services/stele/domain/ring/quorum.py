"""Quorums of a range, at rest and in transition (seed 001: read and write quorums must intersect).

A range of ``old`` replicas that is moving to ``new`` ones passes through four rows, (reads/writes):
old/old -> old/union -> new/union -> new/new. At most two adjacent rows are in use at a time, so
whatever was acknowledged by one of them must be met by the read quorums of its neighbours. In the two rows
in the middle a write therefore needs a quorum of ``old`` and a quorum of ``new``. That holds whatever the two
have in common, and however many they are (docs/decisions/015).
"""

from collections.abc import Set

from stele.domain.ring.ranges import RangeReplicas


def quorum_of(replicas: int) -> int:
    """Majority of so many replicas; 1 of 0, so that a range without replicas never has one."""
    return replicas // 2 + 1


def blocks(nodes: Set[str], replicas: Set[str]) -> bool:
    """True when no quorum of ``replicas`` can be made up without any of ``nodes``.

    That takes a majority of three, and one of two: with as many replicas that refuse a version, nothing can
    be written or read by it; and so many between them hold whatever a quorum has acknowledged.
    """
    return len(replicas - nodes) < quorum_of(len(replicas))


def is_covered(replicas: Set[str], nodes: Set[str], excluded: Set[str]) -> bool:
    """True when nothing can be acknowledged by these replicas without any of ``nodes``.

    Where so many replicas are excluded that the others can never answer for them, the operator's word does:
    all who are not excluded are in ``nodes``.
    """
    return not replicas or blocks(nodes, replicas) or replicas - excluded <= nodes


def blocking(replicas: int) -> int:
    """How many of so many replicas it takes to block every quorum of them; 0 of 0."""
    return replicas - quorum_of(replicas) + 1 if replicas else 0


def write_satisfied(acks: Set[str], row: RangeReplicas) -> bool:
    """True when a quorum write may be acknowledged; answers of nodes that are no replicas do not count.

    Preserves: each read quorum of this row, of the row before and of the row after it holds one of
    ``acks``. Proved by enumeration in the tests.
    """
    return read_satisfied(acks, row) and (not row.other or _is_quorum(acks, row.other))


def read_satisfied(answers: Set[str], row: RangeReplicas) -> bool:
    """True when a quorum of the range's read replicas has answered."""
    return _is_quorum(answers, row.reads)


def _is_quorum(answers: Set[str], replicas: tuple[str, ...]) -> bool:
    return sum(node in answers for node in replicas) >= quorum_of(len(replicas))
