"""First places for the tablets of a new table: even from the start, in proportion to capacity."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.quotas import quotas
from stele.domain.balance.scopes import standing
from stele.domain.balance.shares import Ints, Reals, shares
from stele.domain.balance.state import State


class NoRoom(ValueError):
    """A dc has fewer nodes that take replicas than the replication factor asks for."""


def allocate(
    state: State,
    units: int,
    factors: Mapping[str, int],
    lists: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[Ints, Ints]:
    """Nodes and shards of ``units`` new tablets with so many replicas in each dc, both (units, replicas); in
    dcs whose racks are listed one in each of these.

    Each node gets its share of the table, rounded down or up; of what is equal, those get more that hold
    less. Replicas of a tablet are on distinct nodes, and no rack has more of them than it must. Only nodes
    in state normal get any. Raises NoRoom.
    """
    parts = [
        _nodes_in(state, dc, units, factor, lists.get(dc))
        for dc, factor in factors.items()
        if factor
    ]
    node = np.concatenate(parts, axis=1) if parts else np.zeros((units, 0), np.int64)
    return node, _shards_for(state, node)


def _nodes_in(
    state: State, dc: str, units: int, factor: int, listed: Collection[str] | None
) -> Ints:
    now = standing(state, draining=False)
    takes = (now.weight > 0) & (state.state == NodeState.NORMAL)
    nodes = np.flatnonzero((state.dc == state.dcs.get(dc, -1)) & takes)
    if listed is not None:
        nodes = _in_racks(state, dc, nodes, listed)
    if len(nodes) < factor:
        raise NoRoom(
            f"{factor} replicas in dc '{dc}' need as many nodes; {len(nodes)} take replicas"
        )
    held, weight = state.load[:, nodes].sum(axis=0), now.weight[nodes]
    racks, rack = np.unique(state.rack[nodes], return_inverse=True)
    in_rack = _most_in_a_rack(np.bincount(rack), factor)
    room = np.full(len(racks), float(units * in_rack))
    share = shares(float(units * factor), weight, float(units), rack, room)
    of_rack = _least_held_first(
        np.bincount(rack, share, len(racks)).astype(np.float64),
        np.bincount(rack, held) / np.bincount(rack, weight),
    )
    left = np.zeros(len(nodes), np.int64)
    for number, total in enumerate(of_rack.tolist()):
        here = rack == number
        within = np.where(here, weight, 0.0)
        part = shares(float(total), within, float(units), rack, room)[here]
        left[here] = _least_held_first(part, held[here] / weight[here])
    return nodes[_rows(left, rack, units, factor, in_rack)]


def _in_racks(state: State, dc: str, nodes: Ints, listed: Collection[str]) -> Ints:
    """Those of the nodes that are in these racks, each of which has some. Raises NoRoom."""
    numbers = {rack: state.racks.get((dc, rack), -1) for rack in listed}
    for rack, number in sorted(numbers.items()):
        if number not in state.rack[nodes]:
            raise NoRoom(f"rack '{rack}' of dc '{dc}' has no node that takes replicas")
    return nodes[np.isin(state.rack[nodes], [*numbers.values()])]


def _least_held_first(share: Reals, level: Reals) -> Ints:
    """Shares as whole numbers; of equal shares those of the lowest levels are rounded up."""
    order = np.argsort(level, kind="stable")
    found = np.zeros(len(share), np.int64)
    found[order] = quotas(share[order][None, :], np.zeros((1, len(share)), np.int64))[0]
    return found


def _most_in_a_rack(sizes: Ints, factor: int) -> int:
    """The smallest number of a tablet's replicas in one rack with which all find a place."""
    most = -(-factor // len(sizes))
    while int(np.minimum(sizes, most).sum()) < factor:
        most += 1
    return most


def _rows(left: Ints, rack: Ints, units: int, factor: int, in_rack: int) -> Ints:
    """Of each unit its nodes, of shape (units, factor), so that each node is taken as often as ``left`` says.

    The places of all units stand in ``factor`` rounds, and are given to the racks one after the other, within
    a rack to its nodes. No node has more places than there are units, and no rack more than ``in_rack`` rounds:
    so none comes too often to a unit. Where a rack comes once, its nodes are mixed, so that those of a node
    meet many others.
    """
    found = list[Ints]()
    for number in range(int(rack.max()) + 1):
        here = np.flatnonzero(rack == number)
        places = np.repeat(here, left[here])
        if in_rack == 1:
            places = places[np.argsort(_mixed(len(places), number))]
        found.append(places)
    rows: Ints = np.concatenate(found).reshape(factor, units).T
    return rows


def _mixed(count: int, salt: int) -> npt.NDArray[np.uint64]:
    """Numbers without a pattern, all different and always the same (SplitMix64's finalizer)."""
    z = np.arange(count, dtype=np.uint64) + np.uint64((salt + 1) << 32)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _shards_for(state: State, node: Ints) -> Ints:
    """For each replica the shard with the fewest of the new ones, of these the least loaded."""
    if (state.shards == 1).all():
        return np.zeros_like(node)
    flat = node.ravel()
    found = np.zeros(len(flat), np.int64)
    order = np.argsort(flat, kind="stable")
    ends = np.cumsum(np.bincount(flat, minlength=len(state.nodes)))[:-1]
    for name, its in enumerate(np.split(order, ends)):
        first, shards = int(state.first_shard[name]), int(state.shards[name])
        turns = np.argsort(state.shard_load[first : first + shards], kind="stable")
        found[its] = turns[np.arange(len(its)) % shards]
    return found.reshape(node.shape)
