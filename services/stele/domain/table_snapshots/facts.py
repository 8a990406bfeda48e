"""Snapshots of tables and restores from them, as facts.

The rows, and which node has which tablet's, are in files and manifests of the nodes that wrote them; the log
has the hash of each manifest, so a fact grows with the number of nodes alone.
"""

import msgspec

from stele.domain.base import Fact
from stele.domain.schema.facts import TableOptions


class WrittenPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one node wrote: ``manifest`` is the SHA-256 of its manifest, in hex."""

    node_id: str
    manifest: str
    rows: int
    size_bytes: int


class TableSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table as its replicas had them in ``epoch`` or later: all that was acknowledged before it
    was asked for is among them.

    ``snapshot_id`` is the request's. The name, number of tablets, options and replication are those of the
    table then. ``taken_ms`` and ``expires_ms`` are times of the log; 0: it never expires.
    """

    snapshot_id: str
    name: str
    """What people call it: its tag."""
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

    @property
    def size_bytes(self) -> int:
        """Of all replicas' rows together."""
        return sum(part.size_bytes for part in self.parts)


class RestoreSummary(msgspec.Struct, frozen=True):
    """A restore as people see it: how many of its tablets are restored."""

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
    """A table of so many ``tablets`` is to have what is in a snapshot; ``restore_id`` is the request's."""

    restore_id: str
    table_id: str
    snapshot_id: str
    tablets: int


class TabletRestored(Fact, frozen=True):
    """Each replica of a tablet, but those that are excluded, has what is in the snapshot since ``epoch``. The
    table has ``of`` tablets.
    """

    restore_id: str
    tablet: int
    of: int
    epoch: int


class TableRestoreResized(Fact, frozen=True):
    """The table has so many ``tablets`` now: halves are restored when the whole is, two that become one when
    both are.
    """

    restore_id: str
    tablets: int


class TableRestoreEnded(Fact, frozen=True):
    restore_id: str


class RestoredTablets(Fact, frozen=True):
    """In snapshots only: since when tablets from ``first`` on are restored.

    ``epochs`` have 8 bytes each, little endian; 0: not yet.
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
