"""The cluster as columns, and the sums that planning needs, kept up to date change by change.

A *unit* is what moves as one: a tablet, with those of the tables that go together with its table. A
*replica* is numbered ``unit * width + place``. Nodes, tables, racks and dcs are numbers too, in the order
in which they were given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from stele.domain.balance.cluster import (
    DEFAULT_OPTIONS,
    MOST_WEIGHT,
    BalanceBy,
    Node,
    NodeState,
    Options,
)
from stele.domain.balance.rack_lists import keeps_list
from stele.domain.balance.shares import Bools, Ints, Reals

NOBODY: Final = -1
LEAVING: Final = (NodeState.DRAINING, NodeState.EXCLUDED)
MINIMAL_PART_OF_MEAN: Final = 0.01
"""Of the mean size: smaller units count as this large, so that empty ones are spread too."""


class Rates(NamedTuple):
    """Of each unit the operations a second that a replica serves, and these in parts of the mean, as they are
    to count; NaN: unknown, and counts as idle.
    """

    per_s: Reals
    heat: Reals


def heat_of(per_s: Reals, least_per_s: float) -> Reals:
    """Rates in parts of the mean of those that are known, or of the least that is one."""
    known = per_s[~np.isnan(per_s)]
    found: Reals = per_s / max(least_per_s, float(known.mean()) if len(known) else 0.0)
    return found


class State:
    """What is where. All columns may be read; they change by the methods alone.

    ``node`` and ``shard`` are (units, width), NOBODY where there is no replica; ``table``, ``size`` (NaN:
    unknown), ``rate`` (operations a second, 0: unknown) and ``busy`` (in transition) are (units,). ``count``
    and ``load`` are (tables, nodes); ``load`` is in bytes, of which rates make some, or in replicas when
    ``options.balance_by`` is count. ``shard_load`` is per shard of the
    whole cluster, ``first_shard`` each node's first. ``largest`` is a load that no unit of the table has
    ever exceeded. ``reading`` and ``writing`` are the weights of streams under way, per shard. ``peak`` is
    (units, dcs), the replicas in the unit's fullest rack; ``rack_room``, its sums, and ``units_in``, how many
    units are there, are (tables, dcs); so is ``racked``, where racks are listed (``list_racks``). Replicas
    that are ``pinned`` go nowhere, those of tables that stand ``still``, with why, only off nodes that leave;
    nodes that are ``shut`` get nothing.
    """

    def __init__(
        self,
        nodes: list[Node],
        tables: int,
        table: Ints,
        size: Reals,
        node: Ints,
        shard: Ints,
        busy: Bools | None = None,
        options: Options = DEFAULT_OPTIONS,
        rates: Rates | None = None,
    ) -> None:
        self.options = options
        self.nodes = list[Node]()
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
        self.dcs, self.racks = dict[str, int](), dict[tuple[str, str], int]()
        self.count = np.zeros((tables, 0), np.int64)
        self.load = np.zeros((tables, 0))
        self.dc, self.rack, self.shards, self.first_shard = (
            np.zeros(0, np.int64) for _ in range(4)
        )
        self.capacity, self.shard_load = np.zeros(0), np.zeros(0)
        self.unknown = np.zeros(0, np.int64)
        self.reading, self.writing = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.state = np.zeros(0, object)
        self._base = list[Ints]()
        self._came = list[list[int]]()
        self._add(nodes)
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

    # -- changes ---------------------------------------------------------------------------------------

    def move(self, replica: int, node: int, shard: int) -> None:
        """Have a replica at another place. Undone by moving it back."""
        unit, place = divmod(replica, self.width)
        old, old_shard = int(self.node[unit, place]), int(self.shard[unit, place])
        table, load = self.table[unit], self.unit_load[unit]
        self.shard_load[self.first_shard[old] + old_shard] -= load
        self.shard_load[self.first_shard[node] + shard] += load
        self.shard[unit, place] = shard
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

    def set_busy(self, unit: int, busy: bool) -> None:
        """A transition of the unit begins or ends."""
        self.busy[unit] = busy
        self.unsettled.update(node for node in self.node[unit].tolist() if node >= 0)

    def set_size(self, unit: int, size_bytes: float | None) -> None:
        """A report tells the size; none: it is unknown."""
        self._account(unit, -1)
        self.size[unit] = np.nan if size_bytes is None else size_bytes
        self.unit_load[unit] = self._unit_load(
            self.size[unit : unit + 1], self._heat[unit : unit + 1]
        )[0]
        table = self.table[unit]
        self.largest[table] = max(self.largest[table], self.unit_load[unit])
        self._account(unit, 1)

    def add_node(self, node: Node) -> int:
        """A new node without replicas; its number."""
        self._add([node])
        new = len(self.nodes) - 1
        if len(self.dcs) > self.peak.shape[1]:
            one_more = ((0, 0), (0, 1))
            self.peak = np.pad(self.peak, one_more)
            self.rack_room = np.pad(self.rack_room, one_more)
            self.units_in = np.pad(self.units_in, one_more)
            self.racked = np.pad(self.racked, one_more)
        return new

    def set_state(self, node: int, state: NodeState) -> None:
        self.state[node] = state

    def list_racks(self, table: int, dc: str, racks: Iterable[str]) -> None:
        """Each of these racks has one replica of each unit of the table in the dc, or is to have one, and no
        other has any. A dc or rack without nodes has none.
        """
        if dc in self.dcs:
            numbers = (self.racks.get((dc, rack), NOBODY) for rack in racks)
            self.racked[table, self.dcs[dc]] = True
            self._listed[table, self.dcs[dc]] = frozenset(numbers)

    def listed(self, unit: int, node: int) -> frozenset[int] | None:
        """The racks, by number, that are listed for a unit in the dc of a node, if any are."""
        return self._listed.get((int(self.table[unit]), int(self.dc[node])))

    def set_capacity(self, node: int, capacity_bytes: float | None) -> None:
        """None: it is unknown."""
        self.capacity[node] = np.nan if capacity_bytes is None else capacity_bytes

    # -- questions -------------------------------------------------------------------------------------

    def by_rate(self) -> bool:
        """Whether rates count, beside bytes."""
        by_size = self.options.balance_by is BalanceBy.SIZE
        return by_size and self.options.rate_weight > 0 and bool(self._heat.any())

    def measured(self) -> str:
        """What loads are of, for people."""
        if self.options.balance_by is BalanceBy.COUNT:
            return "replicas"
        return "bytes and operations" if self.by_rate() else "bytes"

    def slot(self, unit: int, node: int) -> int:
        """The shard, of all of the cluster, of a unit's replica on a node. Raises ValueError if it has none."""
        place = self.node[unit].tolist().index(node)
        return int(self.first_shard[node] + self.shard[unit, place])

    def members(self, node: int) -> Ints:
        """The replicas on a node, ascending."""
        if self._came[node]:
            came = np.array(sorted(set(self._came[node])), np.int64)
            base = self._base[node]
            at = np.searchsorted(base, came)
            new = np.append(base, NOBODY)[at] != came
            self._base[node] = np.insert(base, at[new], came[new])
            self._came[node].clear()
        found = self._base[node]
        there: Ints = found[self.node.ravel()[found] == node]
        return there

    def rack_allows(self, unit: int, source: int, target: int) -> bool:
        """Whether the fullest rack of the unit has as many replicas after the move as before, or fewer; and,
        unless the source leaves, no rack gets fewer than the target's has. Where racks are listed, whether it
        stays in its own, or goes to one of them that has none from beside these.

        Replicas on dead nodes count like any other.
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

    def fits(self, replica: int, target: int) -> bool:
        """Whether a replica may stand on ``target`` by the rules of placement."""
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
        """Bytes with which units count."""
        return np.maximum(np.nan_to_num(size), self.minimal_size)

    def _unit_load(self, size: Reals, heat: Reals) -> Reals:
        """Bytes and heat, each in parts of its mean, as bytes again; whole, so that sums stay exact."""
        if self.options.balance_by is BalanceBy.COUNT:
            return np.ones(len(size))
        if not self.by_rate():
            return self._counted(size)
        part = self.options.rate_weight / MOST_WEIGHT
        load = (1 - part) * self._counted(size) + part * heat * self._mean_size
        return np.maximum(1.0, np.rint(load))

    def _add(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.dcs.setdefault(node.dc, len(self.dcs))
            self.racks.setdefault((node.dc, node.rack), len(self.racks))
        new = len(nodes)
        shards = np.array([node.shards for node in nodes], np.int64)
        first = len(self.shard_load) + np.cumsum(shards) - shards
        capacity = [np.nan if n.capacity_bytes is None else n.capacity_bytes for n in nodes]
        self.nodes.extend(nodes)
        self.dc = np.append(self.dc, [self.dcs[node.dc] for node in nodes]).astype(np.int64)
        racks = [self.racks[node.dc, node.rack] for node in nodes]
        self.rack = np.append(self.rack, racks).astype(np.int64)
        self.shards = np.append(self.shards, shards)
        self.first_shard = np.append(self.first_shard, first)
        self.capacity = np.append(self.capacity, capacity)
        self.state = np.append(self.state, np.array([node.state for node in nodes], object))
        self.unknown = np.pad(self.unknown, (0, new))
        self.count = np.pad(self.count, ((0, 0), (0, new)))
        self.load = np.pad(self.load, ((0, 0), (0, new)))
        width = (0, int(shards.sum()))
        self.shard_load = np.pad(self.shard_load, width)
        self.reading, self.writing = np.pad(self.reading, width), np.pad(self.writing, width)
        self._base.extend(np.zeros(0, np.int64) for _ in nodes)
        self._came.extend([] for _ in nodes)

    def _fill(self) -> None:
        flat = self.node.ravel()
        there = np.flatnonzero(flat >= 0)
        node, unit = flat[there].astype(np.int64), there // self.width
        load, nodes = self.unit_load[unit], len(self.nodes)
        key = self.table[unit].astype(np.int64) * nodes + node
        shape = (self.tables, nodes)
        self.count = np.bincount(key, minlength=self.tables * nodes).reshape(shape).astype(np.int64)
        sums = np.bincount(key, load, self.tables * nodes)
        self.load = sums.reshape(shape).astype(np.float64)
        self.largest = np.zeros(self.tables)
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

    def _account(self, unit: int, sign: int) -> None:
        load, unknown = sign * self.unit_load[unit], sign * int(np.isnan(self.size[unit]))
        for node, shard in zip(self.node[unit].tolist(), self.shard[unit].tolist(), strict=True):
            if node >= 0:
                self.load[self.table[unit], node] += load
                self.shard_load[self.first_shard[node] + shard] += load
                self.unknown[node] += unknown
                self.unsettled.add(node)
