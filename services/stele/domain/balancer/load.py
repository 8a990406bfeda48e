"""The loads of tablets and nodes as reported, and the measure of balance."""

from collections.abc import Iterator, Mapping, Set
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from immutables import Map
from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.messages import Load
from stele.domain.model.settings import BALANCE_BY, MINIMAL_RATE, RATE_WEIGHT
from stele.domain.model.tablet_stats import (
    Reals,
    StatsPart,
    TabletStats,
    mean_of,
    noted,
    part_of,
    resized,
    side_by_side,
)
from stele.domain.names import NodeState
from stele.domain.planner.cluster import BalanceBy
from stele.domain.planner.state import heat_of
from stele.domain.tablets.maps import summed
from stele.domain.topology.barriers import is_newer

# A node that is down continues to count with its last report. A node's report may lack a tablet
# that it had before. The tablet has moved, or the node has restarted and its counters are empty.
# The earlier values count until a node reports the tablet again (Scylla's load_stats).


CRITICAL_USE: Final = 0.98
"""Fraction of a disk. A node whose disk is this full receives nothing."""


class Reported(msgspec.Struct, frozen=True):
    """A node's newest report, with its parts by data id.

    ``at_s`` is the time at which it was sent, in seconds of the reader's clock.
    """

    load: Load
    at_s: float
    parts: dict[str, StatsPart]
    capacity_bytes: int
    """Bytes of the disk available to tablets: the free bytes and those that tablets use."""


class LoadTable(msgspec.Struct, frozen=True):
    """The newest load of each node. Late and repeated reports change nothing."""

    by_node: Map[str, Reported] = Map()
    left: Map[str, StatsPart] = Map()
    """By data id earlier values of tablets that nodes no longer report."""
    heat: Map[str, Reals] = Map()
    """By data id the heat of its tablets that was used last; see ``heat``."""

    def with_load(self, load: Load, at_s: float) -> "LoadTable":
        """Return the table with a report that was sent at ``at_s``.

        ``Load.flaw`` has accepted its numbers.
        """
        known = self.by_node.get(load.node_id)
        if known is not None and not _is_newer(load, at_s, known):
            return self
        parts = {table.data_id: part_of(table) for table in load.tables}
        held = sum(sum(table.sizes_bytes) for table in load.tables)
        reported = Reported(load, at_s, parts, load.disk_free_bytes + held)
        # Otherwise a hot tablet that has moved would look idle, and its new node would get the next
        # one.
        left = self.left
        for data_id, before in known.parts.items() if known is not None else ():
            found = noted(left.get(data_id), before, parts.get(data_id))
            left = left if found is None else left.set(data_id, found)
        return msgspec.structs.replace(
            self, by_node=self.by_node.set(load.node_id, reported), left=left
        )

    def current(self, image: Image) -> "LoadTable":
        """Return the table without reports and values that no longer count.

        Reports are dropped if the node has left, or if they come from another data directory or
        log. Earlier values of deleted data are dropped, too. A report ahead of the image stays,
        because the image may lack a newer change.
        """
        by_node, left = self.by_node, self.left
        for node_id, reported in self.by_node.items():
            if not _counts(image, reported.load):
                by_node = by_node.delete(node_id)
        for data_id in self.left:
            if image.schema.of_data(data_id) is None:
                left = left.delete(data_id)
        return msgspec.structs.replace(self, by_node=by_node, left=left)

    def stats(self, data_id: str, count: int) -> TabletStats:
        """Return the known values of the tablets of one map; see ``stats_of``."""
        return self.stats_of({data_id: count})[data_id]

    def stats_of(self, counts: Mapping[str, int]) -> dict[str, TabletStats]:
        """Return the known values of tablets, for one replica of each, by data id.

        ``counts`` are the numbers of tablets in the maps. Each value is the mean over the replicas
        that report it, NaN if none does. Reports by a map of another count are converted.
        """
        # All maps at once, since a few operations for each of thousands of maps take long.
        ends = dict(zip(counts, accumulate(counts.values()), strict=True))

        def placed(parts: Mapping[str, StatsPart]) -> Iterator[tuple[int, StatsPart]]:
            for data_id in counts.keys() & parts.keys():
                count = counts[data_id]
                yield ends[data_id] - count, resized(parts[data_id], count)

        total = sum(counts.values())
        reported = [each for node in self.by_node.values() for each in placed(node.parts)]
        found, known = mean_of(reported, total)
        left = [*placed(self.left)]
        if left:
            at, stats = side_by_side(left)
            found[:, at] = np.where(known[:, at], found[:, at], stats)
        return {
            data_id: TabletStats(found[:, end - counts[data_id] : end])
            for data_id, end in ends.items()
        }

    def capacity_bytes(self, node_id: str) -> int | None:
        """Return the bytes of a node's disk available to tablets, None without a report."""
        reported = self.by_node.get(node_id)
        return None if reported is None else reported.capacity_bytes

    def age_s(self, node_id: str, now_s: float) -> float | None:
        """Return the seconds since a node's newest report was sent, None without a report."""
        reported = self.by_node.get(node_id)
        return None if reported is None else max(0.0, now_s - reported.at_s)

    def full(self) -> frozenset[str]:
        """Return the nodes whose disks are too full to receive anything."""
        loads = (reported.load for reported in self.by_node.values())
        return frozenset(
            load.node_id
            for load in loads
            if load.disk_free_bytes <= (1 - CRITICAL_USE) * load.disk_total_bytes
        )


