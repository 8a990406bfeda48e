"""Restores of tables that are under way, and the image of snapshots and restores."""

import msgspec
from immutables import Map

from stele.domain.model.repairs import Times
from stele.domain.model.table_snapshots import TableSnapshot


class TableRestore(msgspec.Struct, frozen=True):
    """A restore under way.

    ``epochs`` holds by tablet the epoch since which it is restored, 0 if not yet.
    """

    restore_id: str
    table_id: str
    snapshot_id: str
    epochs: Times


class TableSnapshotsImage(msgspec.Struct, frozen=True):
    """Snapshots and restores by id, which is the id of their request."""

    snapshots: Map[str, TableSnapshot] = Map()
    restores: Map[str, TableRestore] = Map()

    def named(self, tag: str) -> TableSnapshot | None:
        # A tag is refused while another snapshot has it, so the first match is the only one.
        return next((each for each in self.snapshots.values() if each.name == tag), None)

    def restore_of(self, table_id: str) -> TableRestore | None:
        """Return the restore under way for a table, or None."""
        return next((each for each in self.restores.values() if each.table_id == table_id), None)

    def is_read(self, snapshot_id: str) -> bool:
        """Return True if a restore needs the snapshot."""
        return any(each.snapshot_id == snapshot_id for each in self.restores.values())
