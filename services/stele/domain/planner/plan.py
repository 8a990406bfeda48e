"""A round of moves, and rounds until no move is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from stele.domain.planner.balancing import (
    Board,
    drain,
    even_counts,
    even_sizes,
    node_board,
    shard_board,
)
from stele.domain.planner.cluster import NodeRole, strays, vacant
from stele.domain.planner.moves import DEFAULT_LIMITS, BalanceLimits, ReplicaMove, Round
from stele.domain.planner.scopes import participation, scopes, stopped
from stele.domain.planner.shares import Reals
from stele.domain.planner.state import LEAVING, BalanceColumns

# Moves of replicas outside a rack list to listed racks that have none.


def gather(plan: Round) -> None:
    """Move as many replicas of each unit as there are listed racks without one.

    Leaving nodes give first, then those with the highest load. The target has the lowest load for
    its weight.
    """
    state = plan.state
    weight = participation(state, draining=False).weight
    takes = (weight > 0) & (state.state == NodeRole.NORMAL)
    takes[[*state.shut]] = False
    for dc in state.dcs.values():
        for unit in np.flatnonzero(state.racked[state.table, dc] & ~state.busy).tolist():
            while _gather_one(plan, unit, dc, np.where(takes, weight, 0.0)):
                pass


def _gather_one(plan: Round, unit: int, dc: int, weight: Reals) -> bool:
    state = plan.state
    places = [at for at, node in enumerate(state.node[unit]) if node >= 0 and state.dc[node] == dc]
    nodes = [int(state.node[unit, place]) for place in places]
    if not nodes:
        return False
    listed, of = (
        state.listed(unit, nodes[0]) or frozenset[int](),
        [int(state.rack[n]) for n in nodes],
    )
    may = vacant(listed, of)
    free = [at for at in np.flatnonzero(weight > 0).tolist() if int(state.rack[at]) in may]
    beside = [at for at in strays(listed, of) if _gives(state, unit * state.width + places[at])]
    if not free or not beside:
        return False
    load = state.load.sum(axis=0)
    source = max(
        beside, key=lambda at: (state.state[nodes[at]] in LEAVING, float(load[nodes[at]]), at)
    )
    target = min(free, key=lambda at: (float(load[at] / weight[at]), at))
    names = sorted(rack for (_, rack), number in state.racks.items() if number in listed)
    reason = f"one replica is to be in each of the racks {', '.join(names)}"
    plan.move(unit * state.width + places[source], target, None, partial(str, reason))
    return True


def _gives(state: BalanceColumns, replica: int) -> bool:
    unit, place = divmod(replica, state.width)
    of = state.state[state.node[unit, place]]
    return replica not in state.pinned and of != NodeRole.DOWN


STEPS_PER_REPLICA: Final = 10
"""Largest number of rounds of a plan to the fixed point, per replica."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in an executable order. ``converged``: another round would plan nothing."""

    moves: list[ReplicaMove]
    rounds: int
    converged: bool


_END: Final = object()


def plan_round(
    state: BalanceColumns, names: list[str], limits: BalanceLimits | None = DEFAULT_LIMITS
) -> list[ReplicaMove]:
    """Return the moves to begin now, at most one of a unit. The state stays unchanged.

    ``names`` are those of the tables. Leaving nodes come first: while one of a dc can give
    anything, nothing else moves in that dc.
    """
    plan = _round(state, names, limits)
    plan.undo()
    return plan.moves


def plan_to_fixed_point(state: BalanceColumns, names: list[str]) -> Plan:
    """Return all moves until another round would plan none, made in ``state``.

    Moves that rack lists ask for come first.
    """
    first = Round(state, None)
    gather(first)
    moves = [*first.moves]
    most = 1 + STEPS_PER_REPLICA * state.replicas
    for rounds in range(1, most + 1):
        found = _round(state, names, None).moves
        if not found:
            return Plan(moves, rounds, converged=True)
        moves.extend(found)
    return Plan(moves, most, converged=False)


def _round(state: BalanceColumns, names: list[str], limits: BalanceLimits | None) -> Round:
    plan = Round(state, limits)
    drained = _drain(plan, names)
    work = list[Iterator[None]]()
    for scope in scopes(state, participation(state, draining=False)):
        # Leaving nodes come first: a dc in which one gave a replica is not balanced in this round.
        if int(state.dc[scope.columns[0]]) not in drained:
            board = node_board(plan, scope, names)
            if board.uneven():
                work.append(_even(state, board))
    _in_turn(work)
    # Shards come after nodes, so that they are balanced with the replicas that stay or arrive.
    _even_shards(plan, names)
    return plan


def _drain(plan: Round, names: list[str]) -> set[int]:
    """Move replicas off leaving nodes. Return the dcs in which anything moved."""
    state = plan.state
    leaving = np.isin(state.state, LEAVING)
    if not (state.count[:, leaving] > 0).any():
        return set()
    now = participation(state, draining=True)
    work = list[Iterator[None]]()
    for scope in scopes(state, now):
        board = node_board(plan, scope, names)
        if board.total[board.leaves].any() and not stopped(
            state, int(state.dc[scope.columns[0]]), now
        ):
            work.append(even_counts(board, board.leaves) if one_size(state) else drain(board))
    _in_turn(work)
    return {int(state.dc[move.source[0]]) for move in plan.done}


def _even(state: BalanceColumns, board: Board) -> Iterator[None]:
    return even_counts(board, ~board.leaves) if one_size(state) else even_sizes(board)


def _in_turn(work: list[Iterator[None]]) -> None:
    """Take one move of each in turn, so that no rack waits for another."""
    while work:
        work = [each for each in work if next(each, _END) is not _END]


def one_size(state: BalanceColumns) -> bool:
    """Return True if all units have the same load, so that numbers of replicas decide."""
    loads = state.unit_load
    # The first 64 loads decide in most cases, without a pass over all.
    return not len(loads) or bool((loads[:64] == loads[0]).all() and (loads == loads[0]).all())


def _even_shards(plan: Round, names: list[str]) -> None:
    state = plan.state
    several = ~participation(state, draining=False).frozen & (state.shards > 1)
    nodes = [node for node in sorted(state.unsettled) if several[node]]
    if plan.limits is not None:
        streams = np.add.reduceat(state.reading + state.writing, state.first_shard)
        nodes = sorted(nodes, key=lambda node: int(streams[node]))[: plan.limits.nodes_within]
    for node in nodes:
        done = len(plan.done)
        board = shard_board(plan, node, names)
        uneven = board.uneven()
        if uneven:
            _in_turn([_even(state, board)])
        if len(plan.done) == done and not (uneven and plan.done):
            # The node's shards are even. A change of its replicas or sizes adds it again.
            state.unsettled.discard(node)
