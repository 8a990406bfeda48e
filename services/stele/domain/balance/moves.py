"""Planned moves, and the limits of what may stream at one time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.planned import Kind
from stele.domain.balance.shares import Ints, Reals
from stele.domain.balance.state import State

WEIGHT: Final = 1
"""Of a move, a move between shards and a rebuild, in what a shard reads and writes at one time."""

REPAIR_WEIGHT: Final = 2
"""Of a repair, in what each replica reads and writes."""


class Limits(NamedTuple):
    """What one round may begin; weights are per shard."""

    reads: int = 2
    writes: int = 2
    batch: int = 1
    """New replicas for a node from others, per shard of it."""
    skipped: int = 2
    """Moves that find no room in the streams, per shard of the target, until it gets no more in this round."""
    nodes_within: int = 128
    """Nodes whose shards are evened out, those that stream least first: a round of 1,000 nodes stays short."""


DEFAULT_LIMITS: Final = Limits()


class Move(NamedTuple):
    """One replica of a unit goes from a place to another; places are (node, shard), by their numbers."""

    replica: int
    unit: int
    source: tuple[int, int]
    target: tuple[int, int]
    kind: Kind
    why: Callable[[], str]

    @property
    def reason(self) -> str:
        """Why, in words."""
        return self.why()


class Round:
    """The moves of one round. The state holds them all as done while the round is planned."""

    def __init__(self, state: State, limits: Limits | None) -> None:
        self.state = state
        self.limits = limits
        self.moves = list[Move]()
        self.done = list[Move]()
        """Those, and those for which there is no room in the streams: they count as done in this round."""
        self._taken = set[int]()
        self._reading, self._writing = state.reading.copy(), state.writing.copy()
        self._got, self._refused = dict[int, int](), dict[int, int]()
        self._by_shard = dict[int, dict[int, list[float]]]()

    def move(self, replica: int, node: int, shard: int | None, why: Callable[[], str]) -> bool:
        """Plan a move, to the least loaded shard if none is named. False: the node gets no more now."""
        state = self.state
        unit, place = divmod(replica, state.width)
        source = (int(state.node[unit, place]), int(state.shard[unit, place]))
        table = int(state.table[unit])
        target = (node, self._lightest(table, node) if shard is None else shard)
        planned = Move(replica, unit, source, target, self._kind(source[0], node), why)
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
        """Whether it is for another round: a unit has one transition at a time.

        Without limits the moves are made one after the other, so each replica of a unit may have one.
        """
        busy = bool(self.state.busy[replica // self.state.width])
        return busy or self._key(replica) in self._taken

    def _key(self, replica: int) -> int:
        return replica if self.limits is None else replica // self.state.width

    def undo(self) -> None:
        """Have the state as it was."""
        for move in reversed(self.done):
            self.state.move(move.replica, *move.source)

    def _kind(self, source: int, target: int) -> Kind:
        if source == target:
            return Kind.INTRANODE_MIGRATION
        dead = self.state.state[source] == NodeState.EXCLUDED
        return Kind.REBUILD if dead else Kind.MIGRATION

    def _lightest(self, table: int, node: int) -> int:
        """The shard with the least of all tables and of this one together."""
        state = self.state
        loads = self._loads(node).setdefault(table, [0.0] * int(state.shards[node]))
        first = int(state.first_shard[node])
        of_node = state.shard_load[first : first + len(loads)].tolist()
        return min(range(len(loads)), key=lambda shard: (loads[shard] + of_node[shard], shard))

    def _loads(self, node: int) -> dict[int, list[float]]:
        """The load of each table on each shard of a node."""
        found = self._by_shard.get(node)
        if found is None:
            table, _, loads = by_shard(self.state, node)
            found = self._by_shard[node] = dict(zip(table.tolist(), loads.tolist(), strict=True))
        return found

    def _fits(self, move: Move) -> bool:
        if self.limits is None:
            return True
        state, node = self.state, move.target[0]
        within = move.kind is Kind.INTRANODE_MIGRATION
        if not within and self._got.get(node, 0) >= self.limits.batch * state.shards[node]:
            return False
        reads = [state.first_shard[move.source[0]] + move.source[1]]
        if move.kind is Kind.REBUILD:
            rows = zip(state.node[move.unit], state.shard[move.unit], strict=True)
            live = [pair for pair in rows if pair[0] >= 0 and pair[0] != move.source[0]]
            reads = [
                state.first_shard[node] + shard
                for node, shard in live
                if state.state[node] != NodeState.EXCLUDED
            ]
        write = state.first_shard[move.target[0]] + move.target[1]
        free = all(fits(self._reading[shard], self.limits.reads) for shard in reads)
        if not free or not fits(self._writing[write], self.limits.writes):
            return False
        for shard in reads:
            self._reading[shard] += WEIGHT
        self._writing[write] += WEIGHT
        if not within:
            self._got[node] = self._got.get(node, 0) + 1
        return True

    def _takes_more(self, move: Move, limits: Limits, fits: bool) -> bool:
        node = move.target[0]
        shards = int(self.state.shards[node])
        if not fits:
            self._refused[node] = self._refused.get(node, 0) + 1
        room = self._got.get(node, 0) < limits.batch * shards
        return room and self._refused.get(node, 0) < limits.skipped * shards


def by_shard(state: State, node: int) -> tuple[Ints, Ints, Reals]:
    """The tables on a node; how many replicas of each its shards have, and their load: (tables, shards)."""
    replicas, shards = state.members(node), int(state.shards[node])
    unit = replicas // state.width
    table, row = np.unique(state.table[unit], return_inverse=True)
    key = row * shards + state.shard.ravel()[replicas]
    shape, size = (len(table), shards), len(table) * shards
    held = np.bincount(key, minlength=size).reshape(shape).astype(np.int64)
    load = np.bincount(key, state.unit_load[unit], size).reshape(shape).astype(np.float64)
    return table, held, load


def fits(load: int, limit: int, weight: int = WEIGHT) -> bool:
    """Whether a stream has room beside others: a shard takes up to its limit, and anything when it is idle."""
    return load == 0 or load + weight <= limit
