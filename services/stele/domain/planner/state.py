"""The cluster as columns, with the sums that planning needs. Each move updates them.

A *unit* moves as one: a tablet, with those of the tables that are co-located with its table. A
*replica* is numbered ``unit * width + place``. Nodes, tables, racks and dcs are numbers too, in the
order in which they were given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

import numpy as np

from stele.domain.planner.cluster import (
    DEFAULT_OPTIONS,
    MOST_WEIGHT,
    BalanceBy,
    BalanceOptions,
    ClusterNode,
    NodeRole,
    keeps_list,
)
from stele.domain.planner.shares import Bools, Ints, Reals

T = TypeVar("T")

NOBODY: Final = -1
LEAVING: Final = (NodeRole.DRAINING, NodeRole.EXCLUDED)
MINIMAL_PART_OF_MEAN: Final = 0.01
"""Fraction of the mean size. Smaller units count as this large, so that empty ones are spread
too.
"""


class ReplicaRates(NamedTuple):
    """The rate of a replica of each unit, in operations per second, and its heat.

    Heat is the rate relative to the mean, as it enters the load. NaN is unknown and counts as idle.
    """

    per_s: Reals
    heat: Reals


def heat_of(per_s: Reals, least_per_s: float) -> Reals:
    """Return rates divided by the mean of the known ones, but at least by ``least_per_s``."""
    known = per_s[~np.isnan(per_s)]
    found: Reals = per_s / max(least_per_s, float(known.mean()) if len(known) else 0.0)
    return found


class BalanceColumns:
    """Replicas and their sums. All columns may be read; only the methods change them.

    ``node`` and ``shard`` have shape (units, width), ``NOBODY`` where there is no replica.
    ``table``, ``size`` (NaN: unknown), ``rate`` (operations per second, 0: unknown) and ``busy``
    (in transition) have shape (units,). ``count`` and ``load`` have shape (tables, nodes). ``load``
    is in bytes, in part made from rates, or in replicas when ``options.balance_by`` is count.

    ``shard_load`` is per shard of the whole cluster, and ``first_shard`` is each node's first one.
    ``largest`` is a load that no unit of the table has ever exceeded. ``reading`` and ``writing``
    are the weights of streams under way, per shard. ``peak`` is the number of replicas in the
    unit's fullest rack, of shape (units, dcs). ``rack_room``, its sums, ``units_in``, the number of
    units there, and ``racked``, True where racks are listed (``list_racks``), have shape (tables,
    dcs).

    Replicas that are ``pinned`` do not move. Replicas of tables that stand ``still``, with the
    reason, move only off leaving nodes. Nodes that are ``shut`` get nothing, except from excluded
    nodes if they are also ``open_to_excluded``.
    """

    def __init__(
        self,
        nodes: list[ClusterNode],
        tables: int,
        table: Ints,
        size: Reals,
        node: Ints,
        shard: Ints,
        busy: Bools | None = None,
        options: BalanceOptions = DEFAULT_OPTIONS,
        rates: ReplicaRates | None = None,
    ) -> None:
        self.options = options
        self.nodes = [*nodes]
        self.tables = tables
        self.table, self.size = table.astype(np.int32), size.astype(np.float64)
        self.node, self.shard = node.astype(np.int32), shard.astype(np.int32)
        self.width = self.node.shape[1]
        self.busy = np.zeros(len(table), np.bool_) if busy is None else busy
        self.replicas = int((self.node >= 0).sum())
        self.minimal_size = self._minimal_size()
        idle = np.zeros(len(table))
        self.rate = idle if rates is None else np.nan_to_num(rates.per_s)
        self._heat = idle if rates is None else np.nan_to_num(rates.heat)
        self._mean_size = float(self._counted(self.size).mean()) if len(table) else 0.0
        self.unit_load = self._unit_load(self.size, self._heat)
        self.dcs = numbered(node.dc for node in nodes)
        self.racks = numbered((node.dc, node.rack) for node in nodes)
        self.dc = np.array([self.dcs[node.dc] for node in nodes], np.int64)
        self.rack = np.array([self.racks[node.dc, node.rack] for node in nodes], np.int64)
        self.shards = np.array([node.shards for node in nodes], np.int64)
        self.first_shard = np.cumsum(self.shards) - self.shards
        capacity = [np.nan if n.capacity_bytes is None else n.capacity_bytes for n in nodes]
        self.capacity = np.array(capacity, np.float64)
        self.state = np.array([node.state for node in nodes], object)
        self.count = np.zeros((tables, len(nodes)), np.int64)
        self.load = np.zeros((tables, len(nodes)))
        self.unknown = np.zeros(len(nodes), np.int64)
        width = int(self.shards.sum())
        self.shard_load = np.zeros(width)
        self.reading, self.writing = np.zeros(width, np.int64), np.zeros(width, np.int64)
        self._base: list[Ints] = [np.zeros(0, np.int64) for _ in nodes]
        self._came: list[list[int]] = [[] for _ in nodes]
        self._fill()
        self.peak = np.zeros((len(table), len(self.dcs)), np.int16)
        self.rack_room = np.zeros((tables, len(self.dcs)), np.int64)
        self.units_in = np.zeros((tables, len(self.dcs)), np.int64)
        self._find_peaks()
        self.racked = np.zeros((tables, len(self.dcs)), np.bool_)
        self._listed = dict[tuple[int, int], frozenset[int]]()
        self.unsettled = set(range(len(nodes)))
        self.pinned = frozenset[int]()
        self.still: Mapping[int, str] = {}
        self.shut = frozenset[int]()
        self.open_to_excluded = frozenset[int]()

    # -- changes ---------------------------------------------------------------------------------------

    def move(self, replica: int, node: int, shard: int) -> None:
        """Move a replica to another place. The move back undoes this."""
        unit, place = divmod(replica, self.width)
        old, old_shard = int(self.node[unit, place]), int(self.shard[unit, place])
        table, load = self.table[unit], self.unit_load[unit]
        self.shard_load[self.first_shard[old] + old_shard] -= load
        self.shard_load[self.first_shard[node] + shard] += load
        self.shard[unit, place] = shard
        # Balancing within nodes skips settled nodes, so both ends are marked here.
        self.unsettled.update((old, node))
        if node == old:
            return
        self.node[unit, place] = node
        self.count[table, old] -= 1
        self.count[table, node] += 1
        self.load[table, old] -= load
        self.load[table, node] += load
        if np.isnan(self.size[unit]):
            self.unknown[old] -= 1
            self.unknown[node] += 1
        self._came[node].append(replica)
        if self.rack[old] != self.rack[node]:
            self._find_peak(unit)

    def list_racks(self, table: int, dc: str, racks: Iterable[str]) -> None:
        """List the racks of a table in a dc.

        Each listed rack has one replica of each unit or gets one, and no other rack has any. A dc
        or rack without nodes has none.
        """
        if dc in self.dcs:
            numbers = (self.racks.get((dc, rack), NOBODY) for rack in racks)
            self.racked[table, self.dcs[dc]] = True
            self._listed[table, self.dcs[dc]] = frozenset(numbers)

    def listed(self, unit: int, node: int) -> frozenset[int] | None:
        """Return the racks, by number, that are listed for a unit in a node's dc, or None."""
        return self._listed.get((int(self.table[unit]), int(self.dc[node])))

    # -- questions -------------------------------------------------------------------------------------

    def by_rate(self) -> bool:
        """Return True if rates count in addition to bytes."""
        by_size = self.options.balance_by is BalanceBy.SIZE
        return by_size and self.options.rate_weight > 0 and bool(self._heat.any())

    def measured(self) -> str:
        """Return the unit of loads in words."""
        if self.options.balance_by is BalanceBy.COUNT:
            return "replicas"
        return "bytes and operations" if self.by_rate() else "bytes"

    def slot(self, unit: int, node: int) -> int:
        """Return the cluster-wide number of the shard with a unit's replica on a node.

        Raises ValueError if it has none.
        """
        place = self.node[unit].tolist().index(node)
        return int(self.first_shard[node] + self.shard[unit, place])

    def sources(self, unit: int, source: int) -> list[int]:
        """Return the shards, by cluster-wide number, that a moved replica is read from.

        A dead source cannot be read: then it is read from all live replicas.
        """
        nodes = [source]
        if self.state[source] == NodeRole.EXCLUDED:
            held = (node for node in self.node[unit].tolist() if node >= 0)
            nodes = [node for node in held if self.state[node] != NodeRole.EXCLUDED]
        return [self.slot(unit, node) for node in nodes]

    def members(self, node: int) -> Ints:
        """Return the replicas on a node, ascending."""
        if self._came[node]:
            came = np.array(sorted(set(self._came[node])), np.int64)
            base = self._base[node]
            at = np.searchsorted(base, came)
            # A replica that left and returned is still in the base.
            new = np.append(base, NOBODY)[at] != came
            self._base[node] = np.insert(base, at[new], came[new])
            self._came[node].clear()
        found = self._base[node]
        there: Ints = found[self.node.ravel()[found] == node]
        return there

    def rack_allows(self, unit: int, source: int, target: int) -> bool:
        """Return True if the racks of the unit permit the move.

        After it the fullest rack has at most as many replicas as before. Unless the source leaves,
        no rack may then have fewer than the target's rack. Where racks are listed, the replica
        stays in its rack, or goes from outside the list to a listed rack that has none. Replicas on
        dead nodes count like any other.
        """
        to, of = self.rack[target], self.rack[source]
        if to == of:
            return True
        nodes = [node for node in self.node[unit].tolist() if node >= 0]
        listed = self.listed(unit, target)
        if listed is not None:
            here = [node for node in nodes if self.dc[node] == self.dc[target]]
            of_here = [int(self.rack[node]) for node in here]
            return source in here and keeps_list(listed, of_here, here.index(source), int(to))
        racks = [self.rack[node] for node in nodes]
        held = racks.count(to) + 1
        if held > int(self.peak[unit, self.dc[target]]):
            return False
        return self.state[source] in LEAVING or held <= racks.count(of)

    def is_shut(self, target: int, *, of_excluded: bool) -> bool:
        """Return True if the target gets no replicas now; ``of_excluded``: from an excluded node."""
        return target in self.shut and not (of_excluded and target in self.open_to_excluded)

    def fits(self, replica: int, target: int) -> bool:
        """Return True if the rules of placement allow a replica on ``target``."""
        unit, place = divmod(replica, self.width)
        row = self.node[unit].tolist()
        return target not in row and self.rack_allows(unit, row[place], target)

    # -- inside ----------------------------------------------------------------------------------------

    def _minimal_size(self) -> float:
        if self.options.minimal_tablet_size_bytes is not None:
            return max(1.0, self.options.minimal_tablet_size_bytes)
        known = self.size[~np.isnan(self.size)]
        mean = known.mean() if known.size else 0.0
        return max(1.0, float(np.floor(MINIMAL_PART_OF_MEAN * mean)))  # whole: sums stay exact

    def _counted(self, size: Reals) -> Reals:
        """Return the sizes of units in bytes, each at least the minimal size."""
        return np.maximum(np.nan_to_num(size), self.minimal_size)

    def _unit_load(self, size: Reals, heat: Reals) -> Reals:
        """Return bytes and heat, each relative to its mean, as bytes again.

        Whole numbers keep sums exact.
        """
        if self.options.balance_by is BalanceBy.COUNT:
            return np.ones(len(size))
        if not self.by_rate():
            return self._counted(size)
        part = self.options.rate_weight / MOST_WEIGHT
        load = (1 - part) * self._counted(size) + part * heat * self._mean_size
        return np.maximum(1.0, np.rint(load))

    def _fill(self) -> None:
        self.largest = np.zeros(self.tables)
        if not len(self.table):  # as for the first places of a new table
            return
        flat = self.node.ravel()
        there = np.flatnonzero(flat >= 0)
        node, unit = flat[there].astype(np.int64), there // self.width
        load, nodes = self.unit_load[unit], len(self.nodes)
        key = self.table[unit].astype(np.int64) * nodes + node
        shape = (self.tables, nodes)
        self.count = np.bincount(key, minlength=self.tables * nodes).reshape(shape).astype(np.int64)
        sums = np.bincount(key, load, self.tables * nodes)
        self.load = sums.reshape(shape).astype(np.float64)
        np.maximum.at(self.largest, self.table, self.unit_load)
        place = self.first_shard[node] + self.shard.ravel()[there]
        sums = np.bincount(place, load, len(self.shard_load))
        self.shard_load = sums.astype(np.float64)
        self.unknown = np.bincount(node, np.isnan(self.size[unit]), nodes).astype(np.int64)
        order = there[np.argsort(node, kind="stable")]
        ends = np.cumsum(np.bincount(node, minlength=nodes))
        self._base = np.split(order, ends[:-1]) if nodes else []

    def _find_peaks(self) -> None:
        rack = np.where(self.node >= 0, self.rack[self.node], NOBODY) if self.nodes else self.node
        for (dc, _), number in self.racks.items():
            held = (rack == number).sum(axis=1)
            column = self.peak[:, self.dcs[dc]]
            np.maximum(column, held, out=column, casting="unsafe")
        for at in range(len(self.dcs)):
            self.rack_room[:, at] = np.bincount(self.table, self.peak[:, at], self.tables)
            self.units_in[:, at] = np.bincount(self.table, self.peak[:, at] > 0, self.tables)

    def _find_peak(self, unit: int) -> None:
        nodes, table = self.node[unit], self.table[unit]
        nodes = nodes[nodes >= 0]
        self.rack_room[table] -= self.peak[unit]
        racks, counts = np.unique(self.rack[nodes], return_counts=True)
        self.peak[unit] = 0
        for rack, count in zip(racks, counts, strict=True):
            dc = self.dc[nodes[self.rack[nodes] == rack][0]]
            self.peak[unit, dc] = max(self.peak[unit, dc], count)
        self.rack_room[table] += self.peak[unit]


def numbered(names: Iterable[T]) -> dict[T, int]:
    """Return the names with numbers from 0, in the order of their first occurrence."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}