NO_LOADS: Final = LoadTable()


def _is_newer(load: Load, at_s: float, known: Reported) -> bool:
    """Return True if the report replaces the known one. A report of another log always does."""
    other_log = load.log_id != known.load.log_id
    return other_log or is_newer(load, known.load, at_s - known.at_s)


def _counts(image: Image, load: Load) -> bool:
    node = image.membership.nodes.get(load.node_id)
    if load.log_id != image.log_id or (node is not None and node.state is NodeState.LEFT):
        return False
    return load.epoch > image.epoch or (node is not None and node.host_id == load.host_id)


# The balancer's inputs besides the log.


class Conditions(NamedTuple):
    """The balancer's inputs besides the log.

    ``down`` are members that are down. ``avoided`` are nodes to which moves have just failed;
    ``failing`` are those from which moves have just failed, and these neither give nor get.
    ``loads`` are the nodes' reports. ``now_ms`` is the time in milliseconds since 1970, 0 without a
    clock. ``paused`` are tablets, by table id and number, whose repair or loss of a replica has
    just failed.
    """

    down: Set[str] = frozenset()
    avoided: Set[str] = frozenset()
    loads: LoadTable = NO_LOADS
    now_ms: int = 0
    paused: Set[tuple[str, int]] = frozenset()
    failing: Set[str] = frozenset()

    def shut(self) -> frozenset[str]:
        """Return the nodes that receive nothing now, including those with full disks."""
        return frozenset(self.down | self.avoided | self.failing | self.loads.full())

    def are_paused(self, table_id: str, count: int) -> npt.NDArray[np.bool_]:
        """Return the mask of a table's tablets that are paused."""
        found = np.zeros(count, np.bool_)
        found[[at for id_, at in self.paused if id_ == table_id and at < count]] = True
        return found


NO_CONDITIONS: Final = Conditions()


# The measure of balance: bytes and rates where nodes report them, otherwise counts of replicas.


NAMED: Final = 5
"""Largest number of nodes named in a reason."""


class Measure(msgspec.Struct, frozen=True):
    """The measure and its reason.

    By size, ``rate_weight`` percent of a tablet's load are its rate.
    """

    by: BalanceBy
    why: str
    rate_weight: int = 0


