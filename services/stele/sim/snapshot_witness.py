"""What a snapshot of a table is worth: all that was acknowledged before it was asked for is in it, and on each
replica once the table is restored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from stele.domain.image import Image
from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.ring.ranges import Range, contains
from stele.domain.table_snapshots.facts import TableSnapshot
from stele.sim.messages import Cell, Key, token_of_key
from stele.sim.violation import require

if TYPE_CHECKING:
    from stele.sim.data_witness import DataWitness
    from stele.sim.node_backups import Backup


class SnapshotWitness:
    """Notes what is acknowledged when a snapshot is asked for; looks at disks once it is there, or restored."""

    def __init__(
        self,
        data: "DataWitness",
        backups: Callable[[], Mapping[str, Mapping[str, "Backup"]]],
        is_gone: Callable[[str], bool],
    ) -> None:
        self.checks = 0
        self._data = data
        self._backups = backups
        self._is_gone = is_gone
        self._noted: dict[str, dict[str, int]] = {}
        """By the snapshot: newest acknowledged timestamps of the table's keys."""
        self._sources: dict[str, TableSnapshot] = {}
        """By the restore, what it restores."""

    def changed(self, before: Image, after: Image) -> None:
        for request in after.requests.open.values():
            is_new = request.request_id not in before.requests.open
            if is_new and request.tag and not request.restore_id:
                self._noted[request.request_id] = self._acknowledged(after, request)
        for id_, snapshot in after.table_snapshots.snapshots.items():
            if id_ not in before.table_snapshots.snapshots:
                self._check_taken(after, snapshot)
        for id_, restore in after.table_snapshots.restores.items():
            self._sources[id_] = after.table_snapshots.snapshots[restore.snapshot_id]
        for id_ in before.table_snapshots.restores:
            ended = after.request(id_)
            if id_ in after.table_snapshots.restores or ended is None:
                continue
            if ended.status is RequestStatus.DONE:
                self._check_restored(after, ended, self._sources[id_])

    def restores(self, snapshot: TableSnapshot, entries: Sequence[tuple[Key, Cell]]) -> None:
        """What a truncation had deleted, or another table has, comes to this one now: its clients did not write
        it, and may meet it at any time.
        """
        for key, cell in entries:
            if key[0] != snapshot.data_id:
                self._data.brings_back(key, cell)

    def _acknowledged(self, image: Image, request: Request) -> dict[str, int]:
        data_id = image.schema.data_of(image.schema.tables[request.table_id]).data_id
        return {key[1]: at for key, at in self._data.acked.items() if key[0] == data_id}

    def _check_taken(self, image: Image, snapshot: TableSnapshot) -> None:
        """Whoever is gone with its disk is not the snapshot's to bring back."""
        noted = self._noted[snapshot.snapshot_id]
        if any(self._is_gone(part.node_id) for part in snapshot.parts):
            return
        found, backups = dict[str, int](), self._backups()
        for part in snapshot.parts:
            for entries in backups[part.node_id][snapshot.snapshot_id].files.values():
                for (_, key), cell in entries:
                    found[key] = max(found.get(key, 0), cell.timestamp)
        lacking = [key for key, at in noted.items() if found.get(key, 0) < at]
        self.checks += 1
        require(
            not lacking,
            "a snapshot is whole",
            f"{snapshot.name} has all that was acknowledged before it was asked for",
            f"it lacks {sorted(lacking)[:3]} at epoch {image.epoch}",
        )

    def _check_restored(self, image: Image, request: Request, snapshot: TableSnapshot) -> None:
        table = image.schema.tables[request.table_id]
        data_id = image.schema.data_of(table).data_id
        excluded = image.membership.excluded()
        noted = self._noted[snapshot.snapshot_id]
        for row in image.ring.placements[table.placement].rows:
            there = [n for n in row.reads if n not in excluded and not self._is_gone(n)]
            for name, timestamp in noted.items():
                key = (data_id, name)
                if not contains(Range(row.start, row.end), token_of_key(key)):
                    continue
                lacking = [n for n in there if self._timestamp(n, key) < timestamp]
                self.checks += 1
                require(
                    not lacking,
                    "a restored table is whole",
                    f"{', '.join(there)} have {key} as it was acknowledged before the snapshot",
                    f"{', '.join(lacking)} have not, at epoch {image.epoch}",
                )

    def _timestamp(self, node_id: str, key: Key) -> int:
        cell = self._data.stores[node_id]().get(key)
        return 0 if cell is None else cell.timestamp
