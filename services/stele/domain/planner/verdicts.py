"""Verdicts for one tablet and each node: may a replica go there, and which rule decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from stele.domain.planner.balancing import Board, node_board
from stele.domain.planner.cluster import NodeRole
from stele.domain.planner.moves import Round
from stele.domain.planner.plan import one_size
from stele.domain.planner.planned import NodeVerdict, Rule
from stele.domain.planner.scopes import Participation, participation, scopes
from stele.domain.planner.shares import Ints, quotas
from stele.domain.planner.state import LEAVING, BalanceColumns


def verdicts(state: BalanceColumns, names: list[str], unit: int) -> list[NodeVerdict]:
    """Return the verdict for each replica of a unit and each node, in their order.

    ``names`` are those of the tables.
    """
    found = list[NodeVerdict]()
    for node in state.node[unit].tolist():
        if node >= 0:
            found.extend(verdicts_from(state, names, unit, node))
    return found


def verdicts_from(
    state: BalanceColumns, names: list[str], unit: int, source: int
) -> list[NodeVerdict]:
    """Return the verdicts for the replica on ``source`` alone."""
    leaves = state.state[source] in LEAVING
    now = participation(state, draining=leaves)
    judge = _Judge(state, names, unit, source, now)
    found = list[NodeVerdict]()
    for target, node in enumerate(state.nodes):
        rule, reason = judge.forbids(target) or judge.judge(target)
        accepted = rule in (Rule.LEAVES, Rule.EVENER)
        found.append(NodeVerdict(state.nodes[source].id, node.id, accepted, rule, reason))
    return found


def summed_up(found: Iterable[NodeVerdict]) -> str:
    """Return in one sentence the obstacles at the other nodes of a replica's dc."""
    others = (each for each in found if each.target != each.source)
    reasons = Counter(each.reason for each in others if each.rule is not Rule.OTHER_DC)
    return "; ".join(reasons) or "there is no other node in its dc"


class _Judge:
    def __init__(
        self, state: BalanceColumns, names: list[str], unit: int, source: int, now: Participation
    ) -> None:
        self._state, self._unit, self._source, self._now = state, unit, source, now
        self._row = state.node[unit].tolist()
        self._board: Board | None = None
        self._columns = list[int]()
        for scope in scopes(state, now):
            at = np.flatnonzero(scope.table == state.table[unit])
            if source in scope.columns and len(at):
                here = int(np.flatnonzero(scope.columns == source)[0])
                covering = [int(row) for row in at if scope.mask[row, here]]
                if not covering:  # all nodes of its rack leave or are dead
                    continue
                self._at = covering[0]
                self._columns = scope.columns.tolist()
                self._board = node_board(Round(state, None), scope, names)

    def forbids(self, target: int) -> tuple[Rule, str] | None:
        """Return the first rule that forbids the move, whatever its benefit."""
        state, node = self._state, self._state.nodes[target]
        if target in self._row:
            return Rule.HOLDS_ONE, f"{node.id} has a replica of this tablet already"
        if state.dc[target] != state.dc[self._source]:
            return Rule.OTHER_DC, f"{node.id} is in another dc, {node.dc}"
        if state.state[target] in LEAVING:
            return Rule.NODE_STATE, f"{node.id} is {state.state[target]}"
        if not state.rack_allows(self._unit, self._source, target):
            return Rule.RACK, self._rack_forbids(target)
        return self._takes_no_part(target) or self._source_forbids()

    def _rack_forbids(self, target: int) -> str:
        state, node = self._state, self._state.nodes[target]
        listed = state.listed(self._unit, target)
        if listed is None:
            return f"rack {node.rack} of {node.id} would have too many of its replicas"
        names = sorted(rack for (_, rack), number in state.racks.items() if number in listed)
        where = f"{node.id} is in {node.rack}"
        return f"one replica is in each of the racks {', '.join(names)} (rack list), and {where}"

    def _takes_no_part(self, node: int) -> tuple[Rule, str] | None:
        state, name = self._state, self._state.nodes[node].id
        is_dead = state.state[self._source] == NodeRole.EXCLUDED
        if state.is_shut(node, of_excluded=is_dead):
            why = "its disk is full, it has rows to delete, it waits to leave"
            why += ", or moves to or from it have failed just now"
            return Rule.SHUT, f"{name} is silent, {why}"
        if self._now.incomplete[node]:
            what = "sizes of tablets" if state.unknown[node] else "capacity"
            return Rule.STATISTICS, f"{what} of {name}: unknown"
        return (Rule.NODE_STATE, f"{name} is down") if self._now.frozen[node] else None

    def _source_forbids(self) -> tuple[Rule, str] | None:
        state, source = self._state, self._source
        if state.busy[self._unit]:
            return Rule.IN_TRANSITION, "the tablet moves already"
        if self._unit * state.width + self._row.index(source) in state.pinned:
            return Rule.LOST, f"what {state.nodes[source].id} has of it may be on dead nodes alone"
        if state.state[source] in LEAVING:
            return None
        table = int(state.table[self._unit])
        if table in state.still:
            return Rule.STANDS_STILL, state.still[table]
        return self._takes_no_part(source)

    @cached_property
    def _quota(self) -> Ints:
        """The replicas that each column should have of the tablet's table."""
        assert self._board is not None
        found: Ints = quotas(self._board.wanted, self._board.held)[self._at]
        return found

    @cached_property
    def _is_uneven(self) -> bool:
        return self._board is not None and self._board.uneven()

    def judge(self, target: int) -> tuple[Rule, str]:
        """Return the benefit of a move that is allowed."""
        state, source, board = self._state, self._source, self._board
        names = (state.nodes[source].id, state.nodes[target].id)
        if state.state[source] in LEAVING:
            return Rule.LEAVES, f"{names[0]} is {state.state[source]}"
        if board is None or target not in self._columns:
            return Rule.NOT_EVENER, f"{names[0]} and {names[1]} are not balanced with one another"
        here, there = self._columns.index(source), self._columns.index(target)
        if one_size(state):
            quota = self._quota[[here, there]]
            has = board.held[self._at, [here, there]]
            good = self._is_uneven and has[0] > quota[0] and has[1] < quota[1]
            table = board.row_names[self._at]
            words = f"{names[0]} has {has[0]} replicas of {table}, its share is {quota[0]}; "
            words += f"{names[1]} has {has[1]} of {quota[1]}"
        else:
            load = state.unit_load[self._unit]
            before = (board.level[here], board.level[there])
            after = (before[0] - load / board.goal[here], before[1] + load / board.goal[there])
            good = self._is_uneven and after[0] >= after[1] and before[0] > before[1]
            of_what = f" of {state.measured()}" if state.by_rate() else ""
            words = f"{names[0]} would go from {before[0]:.1%} of its share{of_what} to {after[0]:.1%}, "
            words += f"{names[1]} from {before[1]:.1%} to {after[1]:.1%}"
            if of_what:
                words += f"; the tablet serves {state.rate[self._unit]:,.0f} operations a second"
        return (Rule.EVENER if good else Rule.NOT_EVENER), words
