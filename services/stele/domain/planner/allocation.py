"""First places for the tablets of a new table: even from the start, in proportion to capacity."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from stele.domain.planner.cluster import NodeRole
from stele.domain.planner.scopes import participation
from stele.domain.planner.shares import EPSILON, Ints, Reals, shares, surplus
from stele.domain.planner.state import BalanceColumns


class NoRoom(ValueError):
    """A dc has fewer nodes that take replicas than the replication factor asks for."""


Surplus = Callable[[Ints, Reals], Ints]
"""Returns ``shares.surplus`` of all tables on nodes, by number, of given weights."""


def allocate(
    state: BalanceColumns,
    units: int,
    factors: Mapping[str, int],
    lists: Mapping[str, Collection[str]] = MappingProxyType({}),
    surplus_of: Surplus | None = None,
) -> tuple[Ints, Ints]:
    """Return nodes and shards of ``units`` new tablets, both of shape (units, replicas).

    ``factors`` are the replicas of a tablet by dc. In dcs with listed racks each listed rack gets
    one.

    Each node gets its share of the table, rounded down or up. Between equal shares, nodes that hold
    less of other tables are rounded up; see ``shares.surplus``. ``surplus_of`` returns that of all
    tables if ``state`` has none. Replicas of a tablet are on distinct nodes, and no rack has more
    of them than necessary. Only nodes in state normal get any. Raises NoRoom.
    """
    parts = [
        _nodes_in(state, dc, units, factor, lists.get(dc), surplus_of)
        for dc, factor in factors.items()
        if factor
    ]
    node = np.concatenate(parts, axis=1) if parts else np.zeros((units, 0), np.int64)
    return node, _shards_for(state, node)


def _nodes_in(
    state: BalanceColumns,
    dc: str,
    units: int,
    factor: int,
    listed: Collection[str] | None,
    surplus_of: Surplus | None,
) -> Ints:
    now = participation(state, draining=False)
    takes = (now.weight > 0) & (state.state == NodeRole.NORMAL)
    nodes = np.flatnonzero((state.dc == state.dcs.get(dc, -1)) & takes)
    if listed is not None:
        nodes = _in_racks(state, dc, nodes, listed)
    if len(nodes) < factor:
        raise NoRoom(
            f"{factor} replicas in dc '{dc}' need as many nodes; {len(nodes)} take replicas"
        )
    weight = now.weight[nodes]
    held = surplus_of(nodes, weight) if surplus_of else surplus(state.count[:, nodes], weight)
    racks, rack = np.unique(state.rack[nodes], return_inverse=True)
    in_rack = _most_in_a_rack(np.bincount(rack), factor)
    room = np.full(len(racks), float(units * in_rack))
    share = shares(float(units * factor), weight, float(units), rack, room)
    # Racks are rounded before nodes, so that no rack exceeds its rounds in ``_rows``.
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


def _in_racks(state: BalanceColumns, dc: str, nodes: Ints, listed: Collection[str]) -> Ints:
    """Return the nodes in these racks. Raises NoRoom if a rack has none."""
    numbers = {rack: state.racks.get((dc, rack), -1) for rack in listed}
    for rack, number in sorted(numbers.items()):
        if number not in state.rack[nodes]:
            raise NoRoom(f"rack '{rack}' of dc '{dc}' has no node that takes replicas")
    return nodes[np.isin(state.rack[nodes], [*numbers.values()])]


def _least_held_first(share: Reals, level: Reals) -> Ints:
    """Return shares as whole numbers of the same sum.

    The largest fractions are rounded up. Between equal ones, the lowest levels come first.
    """
    down = np.floor(share + EPSILON)
    rest = np.rint((share - down) / EPSILON)
    extras = round(float(share.sum() - down.sum()))
    found = down.astype(np.int64)
    found[np.lexsort((level, -rest))[:extras]] += 1
    return found


def _most_in_a_rack(sizes: Ints, factor: int) -> int:
    """Return the smallest limit of a tablet's replicas per rack that leaves room for all."""
    most = -(-factor // len(sizes))
    # The caller has checked that there are at least ``factor`` nodes, so the loop ends.
    while int(np.minimum(sizes, most).sum()) < factor:
        most += 1
    return most


def _rows(left: Ints, rack: Ints, units: int, factor: int, in_rack: int) -> Ints:
    """Return the nodes of each unit, of shape (units, factor). Each node occurs ``left`` times.

    The places of all units form ``factor`` rounds. They are assigned to the racks one after the
    other, and within a rack to its nodes. No node has more places than there are units, and no rack
    more than ``in_rack`` rounds. Therefore none occurs too often in a unit. If a rack occurs once,
    its nodes are mixed, so that the tablets of a node share replicas with many other nodes.
    """
    found = list[Ints]()
    for number in range(int(rack.max()) + 1):
        here = np.flatnonzero(rack == number)
        places = np.repeat(here, left[here])
        if in_rack == 1 and units > 1:
            places = places[np.argsort(_mixed(len(places), number))]
        found.append(places)
    rows: Ints = np.concatenate(found).reshape(factor, units).T
    return rows


def _mixed(count: int, salt: int) -> npt.NDArray[np.uint64]:
    """Return distinct numbers without a pattern, the same at each call (SplitMix64's finalizer)."""
    z = np.arange(count, dtype=np.uint64) + np.uint64((salt + 1) << 32)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _shards_for(state: BalanceColumns, node: Ints) -> Ints:
    """Return for each replica the shard with the fewest new ones, then with the lowest load."""
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
