"""The trial store's part of STREAM orders: it receives whole pages, or only the rows that differ.

Rows merge by last write wins. Each page is synced before it is counted, so data that is reported as
done is on the disk. The agent chooses the sources of each range (``stele.agent.pulling``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from stele.agent.orders import OrderProgress
from stele.agent.pulling import Pace, Puller, Reading, Sessions
from stele.agent.stores import Span, page_bytes, placed, write_partitions
from stele.domain.messages import Order
from stele.domain.model.settings import stream_bytes_per_s
from stele.log.follower import LogFollower
from stele.node.cells import HybridClock, StoredCell
from stele.node.digests import Digest, SourceGone, differing
from stele.node.store import Cursor, SqliteStore
from stele.node.wire import Compare, Compared, Scan, Scanned


class Source(Protocol):
    """Reads pages and digests of other nodes; see ``peers.Peers``."""

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned: ...
    async def digests(self, node_id: str, address: str, compare: Compare) -> Compared: ...


class Streamer:
    """Executes STREAM orders for one node."""

    can_compare = True

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        sessions: Sessions,
        store: SqliteStore,
        clock: HybridClock,
        peers: Source,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._store = store
        self._clock = clock
        self._peers = peers
        self._on_bytes = on_bytes
        self._puller = Puller(node_id, follower, sessions, self)
        self._pace = Pace(self._limit_bytes_per_s)

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Pull the order's data. A second run continues where the first one stopped.

        Raises StreamFailed, SessionClosedError or StoreError.
        """
        await self._puller.run(order, progress)

    async def measure(self, reading: Reading, source: str, spans: Sequence[Span]) -> int | None:
        found = await self._scan(reading, source, spans, None, 0)
        return None if found is None else found.size_bytes

    async def pull(
        self,
        reading: Reading,
        source: str,
        spans: Sequence[Span],
        progress: OrderProgress,
        *,
        differing: bool,
    ) -> bool:
        if differing:
            return await self._pull_what_differs(reading, source, spans, progress)
        return await self._pull_rows(reading, source, spans, progress)

    async def _pull_what_differs(
        self, reading: Reading, source: str, spans: Sequence[Span], progress: OrderProgress
    ) -> bool:
        """Pull the rows of one source that this node lacks. Return False when the source stops."""

        def equal(digest: Digest) -> None:
            progress.add_compared(digest.size_bytes, source)

        theirs = partial(self._digests_of, reading, source)
        try:
            async for some in differing(spans, self._own_digests, theirs, equal):
                if not await self._pull_rows(reading, source, some, progress):
                    return False
        except SourceGone:
            return False
        return True

    async def _pull_rows(
        self, reading: Reading, source: str, spans: Sequence[Span], progress: OrderProgress
    ) -> bool:
        """Pull all rows of one source. Return False when the source stops."""
        cursor: Cursor | None = None
        while True:
            most = page_bytes(self._limit_bytes_per_s())
            page = await self._scan(reading, source, spans, cursor, most)
            if page is None:
                return False
            reading.guard.check()
            if page.rows:
                self._clock.see(max(row.timestamp for row in page.rows))
                await self._store.write(
                    page.rows,
                    partial(self._may_keep, reading, page.rows),
                    partial(self._into, page.rows),
                )
                reading.guard.check()
            # Count after the write: rows that are reported as done must be on the disk.
            self._on_bytes(page.size_bytes)
            await self._pace.took(page.size_bytes)
            progress.add(page.size_bytes, page.keys, source)
            cursor = page.cursor
            if cursor is None:
                return True

    def _limit_bytes_per_s(self) -> int:
        return stream_bytes_per_s(self._follower.image.features.settings)

    async def _own_digests(self, spans: Sequence[Span]) -> list[Digest | None]:
        return await self._store.digests(placed(self._follower.image, self._node_id, spans))

    def _into(self, rows: Sequence[StoredCell], place: int) -> Sequence[str]:
        row = rows[place]
        return write_partitions(self._follower.image, self._node_id, row.keyspace, row.token)

    def _may_keep(self, reading: Reading, rows: Sequence[StoredCell], place: int) -> bool:
        """Return whether the session is open and the data was not truncated in the meantime."""
        schema = self._follower.image.schema
        return reading.guard.is_open and schema.of_data(rows[place].keyspace) is not None

    async def _scan(
        self,
        reading: Reading,
        source: str,
        spans: Sequence[Span],
        cursor: Cursor | None,
        limit_bytes: int,
    ) -> Scanned | None:
        """Return a page, or None when the source does not answer. Raises SessionClosedError."""
        scan = Scan(
            epoch=reading.order.epoch,
            session=reading.order.session,
            spans=[*spans],
            cursor=cursor,
            limit_bytes=limit_bytes,
        )
        return await reading.answer(source, lambda at: self._peers.scan(source, at, scan))

    async def _digests_of(
        self, reading: Reading, source: str, spans: Sequence[Span]
    ) -> list[Digest | None] | None:
        """Return digests, or None when the source does not answer. Raises SessionClosedError."""
        order = reading.order
        compare = Compare(epoch=order.epoch, session=order.session, spans=[*spans])
        ask = lambda at: self._peers.digests(source, at, compare)  # noqa: E731
        found: Compared | None = await reading.answer(source, ask)
        return None if found is None else found.digests
