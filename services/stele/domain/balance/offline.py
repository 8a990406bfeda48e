"""A plan for a described cluster with its evenness before and after, for ``stele plan --file``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stele.domain.balance.bound import least_bytes
from stele.domain.balance.cluster import Cluster
from stele.domain.balance.described import described
from stele.domain.balance.evenness import bytes_of, evenness
from stele.domain.balance.moves import ReplicaMove
from stele.domain.balance.plan import plan_to_fixed_point
from stele.domain.balance.planned import OfflinePlan, PlannedMove, Unmovable
from stele.domain.balance.scopes import standing, stopped
from stele.domain.balance.state import LEAVING, BalanceColumns
from stele.domain.balance.verdicts import summed_up, verdicts_from
from stele.domain.json_documents import json_schema

Named = Callable[[int], list[tuple[str, str, int | str]]]
"""The tablets of a unit: keyspace, table and id of each."""


def plan_offline(cluster: Cluster) -> OfflinePlan:
    """Plan to the fixed point. The cluster has been checked."""
    what = described(cluster)

    def named(unit: int) -> list[tuple[str, str, int | str]]:
        return [(table.keyspace, table.name, tablet.id) for table, tablet in what.units[unit]]

    return whole_plan(what.state, what.names, named)


def whole_plan(state: BalanceColumns, names: list[str], named: Named) -> OfflinePlan:
    """Plan to the fixed point, in ``state``; ``names`` are those of the tables."""
    first = bytes_of(state)
    before = evenness(state, names)
    plan = plan_to_fixed_point(state, names)
    size = np.nan_to_num(state.size)
    between = sum(size[move.unit] for move in plan.moves if move.source[0] != move.target[0])
    within = sum(size[move.unit] for move in plan.moves if move.source[0] == move.target[0])
    return OfflinePlan(
        moves=tuple(told for move in plan.moves for told in _told(state, named, move)),
        converged=plan.converged,
        unmovable=tuple(_unmovable(state, names, named)),
        before=before,
        after=evenness(state, names),
        moved_bytes=int(between),
        moved_within_nodes_bytes=int(within),
        lower_bound_bytes=least_bytes(state, first),
    )


def _told(state: BalanceColumns, named: Named, move: ReplicaMove) -> list[PlannedMove]:
    """Return the move of each tablet of a unit."""
    nodes = state.nodes
    return [
        PlannedMove(
            keyspace,
            table,
            tablet,
            (nodes[move.source[0]].id, move.source[1]),
            (nodes[move.target[0]].id, move.target[1]),
            move.kind,
            move.reason,
        )
        for keyspace, table, tablet in named(move.unit)
    ]


def _unmovable(state: BalanceColumns, names: list[str], named: Named) -> list[Unmovable]:
    found = list[Unmovable]()
    now = standing(state, draining=True)
    for node in np.flatnonzero(np.isin(state.state, LEAVING)).tolist():
        for replica in state.members(node).tolist():
            unit = replica // state.width
            if state.busy[unit]:
                reason = "the tablet moves already"
            elif stopped(state, int(state.dc[node]), now):
                reason = "sizes of tablets in its dc are unknown, so free space is unknown"
            else:
                reason = summed_up(verdicts_from(state, names, unit, node))
            found.extend(
                Unmovable(keyspace, table, tablet, state.nodes[node].id, reason)
                for keyspace, table, tablet in named(unit)
            )
    return found


def schema() -> bytes:
    """Return the JSON Schema of the file and of the answer."""
    return json_schema(Cluster, answer=OfflinePlan)
