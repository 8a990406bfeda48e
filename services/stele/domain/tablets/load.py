"""What tablets and nodes weigh: the newest reports of all nodes, and what they say together (Scylla's
load_stats).

A node that is down goes on to count with what it said last. What a node tells of a tablet no more, since that
has moved, stands until somebody else tells of it.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from immutables import Map

from stele.domain.acks import is_newer
from stele.domain.image import Image
from stele.domain.messages import Load
from stele.domain.names import NodeState

CRITICAL_USE: Final = 0.98
"""Of a disk: a node whose disk is as full as this gets nothing."""

Sizes = npt.NDArray[np.float64]


class _Part(NamedTuple):
    """Some tablets of a map ``of`` so many, and the bytes of each."""

    of: int
    tablets: npt.NDArray[np.int64]
    sizes: Sizes


class Reported(msgspec.Struct, frozen=True):
    """A node's newest report, when it was sent (seconds of the reader's clock), and its parts by data id."""

    load: Load
    at_s: float
    parts: dict[str, _Part]
    capacity_bytes: int
    """What its tablets may have of the disk: what is free, and what they have."""


class LoadTable(msgspec.Struct, frozen=True):
    """Newest load by node. Late and doubled reports change nothing."""

    by_node: Map[str, Reported] = Map()
    left: Map[str, _Part] = Map()
    """By data id the tablets that a node has told of before, and tells of no more."""

    def with_load(self, load: Load, at_s: float) -> "LoadTable":
        """With a report that was sent at ``at_s``; its numbers make sense (``Load.flaw``)."""
        known = self.by_node.get(load.node_id)
        if known is not None and not _is_newer(load, at_s, known):
            return self
        parts = {
            t.data_id: _Part(
                t.tablet_count,
                np.array(t.tablets, np.int64),
                np.array(t.sizes_bytes, np.float64),
            )
            for t in load.tables
        }
        held = sum(sum(table.sizes_bytes) for table in load.tables)
        reported = Reported(load, at_s, parts, load.disk_free_bytes + held)
        left = self.left
        for data_id, before in known.parts.items() if known is not None else ():
            left = _noted(left, data_id, before, parts.get(data_id))
        return LoadTable(self.by_node.set(load.node_id, reported), left)

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
        return LoadTable(by_node, left)

    def tablet_sizes(self, data_id: str, count: int) -> Sizes:
        """Bytes of each tablet of a map of ``count``, of one replica: the mean over the replicas that are
        known, NaN where none is. Reports by a map of another count are taken over to this one.
        """
        sums, replicas = np.zeros(count), np.zeros(count, np.int64)
        for reported in self.by_node.values():
            part = _resized(reported.parts.get(data_id), count)
            sums[part.tablets] += part.sizes
            replicas[part.tablets] += 1
        found = np.full(count, np.nan)
        np.divide(sums, replicas, out=found, where=replicas > 0)
        part = _resized(self.left.get(data_id), count)
        lacks = replicas[part.tablets] == 0
        found[part.tablets[lacks]] = part.sizes[lacks]
        return found

    def table_bytes(self, data_id: str, count: int) -> float | None:
        """Bytes of a whole table of ``count`` tablets, of one replica of each; None unless all are known."""
        total = float(self.tablet_sizes(data_id, count).sum())
        return None if np.isnan(total) else total

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
_NOTHING: Final = _Part(1, np.zeros(0, np.int64), np.zeros(0))


def _is_newer(load: Load, at_s: float, known: Reported) -> bool:
    """What speaks of another log than before begins anew."""
    other_log = load.log_id != known.load.log_id
    return other_log or is_newer(load, known.load, at_s - known.at_s)


def _counts(image: Image, load: Load) -> bool:
    node = image.membership.nodes.get(load.node_id)
    if load.log_id != image.log_id or (node is not None and node.state is NodeState.LEFT):
        return False
    return load.epoch > image.epoch or (node is not None and node.host_id == load.host_id)


def _noted(
    left: Map[str, _Part], data_id: str, before: _Part, now: _Part | None
) -> Map[str, _Part]:
    """With the tablets that a node had before and has no more."""
    count = before.of if now is None else now.of
    before = _resized(before, count)
    gone = ~np.isin(before.tablets, () if now is None else now.tablets)
    if not gone.any():
        return left
    known = _resized(left.get(data_id), count)
    others = ~np.isin(known.tablets, before.tablets[gone])
    tablets = np.concatenate((known.tablets[others], before.tablets[gone]))
    sizes = np.concatenate((known.sizes[others], before.sizes[gone]))
    return left.set(data_id, _Part(count, tablets, sizes))


def _resized(part: _Part | None, count: int) -> _Part:
    """A part by a map of ``count``: split tablets have equal shares, merged ones the sum of all they were.

    What was not told of a tablet in whole is left out; so are counts of which neither is a multiple.
    """
    if part is None or part.of == count:
        return part or _NOTHING
    if count % part.of == 0:
        times = count // part.of
        tablets = (part.tablets[:, None] * times + np.arange(times)).ravel()
        return _Part(count, tablets, np.repeat(part.sizes / times, times))
    if part.of % count == 0:
        times = part.of // count
        tablets, at, pieces = np.unique(
            part.tablets // times, return_inverse=True, return_counts=True
        )
        whole = pieces == times
        return _Part(count, tablets[whole], np.bincount(at, part.sizes, len(tablets))[whole])
    return _NOTHING
