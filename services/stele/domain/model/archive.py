"""The archive of the log: rows, facts, commands, settings and image of replicas and readers.

Snapshots of the metadata and segments of the log are files of the replicas. The log records the
hash of each snapshot, and which other epochs a replica has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact
from stele.domain.model.features import Copies, Count
from stele.domain.names import ReplicaState


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A catch-up process and its folder.

    ``folder_id`` is drawn when the folder is created. A replica that announces another folder has
    lost its earlier files. ``since_epoch`` is the epoch at which it entered its state. ``address``
    is its URL.
    """

    replica_id: str
    dc: str
    rack: str
    address: str
    state: ReplicaState
    since_epoch: int
    folder_id: str = ""


class AnnouncedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A metadata snapshot on a replica's disk, with every epoch from ``first_epoch`` to it.

    ``state_id`` has 32 hex digits. ``hash`` is the snapshot's SHA-256 in 64 hex digits.
    ``anchor_offset`` is the offset of the epoch's record in the topic of the log ``log_id`` (32 hex
    digits). ``announced_ms`` is the log's own time in milliseconds.
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
    """A reader of the log that resumes where it stopped.

    It does not need the epochs before ``epoch`` and needs all later ones. ``moved_ms`` is the log's
    own time at which it reached ``epoch``.
    """

    reader_id: str
    epoch: int
    moved_ms: int


class ReplicaChanged(Fact, frozen=True):
    replica: Replica


class ReplicaForgotten(Fact, frozen=True):
    """The replica never comes back, and its announcements are forgotten.

    ``unsafe``: data only it had is given up.
    """

    replica_id: str
    unsafe: bool = False


class SnapshotAnnounced(Fact, frozen=True):
    """A replica has announced a snapshot. It replaces an earlier announcement of the same epoch."""

    replica_id: str
    snapshot: AnnouncedSnapshot


class SnapshotsForgotten(Fact, frozen=True):
    """The replica's announcements of these epochs no longer count."""

    replica_id: str
    epochs: tuple[int, ...]


class SnapshotAsked(Fact, frozen=True):
    """Every replica takes a snapshot of the state at ``epoch``, the epoch of this fact."""

    epoch: int


class LogTruncated(Fact, frozen=True, kw_only=True):
    """The topic of log ``log_id`` may lose its records before ``offset``, the offset of ``epoch``.

    The ``members`` have a snapshot of that epoch with this ``hash``, and all epochs before it.
    ``lost_readers`` are readers that had not reached it in time. Truncation does not wait for them.
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
    """The replica's snapshot of ``epoch`` differs from the one that a majority of the members has.

    The data in the folder ``folder_id`` does not count, and the replica starts over. ``times``
    counts its divergences, this one included.
    """

    replica_id: str
    epoch: int
    folder_id: str
    times: int


class TrimProposed(Fact, frozen=True, kw_only=True):
    """The archive is to begin at ``epoch`` once a majority of the members agrees.

    ``state_id`` has 32 hex digits. The proposal replaces an earlier one. ``at_ms`` is the log's own
    time.
    """

    replica_id: str
    epoch: int
    state_id: str
    at_ms: int


class TrimAgreed(Fact, frozen=True, kw_only=True):
    """A replica has read its snapshot of the proposed epoch and has every later epoch.

    ``hash`` is the snapshot's SHA-256. ``store`` holds all that is before the epoch, if the replica
    has a store.
    """

    replica_id: str
    epoch: int
    hash: str
    store: str = ""


class ArchiveTrimmed(Fact, frozen=True, kw_only=True):
    """Replicas delete the data before ``epoch``.

    The ``members`` have its snapshot with this ``hash``. They keep that snapshot and every epoch
    from this one on. The ``stores`` received the deleted data.
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


# Commands that catch-up replicas, readers, operators and the coordinator send about the archive.
#
# The operation `reconfigure_catch_up` changes the members.


