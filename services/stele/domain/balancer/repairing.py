"""Choose the tablets to repair now. The model is ScyllaDB's tablet repair scheduler.

Tablets of tables whose repair was requested come first, then tablets whose last repair is too old.
In both groups the oldest repair comes first. The streams that moves leave free limit the number.

A tablet that moves or is under repair waits, as does one on a node that is down. A tablet whose
repair failed waits for a while. A scheduled repair needs two replicas, none of them on an excluded
node.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stele.domain.balancer.columns import Tablets
from stele.domain.balancer.load import Conditions
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove, TabletRepair, TabletRestore
from stele.domain.model.repairs import Ms
from stele.domain.model.requests import ALL, Among, Request
from stele.domain.model.schema import Table
from stele.domain.model.settings import AUTO_REPAIR, AUTO_REPAIR_THRESHOLD_S, ON
from stele.domain.planner.cluster import NodeRole
from stele.domain.planner.moves import REPAIR_WEIGHT, BalanceLimits, RunningStreams
from stele.domain.planner.state import NOBODY
from stele.domain.topology.operations.repairs import MAX_REPAIRS
from stele.domain.topology.operations.table_snapshots import MAX_RESTORES

MOST_LOOKED_AT: Final = 4096
"""Largest number of tablets examined in a round, the oldest first. Streams have no room for more.
"""
SECOND_MS: Final = 1000
HOUR_MS: Final = 3600 * SECOND_MS

Mask = npt.NDArray[np.bool_]


def repairs(
    image: Image,
    tablets: Tablets,
    conditions: Conditions,
    assigned: "RepairAssignments",
    resized: Set[str],
) -> list[TabletRepair]:
    """Return the repairs to begin in one round. Ages are computed from the times in the log.

    Tables that are ``resized`` in the same round wait.
    """
    asked, late = list[Due](), list[Due]()
    wanted = image.requests.table_repairs()
    for at, name in enumerate(tablets.names):
        table = image.schema.table_named(name)
        if table is None or name in resized:
            continue
        goal, after_s = wanted.get(table.table_id), threshold_s(image.features.settings, table)
        if goal is None and after_s is None:
            continue
        units = slice(tablets.first[at], tablets.first[at] + tablets.tablets_of(name))
        times = image.repairs.of(table.table_id, tablets.tablets_of(name))
        paused = conditions.are_paused(table.table_id, len(times))
        if goal is not None:
            restricted = goal.is_restricted
            since = image.repairs.of(table.table_id, len(times), restricted=restricted)
            # A tablet that was repaired after the request has nothing left to do for it.
            due = assigned.ready(units, goal.among) & ~paused & (since <= goal.submitted_ms)
            asked.append(Due(since, units, due, goal.among))
        # A full repair of the table covers the schedule. A restricted one does not count for it.
        if after_s is not None and (goal is None or goal.is_restricted):
            old = times < conditions.now_ms - SECOND_MS * after_s
            late.append(
                Due(times, units, assigned.ready(units) & ~paused & old & assigned.is_whole(units))
            )
    # Requested repairs take the streams before scheduled ones.
    return [
        *assigned.chosen(asked, lambda name, _: _why_asked(image, wanted, name)),
        *assigned.chosen(late, lambda _, at_ms: _why_late(at_ms, conditions.now_ms)),
    ][:MAX_REPAIRS]


def threshold_s(settings: Mapping[str, str], table: Table) -> int | None:
    """Return the largest age of a tablet's last repair in seconds, None without a schedule.

    A table's options take precedence over the settings of the log.
    """
    if (table.options.auto_repair_enabled or AUTO_REPAIR.of(settings)) != ON:
        return None
    return table.options.auto_repair_threshold or AUTO_REPAIR_THRESHOLD_S.of(settings)


class Due(NamedTuple):
    """Tablets of one table: times of the last repair, units, mask of due ones, and participants."""

    times: Ms
    units: slice
    due: Mask
    among: Among = ALL


class RepairAssignments:
    """The streams and tablets that one round has assigned so far."""

    def __init__(
        self,
        tablets: Tablets,
        conditions: Conditions,
        limits: BalanceLimits,
        moves: Iterable[TabletMove] = (),
    ) -> None:
        state = tablets.state
        self._tablets = tablets
        self._streams = RunningStreams.of(state, limits)
        self._busy = state.busy.copy()
        self._dead = _by_node(at == NodeRole.EXCLUDED for at in state.state.tolist())
        down = _by_node(node_id in conditions.down for node_id in tablets.node_ids)
        # An excluded node never returns, so repairs do not wait for it.
        self._silent = down & ~self._dead
        for move in moves:
            unit = tablets.first[tablets.place[move.table]] + move.tablet
            source, target = map(tablets.node_ids.index, (move.from_node, move.to_node))
            self._busy[unit] = True
            written = int(state.first_shard[target]) + max(move.to_shard, 0)
            self._streams.add(state.sources(unit, source), [written])

    def ready(self, units: slice, among: Among = ALL) -> Mask:
        """Return the mask of idle tablets whose participants are all up.

        Excluded nodes do not count.
        """
        nodes, silent = self._tablets.state.node[units], self._silent & self._named(among)
        found: Mask = ~self._busy[units] & ~silent[nodes].any(axis=1)
        return found

    def _named(self, among: Among) -> Mask:
        return _by_node(among.has(node.id, node.dc) for node in self._tablets.state.nodes)

    def is_whole(self, units: slice) -> Mask:
        """Return the mask of tablets with two or more replicas and none on a dead node."""
        nodes = self._tablets.state.node[units]
        several = (nodes != NOBODY).sum(axis=1) > 1
        found: Mask = several & ~self._dead[nodes].any(axis=1)
        return found

    def lives(self, units: slice) -> Mask:
        """Return the mask of tablets with a replica that is not on a dead node."""
        nodes = self._tablets.state.node[units]
        found: Mask = ((nodes != NOBODY) & ~self._dead[nodes]).any(axis=1)
        return found

    def chosen(
        self, candidates: list[Due], why: Callable[[str, int], str]
    ) -> Iterator[TabletRepair]:
        """Yield repairs while streams have room, the oldest first.

        ``why`` receives the table and the time of its last repair.
        """
        among = {each.units.start: each.among for each in candidates}
        for unit, at_ms in _oldest(candidates):
            name, tablet = self._tablets.tablet(unit)
            named = among[unit - tablet]
            if self.takes(unit, named):
                yield TabletRepair(
                    table=name,
                    tablet=tablet,
                    of=self._tablets.tablets_of(name),
                    why=why(name, at_ms),
                    nodes=named.nodes,
                    dcs=named.dcs,
                )

    def takes(self, unit: int, among: Among = ALL, *, alone: bool = False) -> bool:
        """Reserve the streams of a tablet and return True, or return False without room.

        Each participating replica reads and writes. A single replica needs streams only with
        ``alone``.
        """
        nodes, alive = self._tablets.state.node[unit], self._named(among) & ~self._dead
        slot = self._tablets.state.slot
        shards = [slot(unit, node) for node in nodes[alive[nodes]].tolist() if node >= 0]
        # A single replica has nothing to compare with. In a restore it still streams.
        working = shards if alone or len(shards) > 1 else []
        if not self._streams.reserve(working, working, REPAIR_WEIGHT):
            return False
        self._busy[unit] = True
        return True


def _by_node(which: Iterable[bool]) -> Mask:
    """Return a mask by the node's number. The last entry, False, is for ``NOBODY``."""
    return np.array([*which, False])


