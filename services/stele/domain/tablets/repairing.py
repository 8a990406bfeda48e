"""Which tablets are to be repaired now (seed 000; Scylla's repair scheduler).

First those of tables whose repair was asked for, then those that were repaired too long ago; of both the
oldest first, as many as there is room for in the streams beside what moves. Tablets that move, or are repaired
already, wait for that; so do those of a node that is down, and for a while those whose repair has failed.
What is repaired by schedule alone needs two replicas, none of them on a node that is dead for good.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.moves import REPAIR_WEIGHT, WEIGHT, Limits, fits
from stele.domain.balance.state import NOBODY
from stele.domain.image import Image
from stele.domain.repairs.among import ALL, Among
from stele.domain.repairs.times import Ms
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import Table
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.limits import AUTO_REPAIR, AUTO_REPAIR_THRESHOLD_S, ON
from stele.domain.topology.operations.commands import TabletMove, TabletRepair
from stele.domain.topology.operations.tablet_repair import MAX_REPAIRS

MOST_LOOKED_AT: Final = 4096
"""Tablets of a round, the oldest; for the others there is no room in the streams anyway."""
SECOND_MS: Final = 1000
HOUR_MS: Final = 3600 * SECOND_MS

Mask = npt.NDArray[np.bool_]


def repairs(
    image: Image, what: Tablets, conditions: Conditions, desk: "Desk", resized: Set[str]
) -> list[TabletRepair]:
    """What to begin in one round. The time is compared with times of the log; tables that are
    ``resized`` in the same round wait.
    """
    asked, late = list[Due](), list[Due]()
    wanted = image.requests.table_repairs()
    for at, name in enumerate(what.names):
        table = image.schema.table_named(name)
        if table is None or name in resized:
            continue
        goal, after_s = wanted.get(table.table_id), threshold_s(image.features.settings, table)
        if goal is None and after_s is None:
            continue
        units = slice(what.first[at], what.first[at] + what.tablets_of(name))
        times = image.repairs.of(table.table_id, what.tablets_of(name))
        paused = conditions.are_paused(table.table_id, len(times))
        if goal is not None:
            restricted = goal.is_restricted
            since = image.repairs.of(table.table_id, len(times), restricted=restricted)
            due = desk.ready(units, goal.among) & ~paused & (since <= goal.submitted_ms)
            asked.append(Due(since, units, due, goal.among))
        if after_s is not None and (goal is None or goal.is_restricted):
            old = times < conditions.now_ms - SECOND_MS * after_s
            late.append(Due(times, units, desk.ready(units) & ~paused & old & desk.is_whole(units)))
    return [
        *desk.chosen(asked, lambda name, _: _why_asked(image, wanted, name)),
        *desk.chosen(late, lambda _, at_ms: _why_late(at_ms, conditions.now_ms)),
    ][:MAX_REPAIRS]


def threshold_s(settings: Mapping[str, str], table: Table) -> int | None:
    """How old the repair of its tablets may get; None when none is scheduled. A table's options come before
    the settings of the log.
    """
    if (table.options.auto_repair_enabled or AUTO_REPAIR.of(settings)) != ON:
        return None
    return table.options.auto_repair_threshold or AUTO_REPAIR_THRESHOLD_S.of(settings)


class Due(NamedTuple):
    """Tablets of a table: when they were repaired, their units, and which are due, ``among`` whose replicas."""

    times: Ms
    units: slice
    due: Mask
    among: Among = ALL


class Desk:
    """What one round has given out so far, of streams and of tablets."""

    def __init__(
        self,
        what: Tablets,
        conditions: Conditions,
        limits: Limits,
        moves: Iterable[TabletMove] = (),
    ) -> None:
        state = what.state
        self._what = what
        self._limits = limits
        self._reading, self._writing = state.reading.copy(), state.writing.copy()
        self._busy = state.busy.copy()
        self._dead = _by_node(at == NodeState.EXCLUDED for at in state.state.tolist())
        down = _by_node(node_id in conditions.down for node_id in what.node_ids)
        self._silent = down & ~self._dead
        for move in moves:
            self.take_move(move)

    def take_move(self, move: TabletMove) -> None:
        """It has its place in the streams, and its tablet to itself. Of dead nodes nobody reads."""
        what = self._what
        if move.table in what.names:
            self._busy[what.first[what.names.index(move.table)] + move.tablet] = True
        if move.to_node in what.node_ids:
            node = what.node_ids.index(move.to_node)
            self._writing[what.state.first_shard[node] + max(move.to_shard, 0)] += WEIGHT
        if move.from_node in what.node_ids and move.table in what.names:
            unit = what.first[what.names.index(move.table)] + move.tablet
            node = what.node_ids.index(move.from_node)
            self._reading[what.state.slot(unit, node)] += WEIGHT

    def ready(self, units: slice, among: Among = ALL) -> Mask:
        """Nothing else is done to them, and all who take part are up, but those who are dead for good."""
        nodes, silent = self._what.state.node[units], self._silent & self._named(among)
        found: Mask = ~self._busy[units] & ~silent[nodes].any(axis=1)
        return found

    def _named(self, among: Among) -> Mask:
        return _by_node(among.has(node.id, node.dc) for node in self._what.state.nodes)

    def is_whole(self, units: slice) -> Mask:
        """There are two replicas, and none is on a dead node."""
        nodes = self._what.state.node[units]
        several = (nodes != NOBODY).sum(axis=1) > 1
        found: Mask = several & ~self._dead[nodes].any(axis=1)
        return found

    def lives(self, units: slice) -> Mask:
        """There is a replica that is not on a dead node."""
        nodes = self._what.state.node[units]
        found: Mask = ((nodes != NOBODY) & ~self._dead[nodes]).any(axis=1)
        return found

    def chosen(
        self, candidates: list[Due], why: Callable[[str, int], str]
    ) -> Iterator[TabletRepair]:
        """Those for which there is room, the oldest first; ``why`` gets the table and when it was repaired."""
        among = {each.units.start: each.among for each in candidates}
        for unit, at_ms in _oldest(candidates):
            name, tablet = self._what.tablet(unit)
            named = among[unit - tablet]
            if self.takes(unit, named):
                yield TabletRepair(
                    table=name,
                    tablet=tablet,
                    of=self._what.tablets_of(name),
                    why=why(name, at_ms),
                    nodes=named.nodes,
                    dcs=named.dcs,
                )

    def takes(self, unit: int, among: Among = ALL, *, alone: bool = False) -> bool:
        """Whether there is room: each of its replicas that take part reads and writes, one ``alone`` too if it
        has to.
        """
        nodes, alive = self._what.state.node[unit], self._named(among) & ~self._dead
        slot = self._what.state.slot
        shards = [slot(unit, node) for node in nodes[alive[nodes]].tolist() if node >= 0]
        working = shards if alone or len(shards) > 1 else []
        if not all(self._is_free(shard) for shard in working):
            return False
        for shard in working:
            self._reading[shard] += REPAIR_WEIGHT
            self._writing[shard] += REPAIR_WEIGHT
        self._busy[unit] = True
        return True

    def _is_free(self, shard: int) -> bool:
        return fits(int(self._reading[shard]), self._limits.reads, REPAIR_WEIGHT) and fits(
            int(self._writing[shard]), self._limits.writes, REPAIR_WEIGHT
        )


def _by_node(which: Iterable[bool]) -> Mask:
    """By the node's number; ``NOBODY`` is at the end."""
    return np.array([*which, False])


def _oldest(candidates: list[Due]) -> Iterator[tuple[int, int]]:
    """Unit and time of those that were repaired longest ago, as many as are looked at."""
    if not candidates:
        return
    times = np.concatenate([each.times[each.due] for each in candidates])
    units = np.concatenate([each.units.start + np.flatnonzero(each.due) for each in candidates])
    if len(times) > MOST_LOOKED_AT:
        first = np.argpartition(times, MOST_LOOKED_AT)[:MOST_LOOKED_AT]
        times, units = times[first], units[first]
    order = np.lexsort((units, times))
    yield from zip(units[order].tolist(), times[order].tolist(), strict=True)


def _why_asked(image: Image, wanted: Mapping[str, Request], name: str) -> str:
    table = image.schema.table_named(name)
    assert table is not None, "it was chosen of those that stand"
    request = wanted[table.table_id]
    reason = f": {request.reason}" if request.reason else ""
    what = f"{name}{request.among.words()}"
    return f"{request.actor or 'somebody'} has asked for the repair of {what}{reason}"


def _why_late(at_ms: int, now_ms: int) -> str:
    if not at_ms:
        return "it was never repaired"
    return f"it was repaired {(now_ms - at_ms) / HOUR_MS:,.1f} h ago"
