"""The loads of tablets and nodes: the newest reports, and their combination (Scylla's load_stats).

A node that is down continues to count with its last report. A node's report may lack a tablet that
it had before. The tablet has moved, or the node has restarted and its counters are empty. The
earlier values count until a node reports the tablet again.
"""

from collections.abc import Iterator, Mapping, Set
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from immutables import Map

from stele.domain.acks import is_newer
from stele.domain.image import Image
from stele.domain.messages import Load
from stele.domain.names import NodeState
from stele.domain.tablets.tablet_stats import (
    Reals,
    StatsPart,
    TabletStats,
    mean_of,
    noted,
    part_of,
    resized,
    side_by_side,
)

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
