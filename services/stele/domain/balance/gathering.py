"""Moves of replicas outside a rack list to listed racks that have none."""

from __future__ import annotations

from functools import partial

import numpy as np

from stele.domain.balance.cluster import NodeRole
from stele.domain.balance.moves import Round
from stele.domain.balance.rack_lists import strays, vacant
from stele.domain.balance.scopes import standing
from stele.domain.balance.shares import Reals
from stele.domain.balance.state import LEAVING, BalanceColumns


def gather(plan: Round) -> None:
    """Move as many replicas of each unit as there are listed racks without one.

    Leaving nodes give first, then those with the highest load. The target has the lowest load for
    its weight.
    """
    state = plan.state
    weight = standing(state, draining=False).weight
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