class AnnounceReplica(Command, frozen=True, tag="announce_replica", kw_only=True):
    """Report the address and the folder of a catch-up replica that has started. See ``Replica``."""

    of_services: ClassVar = True

    replica_id: str
    dc: str
    rack: str
    address: str
    folder_id: str = ""


class ForgetReplica(Command, frozen=True, tag="forget_replica", kw_only=True):
    """Forget a replica that never comes back.

    With ``force`` a member is forgotten too, and the data that only it has is given up.
    """

    replica_id: str
    force: bool = False


class AnnounceSnapshot(Command, frozen=True, tag="announce_snapshot", kw_only=True):
    """Report a snapshot of ``epoch`` on a replica's disk, with all epochs since ``first_epoch``.

    See ``AnnouncedSnapshot`` for the fields, ``Replica`` for ``folder_id``.
    """

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    state_id: str
    hash: str
    size_bytes: int
    first_epoch: int
    anchor_offset: int
    log_id: str
    folder_id: str = ""


class WithdrawSnapshot(Command, frozen=True, tag="withdraw_snapshot"):
    """Report that a replica has lost an announced snapshot, or has found it damaged."""

    of_services: ClassVar = True

    replica_id: str
    epoch: int


class AskSnapshot(Command, frozen=True, tag="ask_snapshot"):
    """Ask every replica to take a snapshot now."""


class TruncateLog(Command, frozen=True, tag="truncate_log"):
    """Permit the deletion of records before ``offset``, the offset of ``epoch``, from the topic."""

    epoch: int
    offset: int


class AdmitDivergence(Command, frozen=True, tag="admit_divergence", kw_only=True):
    """Report that the replica's snapshot of ``epoch`` differs from the members'.

    It sets its folder aside.
    """

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    folder_id: str


class ProposeTrim(Command, frozen=True, tag="propose_trim", kw_only=True):
    """Propose, as a member, that the archive begins at ``epoch``.

    ``state_id`` is its state id in 32 hex digits.
    """

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    state_id: str


class AgreeToTrim(Command, frozen=True, tag="agree_to_trim", kw_only=True):
    """Report that a replica has checked its snapshot of the proposed epoch. See ``TrimAgreed``."""

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    hash: str
    store: str = ""
    folder_id: str = ""


class TrimArchive(Command, frozen=True, tag="trim_archive"):
    """Permit the deletion of archived data before ``epoch``.

    A majority of the members has agreed.
    """

    of_services: ClassVar = True

    epoch: int


class AnnounceReader(Command, frozen=True, tag="announce_reader"):
    """Report that a reader of the log no longer needs the epochs before ``epoch``.

    A reader sends it once a minute at most. Only truncation waits for readers.
    """

    reader_id: str
    epoch: int


class ForgetReader(Command, frozen=True, tag="forget_reader"):
    """Forget a reader that never comes back. A reader that still reads announces itself again."""

    reader_id: str


class ChooseMembers(Command, frozen=True, tag="choose_members"):
    """Name the archive's members after the request ``target``, in the order of choice.

    The coordinator of ``term`` chooses them, because the log does not show which replicas are
    alive. ``as_of_epoch`` is ``ArchiveImage.changed_epoch`` at the time of the choice.
    """

    of_services: ClassVar = True

    term: int
    target: str
    members: tuple[str, ...]
    as_of_epoch: int


ArchiveCommand = (
    AnnounceReplica
    | ForgetReplica
    | AnnounceSnapshot
    | WithdrawSnapshot
    | AskSnapshot
    | TruncateLog
    | AdmitDivergence
    | ProposeTrim
    | AgreeToTrim
    | TrimArchive
    | AnnounceReader
    | ForgetReader
    | ChooseMembers
)


# Settings for snapshots, members of the archive and truncation, and bounds of their state.


MAX_REPLICAS: Final = 64
"""Far more than a cluster runs. Processes that restart under new names must not fill the state."""
MAX_READERS: Final = 64
SNAPSHOTS_KEPT: Final = 16
"""Newest announced snapshots that are kept for each replica.

A replica that lags by no more than this number can still agree with the others.
"""