def measure_of(image: Image, loads: LoadTable, heats: Mapping[str, Reals]) -> Measure:
    """Return the measure: size if a node that takes tablets has reported and the setting allows it.

    The planner leaves out nodes without a report. A tablet that no node has reported is new or was
    truncated, and counts as empty and idle until one does. ``heats`` are those of the tablets, by
    data id.
    """
    wanted = BALANCE_BY.of(image.features.settings)
    if wanted == BalanceBy.COUNT:
        return Measure(BalanceBy.COUNT, f"{BALANCE_BY.name} is {wanted}")
    going = image.requests.going()
    room = [node_id for node_id in image.membership.holding() if node_id not in going]
    unknown = [node_id for node_id in room if loads.capacity_bytes(node_id) is None]
    named = ", ".join(unknown[:NAMED])
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    if len(unknown) == len(room):
        return Measure(BalanceBy.COUNT, f"no load is known of {named}{more}")
    why, weight = f"the loads of all {len(room)} nodes are known", 0
    if unknown:
        why = f"the loads of {len(room) - len(unknown)} of {len(room)} nodes are known"
        why += f"; {named}{more} did not report, and tablets are not evened out there"
    if any(np.nansum(heat) > 0 for heat in heats.values()):
        weight = RATE_WEIGHT.of(image.features.settings)
    if weight:
        why += f"; reads and writes count for {weight} %, bytes for {100 - weight} %"
    return Measure(BalanceBy.SIZE, why, weight)


# The weight of tablets' rates in comparison with their bytes.
#
# A tablet's heat is its rate divided by the mean over all tablets. A day with twice as many reads
# therefore changes nothing. A least mean applies, so that a few operations do not weigh as much as
# gigabytes.
#
# Rates always fluctuate, and that must not move tablets. A tablet therefore keeps its heat until the
# new one differs clearly.


STEADY: Final = 1.25
"""Factor between two heats that differ clearly. Smoothed rates of a steady load fluctuate by
less.
"""
SLIGHT: Final = 0.1
"""Fraction of the mean. Smaller differences are ignored."""


def known_stats(image: Image, loads: LoadTable) -> dict[str, TabletStats]:
    """Return the known values of all maps that are not being dropped, by the owner's data id."""
    placements, groups = image.ring.placements, image.schema.tablet_groups
    counts = {
        table.data_id: len(placements[group.owner.placement])
        for group in groups
        for table in group.tables
    }
    stats = loads.stats_of(counts)
    return {
        group.data.data_id: summed([stats[table.data_id] for table in group.tables])
        for group in groups
    }


def heats(
    stats: Mapping[str, TabletStats], before: Mapping[str, Reals], least_per_s: float
) -> dict[str, Reals]:
    """Return by data id the heat of each tablet, NaN if its rate is unknown.

    ``before`` are the heats of the last time. They are ignored for a table whose number of tablets
    has changed.
    """
    if not stats:
        return {}
    # All maps at once, since a few operations for each of thousands of maps take long.
    all_ = TabletStats(np.concatenate([each.columns for each in stats.values()], axis=1))
    heat, begin, places = heat_of(all_.rates, least_per_s), 0, dict[str, slice]()
    for data_id, each in stats.items():
        end = begin + each.columns.shape[1]
        places[data_id], begin = slice(begin, end), end
    if before:
        earlier = list[Reals]()
        for data_id, place in places.items():
            known = before.get(data_id, heat[:0])
            same = len(known) == place.stop - place.start
            earlier.append(known if same else heat[place])
        heat = _steady(np.concatenate(earlier), heat)
    return {data_id: heat[place] for data_id, place in places.items()}


def with_heat(image: Image, loads: LoadTable) -> LoadTable:
    """Return loads with the present heats. One call for each new report is enough."""
    least = MINIMAL_RATE.of(image.features.settings)
    return replace(loads, heat=Map(heats(known_stats(image, loads), loads.heat, least)))


def _steady(before: Reals, now: Reals) -> Reals:
    # In 500 reports with rates that fluctuate by a tenth nothing moves. Without this memory
    # something moves within 100 (docs/decisions/022-rates-count-as-they-were.md).
    near = np.abs(now - before) <= SLIGHT
    near |= (now <= before * STEADY) & (before <= now * STEADY)
    return np.where(near | np.isnan(now), before, now)
