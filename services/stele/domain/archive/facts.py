"""Catch-up replicas and readers of the log, as facts: who they are, and what each of them has or has read.

The snapshots of the metadata and the segments of the log are files of the replicas. The log has the hash of
each snapshot, and which epochs a replica has besides.
"""

import msgspec

from stele.domain.base import Fact
from stele.domain.names import ReplicaState


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process of catch-up with its own folder, which ``folder_id`` names: it is drawn when the folder is
    made, and whoever comes with another one has lost what it had. ``since_epoch`` is when it came into its
    state. ``address`` is its URL.
    """

    replica_id: str
    dc: str
    rack: str
    address: str
    state: ReplicaState
    since_epoch: int
    folder_id: str = ""


class AnnouncedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the metadata at an epoch that a replica has on its disk, with every epoch from
    ``first_epoch`` on to it.

    ``state_id`` has 32 hex digits, ``hash`` is the SHA-256 of the snapshot in 64. ``anchor_offset`` is where in
    the topic the record of the epoch is, in the log of this ``log_id`` (32 hex digits). ``announced_ms`` is the
    log's own time.
    """

    epoch: int
    state_id: str
    hash: str
    size_bytes: int
    first_epoch: int
    anchor_offset: int
    log_id: str
    announced_ms: int


class LogReader(msgspec.Struct, frozen=True, kw_only=True):
    """Who reads the log where it left off: it has no use of what is before ``epoch``, and needs what is behind.

    It got there by ``moved_ms``, the log's own time.
    """

    reader_id: str
    epoch: int
    moved_ms: int


class ReplicaChanged(Fact, frozen=True):
    replica: Replica


class ReplicaForgotten(Fact, frozen=True):
    """It never comes back. What it has announced is forgotten too. ``unsafe``: what only it had is given up."""

    replica_id: str
    unsafe: bool = False


class SnapshotAnnounced(Fact, frozen=True):
    """In place of what the replica had announced of the same epoch."""

    replica_id: str
    snapshot: AnnouncedSnapshot


class SnapshotsForgotten(Fact, frozen=True):
    """What a replica has announced of these epochs counts no more."""

    replica_id: str
    epochs: tuple[int, ...]


class SnapshotAsked(Fact, frozen=True):
    """Every replica takes a snapshot of the state at ``epoch``, which is this one."""

    epoch: int


class LogTruncated(Fact, frozen=True, kw_only=True):
    """Records before ``offset``, which is that of ``epoch``, may be deleted from the topic of the log
    ``log_id``: the ``members`` have a snapshot of that epoch with this ``hash``, and all that was before it.

    ``lost_readers`` had not got there in time, and are not waited for.
    """

    epoch: int
    offset: int
    log_id: str
    hash: str
    members: tuple[str, ...]
    lost_readers: tuple[str, ...] = ()


class ReaderChanged(Fact, frozen=True):
    reader: LogReader


class ReaderForgotten(Fact, frozen=True):
    reader_id: str


class ReplicaDiverged(Fact, frozen=True, kw_only=True):
    """A replica's snapshot of ``epoch`` is not what a majority of the members has: what it has in the folder
    ``folder_id`` counts for nothing, and it begins anew. It is the ``times``-th time.
    """

    replica_id: str
    epoch: int
    folder_id: str
    times: int


class TrimProposed(Fact, frozen=True, kw_only=True):
    """The archive is to begin at ``epoch``, which has ``state_id`` (32 hex digits), once a majority of the
    members agrees: in place of what was proposed before. ``at_ms`` is the log's own time.
    """

    replica_id: str
    epoch: int
    state_id: str
    at_ms: int


class TrimAgreed(Fact, frozen=True, kw_only=True):
    """A replica has read its snapshot of the epoch that is proposed, whose SHA-256 is ``hash``, and has every
    epoch from there on. What is before it is in the ``store``, if the replica has one.
    """

    replica_id: str
    epoch: int
    hash: str
    store: str = ""


class ArchiveTrimmed(Fact, frozen=True, kw_only=True):
    """Replicas delete what is before ``epoch``: the ``members`` have the snapshot of it with this ``hash``,
    which stays, as every epoch from this one on. The ``stores`` were given what is deleted.
    """

    epoch: int
    state_id: str
    hash: str
    members: tuple[str, ...]
    stores: tuple[str, ...] = ()
    lost_readers: tuple[str, ...] = ()


ArchiveFact = (
    ReplicaChanged
    | ReplicaForgotten
    | SnapshotAnnounced
    | SnapshotsForgotten
    | SnapshotAsked
    | LogTruncated
    | ReaderChanged
    | ReaderForgotten
    | ReplicaDiverged
    | TrimProposed
    | TrimAgreed
    | ArchiveTrimmed
)
