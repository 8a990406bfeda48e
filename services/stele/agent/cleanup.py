"""CLEANUP orders: delete the data of ranges that are not this node's any more.

Of a transition they are for the ranges of its plans alone: of tablets that this node has no more, or not
after all, or on another of its shards. Nothing is deleted of a range that the shard reads, writes, or is
about to gain. Rounds of other transitions go on meanwhile, so that is looked at anew for each batch, in the
very turn in which the batch takes its place in the store's order: a write or a streamed row that comes with a
later epoch is behind it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from stele.agent.orders import OrderProgress
from stele.agent.partitions import parted
from stele.agent.spans import Span
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.topology.wanted import is_foreign, is_wanted, left_behind
from stele.log.follower import LogFollower

BATCH_ROWS: Final = 200
"""Rows deleted in one transaction: a few milliseconds in which small writes wait."""


class CleanupStopped(Exception):
    """The topology has moved on since the order; the coordinator orders anew."""


def foreign_ranges(image: Image, node_id: str, data_id: str, shard: int = 0) -> list[Range]:
    """Ranges of a keyspace's data that are not the shard's, in ring order; all of what is gone."""
    keyspace = image.schema.of_data(data_id)
    if keyspace is None:
        return [Range(MIN_TOKEN, MIN_TOKEN)]
    rows = image.ring.placements[keyspace.placement].rows
    ranges = (Range(row.start, row.end) for row in rows if shard not in row.shards_of(node_id))
    return [range_ for range_ in ranges if is_foreign(image, node_id, data_id, range_, shard)]


class Sized(Protocol):
    """So many rows, of so many bytes together."""

    @property
    def keys(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class Deletable(Protocol):
    """A store's data, as far as it is to be deleted. A span names a partition (``agent.partitions``)."""

    async def partitions(self) -> Sequence[str]: ...
    async def measure(self, spans: Sequence[Span]) -> Sized: ...
    async def delete(self, span: Span, limit: int, may_delete: Callable[[], bool]) -> Sized:
        """Delete so many rows at most, if ``may_delete`` says so in the very turn, and sync it."""
        ...


async def delete_all(
    store: Deletable,
    spans: Sequence[Span],
    may_delete: Callable[[Span], bool],
    progress: OrderProgress,
) -> None:
    """Delete the spans' rows in batches, each when it may be in its turn."""
    progress.bytes_total = (await store.measure(spans)).size_bytes
    for span in spans:
        keys = BATCH_ROWS
        while keys == BATCH_ROWS:
            deleted = await store.delete(span, BATCH_ROWS, partial(may_delete, span))
            progress.add(deleted.size_bytes, deleted.keys)
            keys = deleted.keys


class Cleaner:
    """Carries CLEANUP orders out for one node."""

    def __init__(self, node_id: str, follower: LogFollower, store: Deletable) -> None:
        self._node_id = node_id
        self._follower = follower
        self._store = store

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Raises CleanupStopped; what was deleted until then stays deleted."""
        stored = await self._store.partitions()
        image = self._follower.image
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
                if parted(partition)[0] == data.data_id
                for row in plan.rows
            ]
        await delete_all(self._store, spans, partial(self._may_delete, order), progress)
        self._check(order)

    def _may_delete(self, order: Order, span: Span) -> bool:
        """False when the range has become the node's, or is about to."""
        self._check(order)
        image, range_ = self._follower.image, Range(span.start, span.end)
        data_id, shard = parted(span.keyspace)
        if image.topology.of_session(order.session) is not None:
            return left_behind(image, order, data_id, range_, shard)
        return is_foreign(image, self._node_id, data_id, range_, shard)

    def _check(self, order: Order) -> None:
        if not is_wanted(self._follower.image, order):
            raise CleanupStopped("the log asks for another cleanup, or for none any more")
