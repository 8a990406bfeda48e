"""Planned moves, and the limits of concurrent streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from stele.domain.planner.cluster import NodeRole
from stele.domain.planner.planned import Kind
from stele.domain.planner.shares import Ints, Reals
from stele.domain.planner.state import BalanceColumns

WEIGHT: Final = 1
"""Weight of a move, a move between shards or a rebuild in a shard's concurrent streams."""

REPAIR_WEIGHT: Final = 2
"""Weight of a repair in the streams that each replica reads and writes."""


class BalanceLimits(NamedTuple):
    """Limits of one round; weights are per shard."""

    reads: int = 2
    writes: int = 2
    batch: int = 1
    """New replicas for a node from others, per shard of the node."""
    skipped: int = 2
    """Moves without room in the streams, per shard of the target. At this number it gets no more in
    this round.
    """
    nodes_within: int = 128
    """Nodes whose shards are balanced, those with the fewest streams first. A round of 1,000 nodes
    stays short.
    """


DEFAULT_LIMITS: Final = BalanceLimits()


@dataclass(frozen=True, slots=True)
class RunningStreams:
    """The weights of concurrent streams by shard of the cluster, and their limits."""

    reading: Ints
    writing: Ints
    limits: BalanceLimits

    @classmethod
    def of(cls, state: BalanceColumns, limits: BalanceLimits) -> Self:
        """Return the streams under way as a copy: what is reserved leaves ``state`` unchanged."""
        return cls(state.reading.copy(), state.writing.copy(), limits)

    def reserve(self, sources: Sequence[int], targets: Sequence[int], weight: int = WEIGHT) -> bool:
        """Reserve streams from and to these shards and return True, or return False without room."""
        # Both sides are checked before either is reserved, so a refusal leaves no trace.
        if not all(fits(self.reading[at], self.limits.reads, weight) for at in sources):
            return False
        if not all(fits(self.writing[at], self.limits.writes, weight) for at in targets):
            return False
        self.add(sources, targets, weight)
        return True

    def add(self, sources: Sequence[int], targets: Sequence[int], weight: int = WEIGHT) -> None:
        """Count streams that have room."""
        for at in sources:
            self.reading[at] += weight
        for at in targets:
            self.writing[at] += weight


class ReplicaMove(NamedTuple):
    """A move of one replica of a unit; places are (node, shard), by number."""

    replica: int
    unit: int
    source: tuple[int, int]
    target: tuple[int, int]
    kind: Kind
    why: Callable[[], str]

    @property
    def reason(self) -> str:
        """The reason in words."""
        return self.why()


class Round:
    """The moves of one round. The state contains all of them as done while the round is planned."""

    def __init__(self, state: BalanceColumns, limits: BalanceLimits | None) -> None:
        self.state = state
        self.limits = limits
        self.moves = list[ReplicaMove]()
        self.done = list[ReplicaMove]()
        """The moves of the round, and those without room in the streams. All count as done in this
        round.
        """
        self._taken = set[int]()
        self._streams = None if limits is None else RunningStreams.of(state, limits)
        self._got, self._refused = dict[int, int](), dict[int, int]()
        self._by_shard = dict[int, dict[int, list[float]]]()

    def move(self, replica: int, node: int, shard: int | None, why: Callable[[], str]) -> bool:
        """Plan a move, to the least loaded shard if none is named.

        False: the node gets no more now.
        """
        state = self.state
        unit, place = divmod(replica, state.width)
        source = (int(state.node[unit, place]), int(state.shard[unit, place]))
        table = int(state.table[unit])
        target = (node, self._lightest(table, node) if shard is None else shard)
        planned = ReplicaMove(replica, unit, source, target, self._kind(source[0], node), why)
        fits = self._fits(planned)
        self.done.append(planned)
        if fits:
            self.moves.append(planned)
        self._taken.add(self._key(replica))
        for (where, on), sign in ((source, -1), (target, 1)):
            if where in self._by_shard:
                self._by_shard[where][table][on] += sign * state.unit_load[unit]
        state.move(replica, node, target[1])
        return self.limits is None or self._takes_more(planned, self.limits, fits)

    def waits(self, replica: int) -> bool:
        """Return True if the replica waits for another round: a unit has one transition at a time.

        Without limits the moves are made one after the other, so each replica of a unit may have
        one.
        """
        busy = bool(self.state.busy[replica // self.state.width])
        return busy or self._key(replica) in self._taken

    def _key(self, replica: int) -> int:
        return replica if self.limits is None else replica // self.state.width

    def undo(self) -> None:
        """Restore the state before the round."""
        # The reverse order restores a replica that was moved twice.
        for move in reversed(self.done):
            self.state.move(move.replica, *move.source)

    def _kind(self, source: int, target: int) -> Kind:
        if source == target:
            return Kind.INTRANODE_MIGRATION
        dead = self.state.state[source] == NodeRole.EXCLUDED
        return Kind.REBUILD if dead else Kind.MIGRATION

    def _lightest(self, table: int, node: int) -> int:
        """Return the shard with the lowest sum of the loads of all tables and of this one."""
        state = self.state
        loads = self._loads(node).setdefault(table, [0.0] * int(state.shards[node]))
        first = int(state.first_shard[node])
        of_node = state.shard_load[first : first + len(loads)].tolist()
        return min(range(len(loads)), key=lambda shard: (loads[shard] + of_node[shard], shard))

    def _loads(self, node: int) -> dict[int, list[float]]:
        """Return the load of each table on each shard of a node."""
        found = self._by_shard.get(node)
        if found is None:
            table, _, loads = by_shard(self.state, node)
            found = self._by_shard[node] = dict(zip(table.tolist(), loads.tolist(), strict=True))
        return found

    def _fits(self, move: ReplicaMove) -> bool:
        if self._streams is None:
            return True
        state, node = self.state, move.target[0]
        within = move.kind is Kind.INTRANODE_MIGRATION
        # The limit is on new replicas for a node. Moves within the node bring none.
        most = self._streams.limits.batch * state.shards[node]
        if not within and self._got.get(node, 0) >= most:
            return False
        write = int(state.first_shard[node]) + move.target[1]
        if not self._streams.reserve(state.sources(move.unit, move.source[0]), [write]):
            return False
        if not within:
            self._got[node] = self._got.get(node, 0) + 1
        return True

    def _takes_more(self, move: ReplicaMove, limits: BalanceLimits, fits: bool) -> bool:
        node = move.target[0]
        shards = int(self.state.shards[node])
        if not fits:
            self._refused[node] = self._refused.get(node, 0) + 1
        room = self._got.get(node, 0) < limits.batch * shards
        return room and self._refused.get(node, 0) < limits.skipped * shards


def by_shard(state: BalanceColumns, node: int) -> tuple[Ints, Ints, Reals]:
    """Return the tables on a node, and replicas and loads on its shards, both (tables, shards)."""
    replicas, shards = state.members(node), int(state.shards[node])
    unit = replicas // state.width
    table, row = np.unique(state.table[unit], return_inverse=True)
    key = row * shards + state.shard.ravel()[replicas]
    shape, size = (len(table), shards), len(table) * shards
    held = np.bincount(key, minlength=size).reshape(shape).astype(np.int64)
    load = np.bincount(key, state.unit_load[unit], size).reshape(shape).astype(np.float64)
    return table, held, load


def fits(load: int, limit: int, weight: int = WEIGHT) -> bool:
    """Return True if a stream has room: a shard takes up to its limit, and anything when idle."""
    return load == 0 or load + weight <= limit
