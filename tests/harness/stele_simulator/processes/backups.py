"""Snapshots of tables: every write acknowledged before the request is in files that survive a power failure,
and on the disk of each replica of a table restored from it.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.table_snapshots import TableSnapshot
from stele.domain.names import RequestStatus
from stele.domain.ring.partitioner import token_of
from stele.node.backups import decode_rows
from stele_simulator.processes.members import FOLDER

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

WHOLE: Final = "a snapshot is whole"
RESTORED: Final = "a restored table is whole"


class Noted(NamedTuple):
    """When a snapshot was asked for: the age of the rows, and the newest timestamp of each key."""

    age: int
    timestamps: dict[bytes, int]


class BackupWitness:
    """Looks at disks once a snapshot is there, or restored."""

    def __init__(self, world: "World") -> None:
        self.restored = 0
        self._world = world
        self._noted: dict[str, Noted] = {}
        """By the snapshot."""

    def changed(self, before: Image, after: Image) -> None:
        for id_, request in after.requests.unfinished_by_id.items():
            if (
                id_ not in before.requests.unfinished_by_id
                and request.tag
                and not request.restore_id
            ):
                data_id = after.schema.data_of(after.schema.tables[request.table_id]).data_id
                stores = self._world.stores
                self._noted[id_] = Noted(stores.age(), stores.acknowledged(data_id))
        for id_, snapshot in after.table_snapshots.snapshots.items():
            if id_ not in before.table_snapshots.snapshots:
                self._is_whole(after, snapshot)
        for id_, restore in before.table_snapshots.restores.items():
            ended = after.request(id_)
            if id_ in after.table_snapshots.restores or ended is None:
                continue
            if ended.status is RequestStatus.DONE:
                snapshot = before.table_snapshots.snapshots[restore.snapshot_id]
                self._is_restored(after, ended, snapshot)

    def _timestamps(self, snapshot_id: str) -> dict[bytes, int]:
        """None that counts where epochs were lost since."""
        noted = self._noted.get(snapshot_id)
        age = self._world.stores.age()
        return noted.timestamps if noted is not None and noted.age == age >= 0 else {}

    def _is_whole(self, image: Image, snapshot: TableSnapshot) -> None:
        nodes = {node.node_id: node for node in self._world.nodes}
        if any(part.node_id not in nodes for part in snapshot.parts):
            return  # whose disk was thrown away is not the snapshot's to bring back
        found = dict[bytes, int]()
        for part in snapshot.parts:
            folder = f"{FOLDER}/backups/{image.cluster_id}/{snapshot.snapshot_id}/{part.node_id}/"
            for name, content in sorted(nodes[part.node_id].disk.on_platter.items()):
                if name.startswith(folder) and name.endswith(".avro"):
                    for row in decode_rows(content.synced, snapshot.data_id):
                        found[row.key] = max(found.get(row.key, 0), row.timestamp)
        noted = self._timestamps(snapshot.snapshot_id)
        lacking = sorted(key for key, at in noted.items() if found.get(key, 0) < at)
        self._world.demand(
            not lacking,
            WHOLE,
            f"{snapshot.name} of {snapshot.table} has all that was acknowledged before it was asked for",
            f"it lacks {lacking[:3]} at epoch {image.epoch}",
        )

    def _is_restored(self, image: Image, ended: Request, snapshot: TableSnapshot) -> None:
        table = image.schema.tables.get(ended.table_id)
        if table is None:
            return
        nodes = {node.node_id: node for node in self._world.nodes}
        data, excluded = image.schema.data_of(table), image.membership.excluded()
        self.restored += 1
        for key, timestamp in sorted(self._timestamps(snapshot.snapshot_id).items()):
            token = token_of(key)
            replicas = image.ring.placements[data.placement].row_for(token).reads
            lacking = [
                node_id
                for node_id in replicas
                if node_id in nodes
                and node_id not in excluded
                and self._world.stores.newest(nodes[node_id], data.data_id, token, key) < timestamp
            ]
            self._world.demand(
                not lacking,
                RESTORED,
                f"{', '.join(replicas)} have {data.name}/{key.decode()} as it was acknowledged before"
                f" {snapshot.name} was asked for",
                f"{', '.join(lacking)} have not, at epoch {image.epoch}",
            )
