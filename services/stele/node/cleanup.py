"""CLEANUP orders: delete the data of ranges that are not this node's any more.

Nothing is deleted of a range that the node reads, writes, or is about to gain, and nothing once the
topology has moved on: the version is checked before each batch, and batches queue before later writes.
"""

from typing import Final

from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Placement, Range
from stele.domain.ring.tokens import MIN_TOKEN
from stele.log.follower import LogFollower
from stele.node.orders import OrderProgress
from stele.node.store import Size, Span, Store

BATCH_ROWS: Final = 200
"""Rows deleted in one transaction: a few milliseconds in which small writes wait."""


class CleanupStopped(Exception):
    """The topology has moved on since the order; the coordinator orders anew."""


def foreign_ranges(image: Image, node_id: str, keyspace: str) -> list[Range]:
    """Ranges of the keyspace that are not the node's, in ring order; all of a keyspace that is gone."""
    placement = image.placement_of(keyspace)
    if placement is None:
        return [Range(MIN_TOKEN, MIN_TOKEN)]
    foreign = [
        Range(row.start, row.end)
        for row in placement.rows
        if node_id not in row.reads and node_id not in row.writes
    ]
    return [range_ for range_ in foreign if not _in_operation(image, node_id, placement, range_)]


class Cleaner:
    """Carries CLEANUP orders out for one node."""

    def __init__(self, node_id: str, follower: LogFollower, store: Store) -> None:
        self._node_id = node_id
        self._follower = follower
        self._store = store

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Raises CleanupStopped; what was deleted until then stays deleted."""
        image = self._follower.image
        spans = [
            Span(keyspace, range_.start, range_.end)
            for keyspace in await self._store.keyspaces()
            for range_ in foreign_ranges(image, self._node_id, keyspace)
        ]
        progress.bytes_total = (await self._store.measure(spans)).size_bytes
        for span in spans:
            deleted = Size(BATCH_ROWS, 0)
            while deleted.keys == BATCH_ROWS:
                self._check(order, image, span.keyspace)
                deleted = await self._store.delete(span, BATCH_ROWS)
                progress.add(deleted.size_bytes, deleted.keys)
        self._check(order, image, "")

    def _check(self, order: Order, before: Image, keyspace: str) -> None:
        """Still the order's version, with nothing in transition, and the keyspace's very placement?"""
        now = self._follower.image
        version, fence = now.topology.topology.version, now.topology.topology.fence_version
        if version != order.version or now.topology.operation is not None:
            raise CleanupStopped(
                f"the topology is at version {version}, the order was for {order.version}"
            )
        if fence != version:  # requests of the version before may still write what is foreign now
            raise CleanupStopped(f"versions from {fence} on are still served, not only {version}")
        if now.placement_of(keyspace) is not before.placement_of(keyspace):
            raise CleanupStopped(f"keyspace {keyspace} was dropped or made meanwhile")


def _in_operation(image: Image, node_id: str, placement: Placement, range_: Range) -> bool:
    """Does the operation under way give the node a part of this range, or take one away?"""
    operation = image.topology.operation
    if operation is None:
        return False
    return any(
        node_id in row.old or node_id in row.new
        for plan in operation.plans.values()
        for row in plan.rows
        if any(
            range_.start == cut.start for cut in placement.overlapping(Range(row.start, row.end))
        )
    )
