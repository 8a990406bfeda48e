"""Snapshots of tables and restores from them, as facts.

The rows, and the nodes of each tablet, are in files and manifests of the nodes that wrote them. The
log has the hash of each manifest, so a fact grows only with the number of nodes.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from stele.domain.base import Command, Fact
from stele.domain.model.schema import TableOptions


class WrittenPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a snapshot that one node wrote.

    ``manifest`` is the SHA-256 of its manifest, in hex.
    """

    node_id: str
    manifest: str
    rows: int
    size_bytes: int


class TableSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table as its replicas had them in ``epoch`` or later.

    They include all writes acknowledged before the request. ``snapshot_id`` is the id of the
    request. Name, number of tablets, options and replication are those of the table at that time.
    ``taken_ms`` and ``expires_ms`` are times of the log; with ``expires_ms`` 0 it never expires.
    """

    snapshot_id: str
    name: str
    """Tag of the snapshot, its name for people."""
    table: str
    table_id: str
    data_id: str
    tablets: int
    options: TableOptions
    replication: dict[str, int]
    epoch: int
    taken_ms: int
    expires_ms: int
    parts: tuple[WrittenPart, ...]
    columns_digest: str = ""
    """See ``SchemaImage.columns_digest``."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows of all replicas together."""
        return sum(part.size_bytes for part in self.parts)


class RestoreSummary(msgspec.Struct, frozen=True):
    """A restore in short: the numbers of its tablets and of those that are restored."""

    restore_id: str
    table_id: str
    snapshot_id: str
    tablets: int
    restored: int


class TableSnapshotTaken(Fact, frozen=True):
    snapshot: TableSnapshot


class TableSnapshotDeleted(Fact, frozen=True):
    snapshot_id: str


class TableRestoreBegun(Fact, frozen=True):
    """The start of a restore of a table with ``tablets`` tablets.

    ``restore_id`` is the request's id.
    """

    restore_id: str
    table_id: str
    snapshot_id: str
    tablets: int


class TabletRestored(Fact, frozen=True):
    """A restored tablet: since ``epoch`` each of its replicas has the rows of the snapshot.

    Excluded replicas do not count. The table has ``of`` tablets.
    """

    restore_id: str
    tablet: int
    of: int
    epoch: int


class TableRestoreResized(Fact, frozen=True):
    """The table now has this number of ``tablets``.

    Each half of a restored tablet is restored. A merged tablet is restored if both of its parts
    are.
    """

    restore_id: str
    tablets: int


class TableRestoreEnded(Fact, frozen=True):
    restore_id: str


class RestoredTablets(Fact, frozen=True):
    """The epochs since which tablets from ``first`` on are restored, in snapshots only.

    ``epochs`` have 8 bytes each, little endian; 0 means not yet.
    """

    restore_id: str
    first: int
    epochs: bytes


TableSnapshotsFact = (
    TableSnapshotTaken
    | TableSnapshotDeleted
    | TableRestoreBegun
    | TabletRestored
    | TableRestoreResized
    | TableRestoreEnded
    | RestoredTablets
)


# Commands on existing snapshots. Taking a snapshot is an operation (``topology/operations``).


class DeleteTableSnapshot(Command, frozen=True, tag="delete_table_snapshot"):
    """Forget a snapshot. Each node then deletes its files."""

    snapshot: str
    """Tag of the snapshot."""


class ExpireTableSnapshot(Command, frozen=True, tag="expire_table_snapshot"):
    """Delete a snapshot that the coordinator of ``term`` has found expired."""

    of_services: ClassVar = True

    term: int
    snapshot_id: str


TableSnapshotsCommand = DeleteTableSnapshot | ExpireTableSnapshot
