"""What tablets and nodes weigh: the newest reports of all nodes, and what they say together (Scylla's
load_stats).

A node that is down goes on to count with what it said last. What a node tells of a tablet no more, since that
has moved or the node has started anew and counts from nothing, stands until somebody tells of it.
"""

from typing import Final

import msgspec
import numpy as np
from immutables import Map

from stele.domain.acks import is_newer
from stele.domain.image import Image
from stele.domain.messages import Load
from stele.domain.names import NodeState
from stele.domain.tablets.tablet_stats import (
    Part,
    Reals,
    TabletStats,
    mean_of,
    noted,
    part_of,
    resized,
)

CRITICAL_USE: Final = 0.98
"""Of a disk: a node whose disk is as full as this gets nothing."""


class Reported(msgspec.Struct, frozen=True):
    """A node's newest report, when it was sent (seconds of the reader's clock), and its parts by data id."""

    load: Load
    at_s: float
    parts: dict[str, Part]
    capacity_bytes: int
    """What its tablets may have of the disk: what is free, and what they have."""


class LoadTable(msgspec.Struct, frozen=True):
    """Newest load by node. Late and doubled reports change nothing."""

    by_node: Map[str, Reported] = Map()
    left: Map[str, Part] = Map()
    """By data id what nodes have reported of tablets before, and tell no more."""
    heat: Map[str, Reals] = Map()
    """By data id how much the rates of its tablets counted last; see ``heat``."""

    def with_load(self, load: Load, at_s: float) -> "LoadTable":
        """With a report that was sent at ``at_s``; its numbers make sense (``Load.flaw``)."""
        known = self.by_node.get(load.node_id)
        if known is not None and not _is_newer(load, at_s, known):
            return self
        parts = {table.data_id: part_of(table) for table in load.tables}
        held = sum(sum(table.sizes_bytes) for table in load.tables)
        reported = Reported(load, at_s, parts, load.disk_free_bytes + held)
        left = self.left
        for data_id, before in known.parts.items() if known is not None else ():
            found = noted(left.get(data_id), before, parts.get(data_id))
            left = left if found is None else left.set(data_id, found)
        return msgspec.structs.replace(
            self, by_node=self.by_node.set(load.node_id, reported), left=left
        )

    def current(self, image: Image) -> "LoadTable":
        """Without reports of nodes that have left, of other data directories and of another log, and without
        what is left of data that is gone. What an image lacks that a report is ahead of may be to come.
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
        """All that is known of the tablets of a map of ``count``, of one replica: the mean over the replicas
        that tell, NaN where none does. Reports by a map of another count are taken over to this one.
        """
        parts = (resized(each.parts.get(data_id), count) for each in self.by_node.values())
        found, known = mean_of(parts, count)
        left = resized(self.left.get(data_id), count)
        lacks = ~known[:, left.tablets]
        found[:, left.tablets] = np.where(lacks, left.stats, found[:, left.tablets])
        return TabletStats(found)

    def capacity_bytes(self, node_id: str) -> int | None:
        """What a node's tablets may take of its disk; None when it never said."""
        reported = self.by_node.get(node_id)
        return None if reported is None else reported.capacity_bytes

    def age_s(self, node_id: str, now_s: float) -> float | None:
        """Seconds since a node's newest report was sent; None when there is none."""
        reported = self.by_node.get(node_id)
        return None if reported is None else max(0.0, now_s - reported.at_s)

    def full(self) -> frozenset[str]:
        """Nodes whose disks are too full to get anything."""
        loads = (reported.load for reported in self.by_node.values())
        return frozenset(
            load.node_id
            for load in loads
            if load.disk_free_bytes <= (1 - CRITICAL_USE) * load.disk_total_bytes
        )


NO_LOADS: Final = LoadTable()


def _is_newer(load: Load, at_s: float, known: Reported) -> bool:
    """What speaks of another log than before begins anew."""
    other_log = load.log_id != known.load.log_id
    return other_log or is_newer(load, known.load, at_s - known.at_s)


def _counts(image: Image, load: Load) -> bool:
    node = image.membership.nodes.get(load.node_id)
    if load.log_id != image.log_id or (node is not None and node.state is NodeState.LEFT):
        return False
    return load.epoch > image.epoch or (node is not None and node.host_id == load.host_id)
