"""CLEANUP orders: delete the data of ranges that this node no longer owns.

The order of a transition covers only the ranges of its plans. These are tablets that this node has
lost, has not received after all, or has on another of its shards. Data of a range is kept if the
shard reads it, writes it, or is about to gain it.

Rounds of other transitions continue meanwhile, so this is checked again for each batch. The check
runs in the turn of the event loop in which the batch takes its place in the store's order. A write
or a streamed row of a later epoch is therefore behind the batch.

Data that the log does not have was dropped, and is deleted. The exception is ``unknown_data``. Its
creation may have been lost with the end of an earlier log, so its rows are kept
(``Identity.unknown_data``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from stele.agent.orders import OrderProgress
from stele.agent.stores import Span, parted
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.schema import change_log_of, owner_of
from stele.domain.ring.ranges import MIN_TOKEN, Range
from stele.domain.topology.live_copies import is_foreign, is_to_be_deleted, is_wanted
from stele.log.follower import LogFollower

BATCH_ROWS: Final = 200
"""Rows deleted in one transaction. Small writes wait for a few milliseconds meanwhile."""


class CleanupStopped(Exception):
    """The topology has changed since the order. The coordinator sends a new order."""


def foreign_ranges(image: Image, node_id: str, data_id: str, shard: int = 0) -> list[Range]:
    """Return the ranges of data that are not the shard's, in ring order.

    The data of a dropped keyspace or table is foreign on the whole ring.
    """
    keyspace = image.schema.of_data(data_id)
    if keyspace is None:
        return [Range(MIN_TOKEN, MIN_TOKEN)]
    rows = image.ring.placements[keyspace.placement].rows
    ranges = (Range(row.start, row.end) for row in rows if shard not in row.shards_of(node_id))
    return [range_ for range_ in ranges if is_foreign(image, node_id, data_id, range_, shard)]


class Sized(Protocol):
    """A number of rows and their total size in bytes."""

    @property
    def keys(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class Deletable(Protocol):
    """The part of a store that cleanup needs. A span names a partition (``agent.stores.Span``)."""

    async def partitions(self) -> Sequence[str]: ...
    async def measure(self, spans: Sequence[Span]) -> Sized: ...
    async def delete(self, span: Span, limit: int, may_delete: Callable[[], bool]) -> Sized:
        """Delete at most ``limit`` rows, and sync that.

        Call ``may_delete`` in the turn in which the deletion takes its place in the store's order,
        and delete nothing if it returns False.
        """
        ...


async def delete_all(
    store: Deletable,
    spans: Sequence[Span],
    may_delete: Callable[[Span], bool],
    progress: OrderProgress,
) -> None:
    """Delete the rows of the spans in batches.

    Each batch is deleted only if ``may_delete`` allows it in its turn.
    """
    progress.bytes_total = (await store.measure(spans)).size_bytes
    for span in spans:
        keys = BATCH_ROWS
        # A batch that is not full is the last one of its span, or was not permitted.
        while keys == BATCH_ROWS:
            deleted = await store.delete(span, BATCH_ROWS, partial(may_delete, span))
            progress.add(deleted.size_bytes, deleted.keys)
            keys = deleted.keys


class Cleaner:
    """Executes CLEANUP orders for one node.

    ``unknown_data`` returns the ids of data that must be kept.
    """

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        store: Deletable,
        unknown_data: Callable[[], Collection[str]],
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._store = store
        self._unknown_data = unknown_data

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Delete what the order covers.

        Rows deleted before an error stay deleted. Raises CleanupStopped.
        """
        partitions = await self._store.partitions()
        image = self._follower.image
        stored = [each for each in partitions if not self._is_unknown(image, parted(each)[0])]
        transition = image.topology.of_session(order.session)
        if transition is None:
            spans = [
                Span(partition, range_.start, range_.end)
                for partition in stored
                for range_ in foreign_ranges(image, self._node_id, *parted(partition))
            ]
        else:
            spans = [
                Span(partition, row.start, row.end)
                for name, plan in transition.plans.items()
                for data in image.schema.using(name)
                for partition in stored
                if parted(partition)[0] in (data.data_id, change_log_of(data.data_id))
                for row in plan.rows
            ]
        await delete_all(self._store, spans, partial(self._may_delete, order), progress)
        # The order may have ended since the last batch: then this is no success.
        self._check(order)

    def _is_unknown(self, image: Image, data_id: str) -> bool:
        """Return whether the log lacks this data without a proof that it was dropped."""
        return image.schema.of_data(data_id) is None and data_id in self._unknown_data()

    def _may_delete(self, order: Order, span: Span) -> bool:
        """Return False if the node has the range again, or is about to gain it."""
        self._check(order)
        image, range_ = self._follower.image, Range(span.start, span.end)
        data_id, shard = parted(span.keyspace)
        if image.topology.of_session(order.session) is not None:
            return is_to_be_deleted(image, order, data_id, range_, shard)
        return is_foreign(image, self._node_id, data_id, range_, shard)

    def _check(self, order: Order) -> None:
        if not is_wanted(self._follower.image, order):
            raise CleanupStopped("the log asks for another cleanup, or for none any more")


# TRUNCATE orders: delete the data that a keyspace or table held before it was truncated.
#
# A truncation gives the data a new id (docs/design.md, rule 36). After this node has applied it,
# requests with the old id are refused. Writes and streamed rows are refused in the turn in which
# they would take their place in the store's order. The rows to delete are therefore complete.


class Truncator:
    """Executes TRUNCATE orders for one node."""

    def __init__(self, follower: LogFollower, store: Deletable) -> None:
        self._follower = follower
        self._store = store

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Delete the old data.

        A second run continues where the first one stopped. Raises StoreError.
        """
        transition = self._follower.image.topology.of_session(order.session)
        assert transition is not None  # the session is open
        truncated = transition.table_id or transition.keyspace_id
        spans = [
            Span(partition, MIN_TOKEN, MIN_TOKEN)
            for partition in await self._store.partitions()
            if self._is_gone(partition) and owner_of(parted(partition)[0]) == truncated
        ]
        await delete_all(self._store, spans, lambda span: self._is_gone(span.keyspace), progress)

    def _is_gone(self, partition: str) -> bool:
        data_id, _ = parted(partition)
        return self._follower.image.schema.of_data(data_id) is None