SNAPSHOT_EPOCHS: Final = Count(
    name="snapshot_epochs",
    counts="epochs after which catch-up replicas take the next snapshot",
    default=10_000,
    most=10_000_000,
)
SNAPSHOT_MB: Final = Count(
    name="snapshot_mb",
    counts="MB of records after which catch-up replicas take the next snapshot, if that is sooner",
    default=64,
    most=65_536,
)
ARCHIVE_REPLICATION: Final = Copies(
    name="archive_replication",
    counts="number of catch-up replicas that are members, in all or in each dc",
    default="3",
    most=32,
)
"""The number is an upper limit: one replica alone is the only member, and three are
three members.
"""
TRUNCATE_BEHIND: Final = Count(
    name="truncate_behind",
    counts="number of newest snapshots behind which the log is truncated; 0: only on request",
    default=0,
    least=0,
    most=8,
)
"""Off by default, so that a cluster without working replicas never loses records."""
ARCHIVE_DEAD_AFTER_S: Final = Count(
    name="archive_dead_after_s",
    counts="seconds without a sign of life after which a member is replaced; 0: never by itself",
    default=600,
    least=0,
    most=31_536_000,
)
"""Longer than a restart of a machine takes. Ceph waits similarly before it copies a dead disk's
data.
"""
READER_LOST_AFTER_S: Final = Count(
    name="reader_lost_after_s",
    counts="seconds after which a reader without progress no longer delays truncation",
    default=604_800,
    most=31_536_000,
)
"""A week, the default retention of Kafka."""
ARCHIVE_KEEP_DAYS: Final = Count(
    name="archive_keep_days",
    counts="days that epochs are kept in the archive at least, while old ones are deleted; 0: for ever",
    default=0,
    least=0,
    most=36_500,
)
ARCHIVE_KEEP_EPOCHS: Final = Count(
    name="archive_keep_epochs",
    counts="newest epochs that are kept in the archive at least, while old ones are deleted; 0: all",
    default=0,
    least=0,
    most=1 << 53,
)
"""With both settings, an epoch is deleted once neither setting keeps it."""

LIMITS: Final = (
    SNAPSHOT_EPOCHS,
    SNAPSHOT_MB,
    ARCHIVE_REPLICATION,
    TRUNCATE_BEHIND,
    ARCHIVE_DEAD_AFTER_S,
    READER_LOST_AFTER_S,
    ARCHIVE_KEEP_DAYS,
    ARCHIVE_KEEP_EPOCHS,
)
PROPOSAL_LASTS_S: Final = 3600
"""Seconds before another proposal may replace a pending one. Replicas may have to fold up to it
first.
"""
UPKEEP: Final = "archive_upkeep"
"""The feature that enables trimming of the archive and detection of divergent members."""
EXPLICIT_BEHIND: Final = 2
"""Snapshots kept behind when an operator truncates and ``truncate_behind`` is 0."""


# The archive as people see it: the replicas' announcements, and how far the log can be truncated.


class ReplicaSummary(Replica, frozen=True, kw_only=True):
    """A replica with its announced snapshots, the newest last.

    Snapshots of the epochs in ``diverged`` differ from those of a majority of the members and do
    not count.
    """

    snapshots: tuple[AnnouncedSnapshot, ...] = ()
    diverged: tuple[int, ...] = ()
    began_anew: int = 0
    """Number of times that the replica has diverged and set its data aside."""


class ArchiveSummary(msgspec.Struct, frozen=True):
    """The last request for a snapshot, the truncation of the log, and the beginning of the archive.

    ``proposed`` and ``agreed`` are a pending proposal to begin later, and its votes. 0 or None
    means never.
    """

    asked_epoch: int = 0
    truncated: LogTruncated | None = None
    trimmed: ArchiveTrimmed | None = None
    proposed: TrimProposed | None = None
    agreed: tuple[TrimAgreed, ...] = ()


class AgreedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that a majority of the members has alike, since ``since_ms`` of the log's time."""

    epoch: int
    offset: int
    hash: str
    members: tuple[str, ...]
    since_ms: int


class Trimming(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a proposal to begin the archive later.

    ``trim`` is the fact that can be written now. ``why_not`` is the reason when none can.
    """

    trim: ArchiveTrimmed | None = None
    why_not: str = ""


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """How far the log can be truncated: records before ``offset``, the offset of ``epoch``.

    With epoch 0 no record can be deleted. ``why_not_more`` gives the reason for the limit.
    Truncation does not wait for the ``lost_readers``, which have not reached ``epoch``.
    """

    epoch: int = 0
    offset: int = 0
    lost_readers: tuple[str, ...] = ()
    why_not_more: str = ""


# The archive at one epoch: replicas, their announcements, readers, and the beginning of the log.


class ArchiveImage(msgspec.Struct, frozen=True):
    """The state of the archive.

    ``snapshots`` holds the announced snapshots by replica id, the newest last. ``asked_epoch`` is
    the epoch at which a snapshot was last requested, or 0.
    """

    replicas: Map[str, Replica] = Map()
    snapshots: Map[str, tuple[AnnouncedSnapshot, ...]] = Map()
    readers: Map[str, LogReader] = Map()
    asked_epoch: int = 0
    truncated: LogTruncated | None = None
    diverged: Map[str, ReplicaDiverged] = Map()
    """The last divergence of each replica, by its id, until the replica is forgotten."""
    proposed: TrimProposed | None = None
    agreed: Map[str, TrimAgreed] = Map()
    """Votes for the proposal, by replica."""
    trimmed: ArchiveTrimmed | None = None

    def of_state(self, state: ReplicaState) -> list[str]:
        """Return the replicas in a state, sorted."""
        return sorted(name for name, each in self.replicas.items() if each.state is state)

    def members(self) -> list[str]:
        return self.of_state(ReplicaState.MEMBER)

    def announced(self, replica_id: str) -> tuple[AnnouncedSnapshot, ...]:
        """Return the announced snapshots of a replica, the newest last."""
        return self.snapshots.get(replica_id, ())

    @property
    def truncated_epoch(self) -> int:
        """The first epoch that is certainly in the log; 0 if the log was never truncated."""
        return 0 if self.truncated is None else self.truncated.epoch

    @property
    def trimmed_epoch(self) -> int:
        """The first epoch that is certainly in the archive; 0 if the archive was never trimmed."""
        return 0 if self.trimmed is None else self.trimmed.epoch

    @property
    def changed_epoch(self) -> int:
        """The newest epoch at which a replica entered its state."""
        return max((each.since_epoch for each in self.replicas.values()), default=0)


# Agreement among the members of the archive, and which of them have all of it.


Content = tuple[str, str, int]
"""State id, hash and offset. Two snapshots of one epoch agree when these are equal."""


def majority(members: int) -> int:
    """Return the smallest number that is more than half of ``members``."""
    return members // 2 + 1


def agreed(archive: ArchiveImage, log_id: str, from_epoch: int) -> list[AgreedSnapshot]:
    """Return the snapshots of a log that a majority of the members has, the newest first.

    Only members that have every epoch since ``from_epoch`` count.
    """
    members = archive.members()
    votes: dict[tuple[int, Content], list[tuple[int, str]]] = {}
    for member in members:
        for each in archive.announced(member):
            # A member counts only if it has every epoch that truncation would delete.
            if each.log_id == log_id and each.first_epoch <= from_epoch:
                key = each.epoch, content(each)
                votes.setdefault(key, []).append((each.announced_ms, member))
    needed = majority(len(members))
    return [
        AgreedSnapshot(
            epoch=epoch,
            offset=offset,
            hash=hash_,
            members=tuple(sorted(member for _, member in voted)),
            # The snapshot is agreed when the vote that completes the majority arrives, not with the
            # first vote.
            since_ms=sorted(voted)[needed - 1][0],
        )
        for (epoch, (_, hash_, offset)), voted in sorted(votes.items(), reverse=True)
        if len(voted) >= needed
    ]


def content(snapshot: AnnouncedSnapshot) -> Content:
    return snapshot.state_id, snapshot.hash, snapshot.anchor_offset


def diverged(archive: ArchiveImage) -> dict[str, tuple[int, ...]]:
    """Return, by replica, the epochs whose snapshot differs from that of a majority of the members.

    With two members that differ, neither is right and neither has diverged.
    """
    right = _right(archive)
    found = {
        name: tuple(
            each.epoch
            for each in archive.announced(name)
            if right.get((each.log_id, each.epoch), content(each)) != content(each)
        )
        for name in sorted(archive.snapshots)
    }
    return {name: epochs for name, epochs in found.items() if epochs}


def _right(archive: ArchiveImage) -> dict[tuple[str, int], Content]:
    """Return the content that a majority of the members has, by log and epoch."""
    members = archive.members()
    counts = Counter(
        (each.log_id, each.epoch, content(each))
        for member in members
        for each in archive.announced(member)
    )
    needed = majority(len(members))
    return {(log, epoch): found for (log, epoch, found), n in counts.items() if n >= needed}


def first_epoch(archive: ArchiveImage, members: Iterable[str]) -> int:
    """Return the first epoch since which a majority of ``members`` has all epochs.

    It is never later than the first epoch in the log.
    """
    names = [*members]
    begins = max(archive.truncated_epoch, 1)
    firsts = [
        # A member that has announced no snapshot yet can still read everything that is in the log.
        min((each.first_epoch for each in archive.announced(name)), default=begins)
        for name in names
    ]
    return min(begins, *sorted(firsts)[majority(len(names)) - 1 :][:1]) if names else begins


def has_all(archive: ArchiveImage, replica_id: str, from_epoch: int, to_epoch: int) -> bool:
    """Return True if a replica has all epochs of a range and a correct snapshot of its end.

    The snapshot may be of a later epoch. It is correct if a majority of the members has the same.
    While there is no majority, one other member with a different snapshot makes it count as
    incorrect.
    """
    right = _right(archive)
    return any(
        each.first_epoch <= from_epoch
        and each.epoch >= to_epoch
        and (
            right[each.log_id, each.epoch] == content(each)
            if (each.log_id, each.epoch) in right
            else not disputed(archive, replica_id, each)
        )
        for each in archive.announced(replica_id)
    )


def disputed(archive: ArchiveImage, replica_id: str, snapshot: AnnouncedSnapshot) -> list[str]:
    """Return the other members that have a different snapshot of the same epoch, sorted."""
    return [
        member
        for member in archive.members()
        if member != replica_id
        for each in archive.announced(member)
        if (each.log_id, each.epoch) == (snapshot.log_id, snapshot.epoch)
        and content(each) != content(snapshot)
    ]


# Rows that show the archive's replicas with their announcements and their divergences.


def replica_summaries(archive: ArchiveImage) -> dict[str, ReplicaSummary]:
    """Return the replicas by id, sorted."""
    wrong = diverged(archive)
    return {
        name: ReplicaSummary(
            **msgspec.structs.asdict(archive.replicas[name]),
            snapshots=archive.announced(name),
            diverged=wrong.get(name, ()),
            began_anew=archive.diverged[name].times if name in archive.diverged else 0,
        )
        for name in sorted(archive.replicas)
    }


def archive_summary(archive: ArchiveImage) -> ArchiveSummary:
    return ArchiveSummary(
        archive.asked_epoch,
        archive.truncated,
        archive.trimmed,
        archive.proposed,
        tuple(archive.agreed[name] for name in sorted(archive.agreed)),
    )
