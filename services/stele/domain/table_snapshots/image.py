"""Snapshots of tables and restores from them, at one epoch."""

import msgspec
from immutables import Map

from stele.domain.repairs.times import Times
from stele.domain.table_snapshots.facts import TableSnapshot


class TableRestore(msgspec.Struct, frozen=True):
    """A restore under way. ``epochs`` says of each tablet since when it is restored; 0: not yet."""

    restore_id: str
    table_id: str
    snapshot_id: str
    epochs: Times


class TableSnapshotsImage(msgspec.Struct, frozen=True):
    """By their ids, which are those of their requests."""

    snapshots: Map[str, TableSnapshot] = Map()
    restores: Map[str, TableRestore] = Map()

    def named(self, tag: str) -> TableSnapshot | None:
        return next((each for each in self.snapshots.values() if each.name == tag), None)

    def restore_of(self, table_id: str) -> TableRestore | None:
        """The one that is under way for a table."""
        return next((each for each in self.restores.values() if each.table_id == table_id), None)

    def is_read(self, snapshot_id: str) -> bool:
        """A restore needs it."""
        return any(each.snapshot_id == snapshot_id for each in self.restores.values())
