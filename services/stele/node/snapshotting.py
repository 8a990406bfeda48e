"""SNAPSHOT orders: write the rows of this node's tablets of a table into the backup folder.

A write acknowledged before the request is on this node's disk, if this node acknowledged it. A
later read therefore includes it. The rows of a tablet have the state of one moment.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from stele.agent.orders import OrderProgress
from stele.agent.pulling import Pace, Sessions
from stele.agent.stores import PAGE_BYTES, Span, placed
from stele.domain.fencing import SessionGuard
from stele.domain.messages import Order
from stele.domain.model.settings import MIB, stream_bytes_per_s
from stele.domain.model.transitions import Transition
from stele.domain.ring.ranges import RangeReplicas
from stele.log.follower import LogFollower
from stele.node.backups import (
    Backups,
    Manifest,
    SnapshotFile,
    SnapshotTablet,
    decode_manifest,
    encode_manifest,
)
from stele.node.cells import StoredCell
from stele.node.commits import uncancelled
from stele.node.store import LOCK_TIMEOUT_S, CellPage, Cursor, SqliteStore, page_in

# A read of the store's state at one moment, during writes.
#
# The write-ahead log keeps that state meanwhile.


ReadPage = Callable[[Sequence[Span], Cursor | None, int], Awaitable[CellPage]]
"""Returns rows of the spans after a cursor, until their size reaches a limit in bytes."""


@asynccontextmanager
async def frozen(store: SqliteStore) -> AsyncIterator[ReadPage]:
    """Read the store's state at this moment inside the block, over a separate connection."""
    connection = await asyncio.to_thread(_begin_reading, store.path)

    async def page(spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int) -> CellPage:
        work = asyncio.to_thread(page_in, connection, spans, cursor, limit_bytes)
        return await uncancelled(asyncio.ensure_future(work))

    try:
        yield page
    finally:
        await uncancelled(asyncio.ensure_future(asyncio.to_thread(connection.close)))


def _begin_reading(path: Path) -> sqlite3.Connection:
    """Open a connection whose transaction keeps the state of its first read."""
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("begin")
    # ``begin`` alone is deferred: only a read fixes the state.
    connection.execute("select 1 from cells limit 1").fetchall()
    return connection


FILE_BYTES: Final = 16 * MIB
"""Size at which a file ends, in bytes.

A file is held in memory once, to be hashed; one row may be larger.
"""


class Snapshotter:
    """Executes SNAPSHOT orders for one node."""

    def __init__(
        self, follower: LogFollower, sessions: Sessions, store: SqliteStore, backups: Backups
    ) -> None:
        self._follower = follower
        self._sessions = sessions
        self._store = store
        self._backups = backups
        self._pace = Pace(lambda: stream_bytes_per_s(follower.image.features.settings))

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Write the snapshot, or report an earlier complete one.

        Raises SessionClosedError or OSError.
        """
        with self._sessions.enter(order.session) as guard:
            image = self._follower.image
            transition = image.topology.of_session(order.session)
            assert transition is not None  # the session is open
            (name,) = transition.plans
            mine = [
                (tablet, row)
                for tablet, row in enumerate(image.ring.placements[name].rows)
                if self._backups.node_id in row.reads
            ]
            if not mine:
                return
            cluster_id, id_ = image.cluster_id, transition.transition_id
            epoch = transition.entered_epoch
            # A repeated order must report the same manifest, since the log may have its hash
            # already.
            content = await self._backups.finished(image, id_, epoch)
            if content is None:
                guard.check()
                await self._backups.begin(image, id_, epoch)
                content = await self._write(transition, mine, guard, progress)
                guard.check()
                await self._backups.write_manifest(cluster_id, id_, content)
            manifest = decode_manifest(content)
            progress.bytes_done = progress.bytes_total = manifest.size_bytes
            progress.keys_done = manifest.rows
            progress.manifest = sha256(content).hexdigest()

    async def _write(
        self,
        transition: Transition,
        mine: list[tuple[int, RangeReplicas]],
        guard: SessionGuard,
        progress: OrderProgress,
    ) -> bytes:
        """Write all files except the manifest, and return the manifest's content."""
        image = self._follower.image
        table = image.schema.tables[transition.table_id]
        data_id = image.schema.data_of(table).data_id
        request = image.requests.requests[transition.transition_id]
        node_id = self._backups.node_id
        spans = placed(image, node_id, [Span(data_id, row.start, row.end) for _, row in mine])
        progress.bytes_total = (await self._store.measure(spans)).size_bytes
        manifest = Manifest(
            cluster_id=image.cluster_id,
            snapshot_id=request.request_id,
            name=request.tag,
            table=image.schema.full_name(table),
            table_id=table.table_id,
            data_id=data_id,
            epoch=transition.entered_epoch,
            node_id=self._backups.node_id,
            tablets=len(image.ring.placements[table.placement]),
            rows=0,
            size_bytes=0,
            written=(),
        )
        written = [
            await self._write_tablet(manifest, tablet, row, guard, progress) for tablet, row in mine
        ]
        return encode_manifest(
            msgspec.structs.replace(
                manifest,
                rows=sum(file.rows for each in written for file in each.files),
                size_bytes=progress.bytes_done,
                written=tuple(written),
            )
        )

    async def _write_tablet(
        self,
        of: Manifest,
        tablet: int,
        row: RangeReplicas,
        guard: SessionGuard,
        progress: OrderProgress,
    ) -> SnapshotTablet:
        """Write the files of one tablet, from the state of one moment."""
        files, rows, size_bytes = list[SnapshotFile](), list[StoredCell](), 0
        cursor: Cursor | None = None
        span = Span(of.data_id, row.start, row.end)
        spans = placed(self._follower.image, of.node_id, [span])
        async with frozen(self._store) as read_page:
            while True:
                page = await read_page(spans, cursor, PAGE_BYTES)
                guard.check()
                rows += page.rows
                size_bytes += page.size_bytes
                progress.add(page.size_bytes, len(page.rows))
                await self._pace.took(page.size_bytes)
                cursor = page.cursor
                if rows and (cursor is None or size_bytes >= FILE_BYTES):
                    name = f"tablet-{tablet:06d}-{len(files):04d}.avro"
                    files.append(
                        await self._backups.write_rows(of.cluster_id, of.snapshot_id, name, rows)
                    )
                    rows, size_bytes = [], 0
                if cursor is None:
                    return SnapshotTablet(tablet, row.reads, tuple(files))
