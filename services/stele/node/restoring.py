"""RESTORE orders: read the rows of a tablet from snapshot files.

A row is kept where it is newer than the store's.

Files are first read from this node's backup folder, which other nodes may share, and otherwise
requested from the node that wrote them. Each file is checked against its manifest, and the manifest
against the log, before any of its rows is used.

The files of all replicas of that time are read, and contain every acknowledged write of any
replica. Files in the private folder of a node that has left cannot be read. The other replicas must
then be a quorum.
"""

import asyncio
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from stele.agent.judging import CATCH_UP_LIMIT_S, Code
from stele.agent.orders import OrderProgress
from stele.agent.pulling import RETRY_S, TRIES, Pace, Sessions
from stele.agent.stores import PAGE_BYTES, write_partitions
from stele.domain.fencing import SessionGuard
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.settings import MIB, stream_bytes_per_s
from stele.domain.model.table_restores import TableRestore
from stele.domain.model.table_snapshots import TableSnapshot, WrittenPart
from stele.domain.names import NodeState
from stele.domain.ring.ranges import Range, contains
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.node.backups import (
    MANIFEST,
    Backups,
    Manifest,
    SnapshotFile,
    decode_manifest,
    decode_rows,
    files_of,
)
from stele.node.cells import HybridClock, StoredCell
from stele.node.store import SqliteStore
from stele.node.wire import Fetch, Fetched

PIECE_BYTES: Final = 4 * MIB
"""Size of a piece of a file in one reply, in bytes."""


class RestoreFailed(Exception):
    """The rows could not be read. The text names the file and the node that wrote it."""


class FileSource(Protocol):
    """Reads files of other nodes; see ``peers.Peers``."""

    async def backup(self, node_id: str, address: str, fetch: Fetch) -> Fetched: ...


class Restorer:
    """Executes RESTORE orders for one node."""

    def __init__(
        self,
        follower: LogFollower,
        sessions: Sessions,
        store: SqliteStore,
        clock: HybridClock,
        backups: Backups,
        peers: FileSource,
    ) -> None:
        self._follower = follower
        self._sessions = sessions
        self._store = store
        self._clock = clock
        self._backups = backups
        self._peers = peers
        self._pace = Pace(lambda: stream_bytes_per_s(follower.image.features.settings))

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Restore the rows of the order's ranges. A repetition is harmless.

        Raises RestoreFailed, Missing, SessionClosedError or StoreError.
        """
        with self._sessions.enter(order.session) as guard:
            image = self._follower.image
            restore, snapshot = _of_session(image, order.session)
            transition = image.topology.of_session(order.session)
            assert transition is not None  # the session is open
            data_id = image.schema.data_of(image.schema.tables[restore.table_id]).data_id
            reader = _Reader(self._backups, self._peers, image, order, snapshot, guard)
            manifests = await reader.manifests()
            for plan in transition.plans.values():
                for row in plan.rows:
                    range_ = Range(row.start, row.end)
                    files = files_of(range_, snapshot, manifests)
                    progress.bytes_total += sum(file.size_bytes for _, file in files)
                    for node_id, file in files:
                        content = await reader.file(node_id, file)
                        rows = await asyncio.to_thread(_inside, content, data_id, range_)
                        await self._write(rows, guard, restore.restore_id)
                        # Count after the write: rows that are reported as done must be on the disk.
                        await self._pace.took(len(content))
                        progress.add(len(content), len(rows))
            guard.check()

    async def _write(self, rows: list[StoredCell], guard: SessionGuard, restore_id: str) -> None:
        """Write rows in pages, so that small writes do not wait for long. Raises RestoreFailed."""

        def may(_: int) -> bool:
            """Return False once the restore has ended, since the table may be truncated then."""
            wanted = restore_id in self._follower.image.table_snapshots.restores
            return guard.is_open and wanted

        def into(place: int) -> tuple[str, ...]:
            row, image = page[place], self._follower.image
            return write_partitions(image, self._backups.node_id, row.keyspace, row.token)

        while rows:
            size_bytes, count = 0, 0
            while count < len(rows) and size_bytes < PAGE_BYTES:
                size_bytes += len(rows[count].key) + len(rows[count].value)
                count += 1
            page, rows = rows[:count], rows[count:]
            self._clock.see(max(row.timestamp for row in page))
            written = await self._store.write(page, may, into)
            guard.check()
            if None in written:
                raise RestoreFailed("the restore of the table has ended")

    async def give(self, fetch: Fetch) -> Fetched:
        """Return a piece of a file in this node's folder, to a node that restores from it."""
        if self._follower.image.epoch < fetch.epoch:
            try:
                await self._follower.wait_for_epoch(fetch.epoch, CATCH_UP_LIMIT_S)
            except (TimeoutError, LogError) as error:
                return Fetched(code=Code.BEHIND, text=str(error))
        image = self._follower.image
        if image.topology.of_session(fetch.session) is None:
            return Fetched(code=Code.SESSION_CLOSED, text=f"session {fetch.session} is not open")
        try:
            _, snapshot = _of_session(image, fetch.session)
            found = await self._backups.read(
                image.cluster_id,
                snapshot.snapshot_id,
                self._backups.node_id,
                fetch.name,
                max(0, fetch.offset),
                PIECE_BYTES,
            )
        except (RestoreFailed, OSError) as error:
            return Fetched(code=Code.FAILED, text=str(error))
        if found is None:
            return Fetched(code=Code.FAILED, text="there is no such file")
        size_bytes, data = found
        return Fetched(code=Code.OK, size_bytes=size_bytes, data=data)


