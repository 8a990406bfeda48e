"""Boards of nodes and of shards, the two levels that are balanced in the same way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from stele.domain.balance.board import Board, Pile
from stele.domain.balance.cluster import BalanceBy, NodeRole
from stele.domain.balance.moves import Round, by_shard
from stele.domain.balance.scopes import BalanceScope, weights
from stele.domain.balance.shares import Ints
from stele.domain.balance.state import LEAVING, BalanceColumns


class NodePlaces:
    """The nodes of a scope as columns, and its tables as rows."""

    def __init__(self, plan: Round, columns: Ints, table: Ints) -> None:
        self._plan = plan
        self._columns: list[int] = columns.tolist()
        self._table: list[int] = table.tolist()
        self._members = dict[int, tuple[Ints, Ints]]()
        down = plan.state.state == NodeRole.DOWN
        self._keeps: list[bool] = (down | weights(plan.state)[1]).tolist()
        """Nodes that give nothing, and get only replicas of leaving nodes."""

    def pile(self, row: int, column: int) -> Pile:
        """Return the replicas by load. Equal loads start with the fullest shard, then alternate."""
        state, node = self._plan.state, self._columns[column]
        if node not in self._members:
            replicas = state.members(node)
            self._members[node] = (replicas, state.table[replicas // state.width])
        replicas, tables = self._members[node]
        replicas = replicas[tables == self._table[row]]
        # The members were read earlier in this round. Replicas that have left since are dropped.
        replicas = replicas[state.node.ravel()[replicas] == node]
        return _pile(state, replicas)

    def fits(self, replica: int, column: int) -> bool:
        """Return True if the replica may move to the node.

        A node that is down or of unknown capacity gives nothing, and gets only replicas of leaving
        nodes. A table that stands still gives only replicas on leaving nodes.
        """
        state, target = self._plan.state, self._columns[column]
        if self.waits(replica) or replica in state.pinned or target in state.shut:
            return False
        source = int(state.node.ravel()[replica])
        # Replicas of a leaving node ignore switches and unknown capacities, because a leave must
        # not wait.
        if state.state[source] not in LEAVING:
            still = int(state.table[replica // state.width]) in state.still
            if still or self._keeps[source] or self._keeps[target]:
                return False
        return state.fits(replica, target)

    def waits(self, replica: int) -> bool:
        return self._plan.waits(replica)

    def move(self, replica: int, source: int, target: int, reason: Callable[[], str]) -> bool:
        state, node = self._plan.state, self._columns[source]
        leaves = state.state[node]
        if leaves == NodeRole.DRAINING:
            reason = partial(str, f"{state.nodes[node].id} is draining")
        elif leaves == NodeRole.EXCLUDED:
            reason = partial(str, f"{state.nodes[node].id} is dead for good")
        return self._plan.move(replica, self._columns[target], None, reason)


class ShardPlaces:
    """The shards of one node as columns, and its tables as rows."""

    def __init__(self, plan: Round, node: int, table: Ints) -> None:
        self._plan, self._node = plan, node
        self._table: list[int] = table.tolist()
        state = plan.state
        self._replicas = state.members(node)
        self._tables = state.table[self._replicas // state.width]

    def pile(self, row: int, column: int) -> Pile:
        state = self._plan.state
        replicas = self._replicas[self._tables == self._table[row]]
        replicas = replicas[state.shard.ravel()[replicas] == column]
        return _pile(state, replicas)

    def fits(self, replica: int, column: int) -> bool:
        """Return True if the replica may move.

        All shards of a node are equal to the rules of placement, but its table may stand still.
        """
        del column
        state = self._plan.state
        still = int(state.table[replica // state.width]) in state.still
        return not (still or self._node in state.shut or self.waits(replica))

    def waits(self, replica: int) -> bool:
        return self._plan.waits(replica)

    def move(self, replica: int, source: int, target: int, reason: Callable[[], str]) -> bool:
        del source
        return self._plan.move(replica, self._node, target, reason)


def _pile(state: BalanceColumns, replicas: Ints) -> Pile:
    loads = state.unit_load[replicas // state.width]
    shard = state.shard.ravel()[replicas].astype(np.int64)
    order = np.lexsort((replicas, shard))
    sizes = np.bincount(shard, minlength=1)
    rank = np.empty(len(replicas), np.int64)
    starts = np.cumsum(sizes) - sizes
    rank[order] = sizes[shard[order]] - (np.arange(len(order)) - starts[shard[order]])
    order = np.lexsort((replicas, -rank, loads))
    return Pile(loads[order].tolist(), replicas[order].tolist())


def node_board(plan: Round, scope: BalanceScope, names: list[str]) -> Board:
    """Return the board of a scope's nodes at present; ``names`` are those of all tables."""
    state = plan.state
    at = np.ix_(scope.table, scope.columns)
    return Board(
        places=NodePlaces(plan, scope.columns, scope.table),
        wanted=scope.wanted,
        held=np.where(scope.mask, state.count[at], 0),
        load=np.where(scope.mask, state.load[at], 0.0),
        largest=state.largest[scope.table],
        leaves=scope.leaves,
        threshold=threshold_of(state),
        measured=state.measured(),
        row_names=[names[table] for table in scope.table],
        column_names=[state.nodes[node].id for node in scope.columns],
    )


def shard_board(plan: Round, node: int, names: list[str]) -> Board:
    """Return the board of a node's shards at present."""
    state = plan.state
    table, held, load = by_shard(state, node)
    shards = int(state.shards[node])
    wanted = np.repeat(held.sum(axis=1)[:, None] / shards, shards, axis=1)
    name = state.nodes[node].id
    return Board(
        places=ShardPlaces(plan, node, table),
        wanted=wanted,
        held=held,
        load=load,
        largest=state.largest[table],
        leaves=np.zeros(shards, np.bool_),
        threshold=threshold_of(state),
        measured=state.measured(),
        row_names=[names[number] for number in table],
        column_names=[f"shard {shard} of {name}" for shard in range(shards)],
    )


def threshold_of(state: BalanceColumns) -> float:
    """Return the difference that counts as even.

    Counts are even only when no move can improve them.
    """
    by_count = state.options.balance_by is BalanceBy.COUNT
    return 0.0 if by_count else state.options.size_threshold
