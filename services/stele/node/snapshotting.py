"""SNAPSHOT orders: write the rows of this node's tablets of a table into the backup folder.

What was acknowledged before the snapshot was asked for is on this node's disk if it was one of those that
acknowledged it, so whatever is read from now on holds it. The rows of a tablet are as they were at one moment.
"""

from hashlib import sha256
from typing import Final

import msgspec

from stele.agent.orders import OrderProgress
from stele.agent.pace import Pace
from stele.agent.pages import PAGE_BYTES
from stele.agent.partitions import placed
from stele.agent.pulling import Sessions
from stele.agent.spans import Span
from stele.domain.messages import Order
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.sessions import SessionGuard
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import MIB, stream_bytes_per_s
from stele.log.follower import LogFollower
from stele.node.backups import Backups
from stele.node.cells import Row
from stele.node.frozen import frozen
from stele.node.manifests import (
    Manifest,
    SnapshotFile,
    SnapshotTablet,
    decode_manifest,
    encode_manifest,
)
from stele.node.store import Cursor, Store

FILE_BYTES: Final = 16 * MIB
"""A file is held in memory once, to be hashed; a row may be larger."""


class Snapshotter:
    """Carries SNAPSHOT orders out for one node."""

    def __init__(
        self, follower: LogFollower, sessions: Sessions, store: Store, backups: Backups
    ) -> None:
        self._follower = follower
        self._sessions = sessions
        self._store = store
        self._backups = backups
        self._pace = Pace(lambda: stream_bytes_per_s(follower.image.features.settings))

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Raises SessionClosedError or OSError. Who has written it all already says so again."""
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
        """All files but the manifest, whose content it gives."""
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
        files, rows, size_bytes = list[SnapshotFile](), list[Row](), 0
        cursor: Cursor | None = None
        span = Span(of.data_id, row.start, row.end)
        spans = placed(self._follower.image, of.node_id, [span])
        async with frozen(self._store) as now:
            while True:
                page = await now.page(spans, cursor, PAGE_BYTES)
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