def _inside(content: bytes, data_id: str, range_: Range) -> list[StoredCell]:
    """Return the rows of a file that are in a range.

    Call it in a thread: small rows take seconds.
    """
    return [row for row in decode_rows(content, data_id) if contains(range_, row.token)]


def _of_session(image: Image, session: str) -> tuple[TableRestore, TableSnapshot]:
    """Return the restore and the snapshot of a session.

    Raises RestoreFailed when the restore has ended.
    """
    transition = image.topology.of_session(session)
    request = None if transition is None else image.request(transition.transition_id)
    restore = image.table_snapshots.restores.get(request.restore_id if request else "")
    if restore is None:
        raise RestoreFailed("the restore of the table has ended")
    return restore, image.table_snapshots.snapshots[restore.snapshot_id]


class _Reader:
    """Reads files of a snapshot under one order, from this node or the node that wrote them."""

    def __init__(
        self,
        backups: Backups,
        peers: FileSource,
        image: Image,
        order: Order,
        snapshot: TableSnapshot,
        guard: SessionGuard,
    ) -> None:
        self._backups = backups
        self._peers = peers
        self._image = image
        self._order = order
        self._snapshot = snapshot
        self._guard = guard

    async def manifests(self) -> dict[str, Manifest]:
        """Return the manifests by node. Raises RestoreFailed.

        A node that has left for ever is omitted if its files are not here.
        """
        found = dict[str, Manifest]()
        for part in self._snapshot.parts:
            content = await self._here(part.node_id, MANIFEST)
            if content is None and self._is_gone(part.node_id):
                continue
            if content is None:
                content = await self._fetched(part.node_id, MANIFEST)
            found[part.node_id] = self._checked(part, content)
        return found

    async def file(self, node_id: str, file: SnapshotFile) -> bytes:
        """Return the checked content of a file. Raises RestoreFailed."""
        content = await self._here(node_id, file.name)
        if content is None:
            content = await self._fetched(node_id, file.name)
        self._check(node_id, file.name, content, file.sha256)
        return content

    def _checked(self, part: WrittenPart, content: bytes) -> Manifest:
        self._check(part.node_id, MANIFEST, content, part.manifest)
        try:
            return decode_manifest(content)
        except msgspec.DecodeError as error:
            raise RestoreFailed(f"{self._named(part.node_id, MANIFEST)}: {error}") from error

    def _check(self, node_id: str, name: str, content: bytes, expected: str) -> None:
        found = sha256(content).hexdigest()
        if found != expected:
            what = f"its SHA-256 is {found}, not {expected}"
            raise RestoreFailed(f"{self._named(node_id, name)} is damaged: {what}")

    async def _here(self, node_id: str, name: str) -> bytes | None:
        id_ = self._snapshot.snapshot_id
        try:
            found = await self._backups.read(self._image.cluster_id, id_, node_id, name)
        except OSError as error:
            raise RestoreFailed(f"{self._named(node_id, name)}: {error}") from error
        return None if found is None else found[1]

    async def _fetched(self, node_id: str, name: str) -> bytes:
        """Request a file from the node that wrote it, piece by piece. Raises RestoreFailed."""
        pieces, size_bytes = list[bytes](), 0
        if node_id == self._backups.node_id or self._is_gone(node_id):
            raise RestoreFailed(f"{self._named(node_id, name)} is missing")
        while True:
            found = await self._asked(node_id, name, size_bytes)
            pieces.append(found.data)
            size_bytes += len(found.data)
            # An empty piece ends the loop too: the same offset would return the same again.
            if size_bytes >= found.size_bytes or not found.data:
                return b"".join(pieces)

    async def _asked(self, node_id: str, name: str, offset: int) -> Fetched:
        """Request a piece of a file, with retries. Raises RestoreFailed."""
        order, node = self._order, self._image.node(node_id)
        assert node is not None  # it is not gone
        fetch = Fetch(epoch=order.epoch, session=order.session, name=name, offset=offset)
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            self._guard.check()
            found = await self._peers.backup(node_id, node.address, fetch)
            if found.code is Code.OK:
                return found
        raise RestoreFailed(
            f"{self._named(node_id, name)} is not given: {found.code}: {found.text}"
        )

    def _is_gone(self, node_id: str) -> bool:
        node = self._image.node(node_id)
        return node is None or node.excluded or node.state is NodeState.LEFT

    def _named(self, node_id: str, name: str) -> str:
        return f"file {name} of snapshot {self._snapshot.name} by {node_id}"
