"""The levels of a barrier: whose answers each asks for, of one replica set (seed 001, progress barriers).

As in Cassandra a quorum of a set is one of its replicas before, after, or both. It needs as many answers as
block every quorum of the others (docs/decisions/013): a majority of three, one of two. Where that differs from
the reference, and why, says docs/decisions/018.
"""

from collections.abc import Callable, Mapping, Set
from typing import Final

import msgspec

from stele.domain.names import BarrierLevel
from stele.domain.ring.quorum import is_covered

LEVELS: Final = tuple(BarrierLevel)
"""The highest first. What satisfies one satisfies all that follow."""


class Where(msgspec.Struct, frozen=True):
    """What a level needs to know of nodes: their dcs by node id, who is excluded, and the dcs of the nodes that
    the operation is about, for LOCAL_QUORUM.
    """

    dc_of: Mapping[str, str]
    excluded: Set[str] = frozenset()
    local_dcs: Set[str] = frozenset()

    def by_dc(self, replicas: Set[str]) -> dict[str, frozenset[str]]:
        """The replicas of each dc."""
        dcs = {self.dc_of[node_id] for node_id in replicas}
        if len(dcs) == 1:
            return {dc: frozenset(replicas) for dc in dcs}
        return {dc: frozenset(n for n in replicas if self.dc_of[n] == dc) for dc in dcs}


def lacking(
    level: BarrierLevel, replicas: Set[str], answered: Set[str], where: Where
) -> frozenset[str]:
    """The replicas whose answers a level still asks for, of these; empty when it is satisfied."""
    if replicas <= answered:
        return frozenset()
    return _LACKING[level](replicas, answered, where)


def is_unsafe(level: BarrierLevel) -> bool:
    """Below QUORUM a barrier can be passed while a quorum that knows nothing of it acknowledges a write."""
    return rank(level) > rank(BarrierLevel.QUORUM)


def rank(level: BarrierLevel) -> int:
    """0 is the highest."""
    return LEVELS.index(level)


def _all(replicas: Set[str], answered: Set[str], where: Where) -> frozenset[str]:
    return frozenset(replicas - answered - where.excluded)


def _each_quorum(replicas: Set[str], answered: Set[str], where: Where) -> frozenset[str]:
    """A quorum of each dc, and of all: where a whole dc is excluded, the operator's word is for it alone."""
    groups = where.by_dc(replicas)
    if len(groups) == 1:
        return _quorum(replicas, answered, where)
    each = (_quorum(group, answered, where) for group in groups.values())
    return _quorum(replicas, answered, where).union(*each)


def _quorum(replicas: Set[str], answered: Set[str], where: Where) -> frozenset[str]:
    covered = is_covered(replicas, answered, where.excluded)
    return frozenset() if covered else _all(replicas, answered, where)


def _local_quorum(replicas: Set[str], answered: Set[str], where: Where) -> frozenset[str]:
    """A quorum of each local dc that has replicas here that can answer; of all where none has. A quorum of all
    is enough in any case.
    """
    groups = where.by_dc(replicas)
    local = [g for dc, g in groups.items() if dc in where.local_dcs and g - where.excluded]
    of_all = _quorum(replicas, answered, where)
    if not of_all or not local:
        return of_all
    return frozenset[str]().union(*(_quorum(group, answered, where) for group in local))


def _one(replicas: Set[str], answered: Set[str], where: Where) -> frozenset[str]:
    return frozenset() if replicas & answered else _all(replicas, answered, where)


def _node_local(replicas: Set[str], answered: Set[str], where: Where) -> frozenset[str]:
    return frozenset()


_LACKING: Final[Mapping[BarrierLevel, Callable[[Set[str], Set[str], Where], frozenset[str]]]] = {
    BarrierLevel.ALL: _all,
    BarrierLevel.EACH_QUORUM: _each_quorum,
    BarrierLevel.QUORUM: _quorum,
    BarrierLevel.LOCAL_QUORUM: _local_quorum,
    BarrierLevel.ONE: _one,
    BarrierLevel.NODE_LOCAL: _node_local,
}