def _oldest(candidates: list[Due]) -> Iterator[tuple[int, int]]:
    """Yield unit and time of the tablets with the oldest repair, at most ``MOST_LOOKED_AT``."""
    if not candidates:
        return
    times = np.concatenate([each.times[each.due] for each in candidates])
    units = np.concatenate([each.units.start + np.flatnonzero(each.due) for each in candidates])
    if len(times) > MOST_LOOKED_AT:
        first = np.argpartition(times, MOST_LOOKED_AT)[:MOST_LOOKED_AT]
        times, units = times[first], units[first]
    # Ties are ordered by unit, so that the planner is deterministic (docs/design.md, rule 51).
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


# Choose the tablets to restore now, of tables that are being restored, while streams have room.
#
# Restores come before repairs and after moves. Tablets that move or are under repair wait. Tablets of
# a node that is down wait, and so do those on dead nodes only. A tablet whose restore failed waits
# for a while. All of them wait while a node that wrote the snapshot is down, because each needs its
# files.


def restores(
    image: Image,
    tablets: Tablets,
    conditions: Conditions,
    assigned: RepairAssignments,
    resized: Set[str],
) -> list[TabletRestore]:
    """Return the restores to begin in one round. Tables that are ``resized`` in it wait."""
    found = list[TabletRestore]()
    for restore_id in sorted(image.table_snapshots.restores):
        restore = image.table_snapshots.restores[restore_id]
        table = image.schema.tables[restore.table_id]
        name = image.schema.full_name(table)
        owner = image.schema.full_name(image.schema.tables[table.base_table_id or table.table_id])
        snapshot = image.table_snapshots.snapshots[restore.snapshot_id]
        # A writer that has left or is excluded is not waited for: the others were a quorum.
        writers = {part.node_id for part in snapshot.parts} & {*image.membership.taking_part()}
        if owner not in tablets.names or owner in resized or writers & conditions.down:
            continue
        first, of = tablets.first[tablets.place[owner]], tablets.tablets_of(owner)
        paused = conditions.are_paused(restore.table_id, of)
        units = slice(first, first + of)
        due = (restore.epochs.all() == 0) & assigned.ready(units) & assigned.lives(units) & ~paused
        why = f"restored from {snapshot.name}"
        found += [
            TabletRestore(table=name, tablet=tablet, of=of, why=why)
            for tablet in np.flatnonzero(due).tolist()
            if assigned.takes(first + tablet, alone=True)
        ]
    return found[:MAX_RESTORES]
