"""How a node writes its rows for a snapshot of a table, and reads those of others when a table is restored.

Which files are needed is decided by the production code; a file is one tablet's rows, on the node's disk.
"""

from typing import Any, Final

from stele.domain.messages import Order
from stele.domain.names import NodeState
from stele.domain.ring.ranges import Range, contains
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.domain.table_snapshots.facts import TableSnapshot
from stele.node import manifests
from stele.node.manifests import Manifest, SnapshotFile, SnapshotTablet
from stele.sim.messages import ONE_PAGE, Cell, Key, token_of_key
from stele.sim.process import Follower, Reply

FETCH_TIMEOUT_S: Final = 3.0
FILE_S: Final = 0.05
"""Time that the disk takes for a tablet's file."""

Entries = list[tuple[Key, Cell]]


class Backup:
    """What one node wrote for a snapshot: the manifest, and each tablet's rows by the name of its file."""

    def __init__(self, manifest: Manifest, files: dict[str, Entries]) -> None:
        self.manifest = manifest
        self.files = files


class BackupWorker(Follower):
    """The part of a node that works for snapshots and restores."""

    sessions: Any

    @property
    def backups(self) -> dict[str, Backup]:
        """By the snapshot's id; they are on the disk."""
        found: dict[str, Backup] = self.disk.setdefault("backups", {})
        return found

    @property
    def cells(self) -> dict[Key, Cell]:
        raise NotImplementedError

    def read_cells(self) -> dict[Key, Cell]:
        raise NotImplementedError

    def store(self, key: Key, cell: Cell) -> None:
        raise NotImplementedError

    async def snapshot(self, order: Order) -> str:
        """Write each tablet that is read from this node; what went wrong, or nothing."""
        image, files = self.image, dict[str, Entries]()
        transition = image.topology.of_session(order.session)
        if transition is None:
            return f"session {order.session} is not open"
        (name,) = transition.plans
        table = image.schema.tables[transition.table_id]
        data_id = image.schema.data_of(table).data_id
        rows, written = image.ring.placements[name].rows, list[SnapshotTablet]()
        try:
            with self.sessions.enter(order.session) as guard:
                for tablet, row in enumerate(rows):
                    if self.name not in row.reads:
                        continue
                    await self.sleep(FILE_S)
                    guard.check()
                    range_, file = Range(row.start, row.end), f"tablet-{tablet}"
                    files[file] = [
                        (key, cell)
                        for key, cell in sorted(self.read_cells().items())
                        if key[0] == data_id and contains(range_, token_of_key(key))
                    ]
                    kept = SnapshotFile(file, "", 0, len(files[file]))
                    written.append(SnapshotTablet(tablet, row.reads, (kept,)))
        except SessionClosedError as error:
            return str(error)
        if written:
            manifest = Manifest(
                cluster_id=image.cluster_id,
                snapshot_id=transition.transition_id,
                name=image.requests.requests[transition.transition_id].tag,
                table=image.schema.full_name(table),
                table_id=table.table_id,
                data_id=data_id,
                epoch=image.epoch,
                node_id=self.name,
                tablets=len(rows),
                rows=sum(map(len, files.values())),
                size_bytes=0,
                written=tuple(written),
            )
            self.backups[transition.transition_id] = Backup(manifest, files)
        return ""

    def manifest_of(self, order: Order) -> str:
        """What it reports to have written."""
        transition = self.image.topology.of_session(order.session)
        kept = transition is not None and transition.transition_id in self.backups
        return "written" if kept else ""

    def delete_backups(self) -> None:
        """Those of snapshots that are neither there nor under way, as far as this node has read the log."""
        known = {*self.image.table_snapshots.snapshots, *self.image.topology.transitions}
        for snapshot_id in {*self.backups} - known:
            if self.backups[snapshot_id].manifest.epoch <= self.image.epoch:
                del self.backups[snapshot_id]

    async def restore(self, order: Order) -> str:
        """Read the rows of the tablet's range from all who wrote them; what went wrong, or nothing."""
        image = self.image
        transition = image.topology.of_session(order.session)
        if transition is None:
            return f"session {order.session} is not open"
        request = image.requests.requests[transition.transition_id]
        restore = image.table_snapshots.restores.get(request.restore_id)
        if restore is None:
            return "the restore of the table has ended"
        snapshot = image.table_snapshots.snapshots[restore.snapshot_id]
        data_id = image.schema.data_of(image.schema.tables[restore.table_id]).data_id
        try:
            with self.sessions.enter(order.session) as guard:
                found = await self._backups_of(snapshot)
                if isinstance(found, str):
                    return found
                known = {node_id: backup.manifest for node_id, backup in found.items()}
                for row in next(iter(transition.plans.values())).rows:
                    range_ = Range(row.start, row.end)
                    for node_id, file in manifests.files_of(range_, snapshot, known):
                        entries = [
                            ((data_id, key[1]), cell)
                            for key, cell in found[node_id].files[file.name]
                            if contains(range_, token_of_key(key))
                        ]
                        self.world.witness.snapshots.restores(snapshot, entries)
                        await self._take_rows(entries, guard, restore.restore_id)
                guard.check()
        except (SessionClosedError, manifests.Missing) as error:
            return str(error)
        return ""

    async def _take_rows(self, entries: Entries, guard: SessionGuard, restore_id: str) -> None:
        for first in range(0, len(entries), ONE_PAGE):
            await self.sleep(FILE_S / 10)
            guard.check()
            if restore_id not in self.image.table_snapshots.restores:
                raise manifests.Missing("the restore of the table has ended")
            self.world.witness.nodes.streams_in(self, guard.session)
            for key, cell in entries[first : first + ONE_PAGE]:
                self.store(key, cell)

    async def _backups_of(self, snapshot: TableSnapshot) -> dict[str, Backup] | str:
        """By node, without those that are gone for good; or whose is not given."""
        found = dict[str, Backup]()
        for part in snapshot.parts:
            row = self.image.node(part.node_id)
            if row is None or row.excluded or row.state is NodeState.LEFT:
                continue
            node = self.world.nodes[part.node_id]
            backup = await self.call(
                node, node.serve_backup, snapshot.snapshot_id, timeout_s=FETCH_TIMEOUT_S
            ).wait()
            if backup is None:
                return f"what {part.node_id} wrote for snapshot {snapshot.name} is not given"
            found[part.node_id] = backup
        return found

    def serve_backup(self, snapshot_id: str, reply: Reply) -> None:
        reply(self.backups.get(snapshot_id))
