"""Quorums of a range, at rest and in transition (docs/design.md, rule 35 and I4).

Source: CEP-21, "Consistency Guarantees".

A range that moves from ``old`` replicas to ``new`` ones passes through four rows (reads/writes):
old/old -> old/union -> new/union -> new/new. At most two adjacent rows are in use at a time. The
read quorums of a row must therefore meet every write that a neighbouring row acknowledged. In the
two middle rows a write needs a quorum of ``old`` and a quorum of ``new``. This holds for any two
sets of replicas, of any sizes (docs/decisions/015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Final

import msgspec

from stele.domain.names import BarrierLevel
from stele.domain.ring.ranges import RangeReplicas


def quorum_of(replicas: int) -> int:
    """Return the majority of so many replicas.

    It is 1 for 0, so that a range without replicas never has a quorum.
    """
    return replicas // 2 + 1


def blocks(nodes: Set[str], replicas: Set[str]) -> bool:
    """Return True when every quorum of ``replicas`` includes one of ``nodes``.

    That takes a majority of three, and one of two. If these nodes refuse a version, nothing can be
    read or written with it. Between them they hold every write that a quorum has acknowledged.
    """
    return len(replicas - nodes) < quorum_of(len(replicas))


def is_covered(replicas: Set[str], nodes: Set[str], excluded: Set[str]) -> bool:
    """Return True when these replicas can acknowledge nothing without one of ``nodes``.

    If too many replicas are excluded for the others to answer for them, the operator's word counts.
    Then all replicas that are not excluded must be in ``nodes``.
    """
    # A range without replicas acknowledges nothing, so it needs no answers.
    return not replicas or blocks(nodes, replicas) or replicas - excluded <= nodes


def blocking(replicas: int) -> int:
    """Return how many of so many replicas block every quorum of them; 0 for 0."""
    return replicas - quorum_of(replicas) + 1 if replicas else 0


def write_satisfied(acks: Set[str], row: RangeReplicas) -> bool:
    """Return True when a quorum write may be acknowledged.

    Answers of nodes that are no replicas do not count.

    Invariant: each read quorum of this row, of the row before and of the row after it holds one of
    ``acks``. The tests prove it by enumeration.
    """
    return read_satisfied(acks, row) and (not row.other or _is_quorum(acks, row.other))


def read_satisfied(answers: Set[str], row: RangeReplicas) -> bool:
    """Return True when a quorum of the range's read replicas has answered."""
    return _is_quorum(answers, row.reads)


def _is_quorum(answers: Set[str], replicas: tuple[str, ...]) -> bool:
    return sum(node in answers for node in replicas) >= quorum_of(len(replicas))


# The levels of a barrier: which replicas of one set still have to answer (docs/design.md, rule 26).
#
# As in Cassandra's ``ProgressBarrier``, the sets are the replicas before, after, and both together.
# A quorum of a set is as many answers as block every quorum of the others: two of three, one of two
# (docs/decisions/013). The differences from Cassandra and their reasons are in docs/decisions/018.


LEVELS: Final = tuple(BarrierLevel)
"""The levels, highest first. Answers that satisfy one level satisfy all that follow."""


class LevelFacts(msgspec.Struct, frozen=True):
    """The facts about nodes that a level needs.

    ``dc_of`` is the dc by node id. ``excluded`` are the excluded nodes. ``local_dcs`` are the dcs
    of the nodes that the operation is about, for LOCAL_QUORUM.
    """

    dc_of: Mapping[str, str]
    excluded: Set[str] = frozenset()
    local_dcs: Set[str] = frozenset()

    def by_dc(self, replicas: Set[str]) -> dict[str, frozenset[str]]:
        """Return the replicas of each dc."""
        dcs = {self.dc_of[node_id] for node_id in replicas}
        if len(dcs) == 1:
            return {dc: frozenset(replicas) for dc in dcs}
        return {dc: frozenset(n for n in replicas if self.dc_of[n] == dc) for dc in dcs}


def lacking(
    level: BarrierLevel, replicas: Set[str], answered: Set[str], where: LevelFacts
) -> frozenset[str]:
    """Return the replicas whose answers the level still needs; empty when it is satisfied."""
    if replicas <= answered:
        return frozenset()
    return _LACKING[level](replicas, answered, where)


def is_unsafe(level: BarrierLevel) -> bool:
    """Return True below QUORUM.

    A quorum without the barrier's version could then acknowledge a write.
    """
    return rank(level) > rank(BarrierLevel.QUORUM)


def rank(level: BarrierLevel) -> int:
    """Return the position of a level; 0 is the highest."""
    return LEVELS.index(level)


def _all(replicas: Set[str], answered: Set[str], where: LevelFacts) -> frozenset[str]:
    return frozenset(replicas - answered - where.excluded)


def _each_quorum(replicas: Set[str], answered: Set[str], where: LevelFacts) -> frozenset[str]:
    """Require a quorum of each dc and of all replicas.

    If a whole dc is excluded, the operator vouches for that dc alone, so the quorum of all is
    needed too.
    """
    groups = where.by_dc(replicas)
    if len(groups) == 1:
        return _quorum(replicas, answered, where)
    each = (_quorum(group, answered, where) for group in groups.values())
    return _quorum(replicas, answered, where).union(*each)


def _quorum(replicas: Set[str], answered: Set[str], where: LevelFacts) -> frozenset[str]:
    covered = is_covered(replicas, answered, where.excluded)
    return frozenset() if covered else _all(replicas, answered, where)


def _local_quorum(replicas: Set[str], answered: Set[str], where: LevelFacts) -> frozenset[str]:
    """Require a quorum of each local dc that has replicas which can answer.

    If no local dc has any, a quorum of all is required. A quorum of all is always enough.
    """
    groups = where.by_dc(replicas)
    local = [g for dc, g in groups.items() if dc in where.local_dcs and g - where.excluded]
    of_all = _quorum(replicas, answered, where)
    if not of_all or not local:
        return of_all
    return frozenset[str]().union(*(_quorum(group, answered, where) for group in local))


def _one(replicas: Set[str], answered: Set[str], where: LevelFacts) -> frozenset[str]:
    return frozenset() if replicas & answered else _all(replicas, answered, where)


def _node_local(replicas: Set[str], answered: Set[str], where: LevelFacts) -> frozenset[str]:
    return frozenset()


_LACKING: Final[
    Mapping[BarrierLevel, Callable[[Set[str], Set[str], LevelFacts], frozenset[str]]]
] = {
    BarrierLevel.ALL: _all,
    BarrierLevel.EACH_QUORUM: _each_quorum,
    BarrierLevel.QUORUM: _quorum,
    BarrierLevel.LOCAL_QUORUM: _local_quorum,
    BarrierLevel.ONE: _one,
    BarrierLevel.NODE_LOCAL: _node_local,
}
