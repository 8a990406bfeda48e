"""The archive's entry in the registry. An operation changes its members."""

from collections.abc import Iterable

import msgspec
from immutables import Map

from stele.domain.archive.decide import (
    admit_divergence,
    agree_to_trim,
    announce_reader,
    announce_replica,
    announce_snapshot,
    ask_snapshot,
    forget_reader,
    forget_replica,
    propose_trim,
    trim_archive,
    truncate_log,
    withdraw_snapshot,
)
from stele.domain.archive.model import (
    UPKEEP,
    AdmitDivergence,
    AgreeToTrim,
    AnnouncedSnapshot,
    AnnounceReader,
    AnnounceReplica,
    AnnounceSnapshot,
    ArchiveFact,
    ArchiveImage,
    ArchiveTrimmed,
    AskSnapshot,
    ChooseMembers,
    ForgetReader,
    ForgetReplica,
    LogTruncated,
    ProposeTrim,
    ReaderChanged,
    ReaderForgotten,
    ReplicaChanged,
    ReplicaDiverged,
    ReplicaForgotten,
    SnapshotAnnounced,
    SnapshotAsked,
    SnapshotsForgotten,
    TrimAgreed,
    TrimArchive,
    TrimProposed,
    TruncateLog,
    WithdrawSnapshot,
    archive_summary,
    replica_summaries,
)
from stele.domain.archive.retention import choose_members
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields, changed_rows, row_json, sorted_values

replace = msgspec.structs.replace


def replica_changed(image: ArchiveImage, fact: ReplicaChanged) -> ArchiveImage:
    replica_id = fact.replica.replica_id
    known = image.replicas.get(replica_id)
    if known is not None and known.folder_id != fact.replica.folder_id:
        # Another folder has none of the files for which the replica voted.
        image = _without_vote(image, replica_id)
    return replace(image, replicas=image.replicas.set(replica_id, fact.replica))


def replica_forgotten(image: ArchiveImage, fact: ReplicaForgotten) -> ArchiveImage:
    forgotten = replace(image, replicas=image.replicas.delete(fact.replica_id))
    if fact.replica_id in image.diverged:
        forgotten = replace(forgotten, diverged=image.diverged.delete(fact.replica_id))
    return _with_snapshots(_without_vote(forgotten, fact.replica_id), fact.replica_id, ())


def snapshot_announced(image: ArchiveImage, fact: SnapshotAnnounced) -> ArchiveImage:
    found = {each.epoch: each for each in (*image.announced(fact.replica_id), fact.snapshot)}
    return _with_snapshots(image, fact.replica_id, tuple(found[epoch] for epoch in sorted(found)))


def snapshots_forgotten(image: ArchiveImage, fact: SnapshotsForgotten) -> ArchiveImage:
    before = image.announced(fact.replica_id)
    left = tuple(each for each in before if each.epoch not in fact.epochs)
    return _with_snapshots(image, fact.replica_id, left)


def _with_snapshots(
    image: ArchiveImage, replica_id: str, snapshots: tuple[AnnouncedSnapshot, ...]
) -> ArchiveImage:
    if snapshots:
        return replace(image, snapshots=image.snapshots.set(replica_id, snapshots))
    known = replica_id in image.snapshots
    return replace(image, snapshots=image.snapshots.delete(replica_id)) if known else image


def snapshot_asked(image: ArchiveImage, fact: SnapshotAsked) -> ArchiveImage:
    return replace(image, asked_epoch=fact.epoch)


def log_truncated(image: ArchiveImage, fact: LogTruncated) -> ArchiveImage:
    return replace(image, truncated=fact)


def reader_changed(image: ArchiveImage, fact: ReaderChanged) -> ArchiveImage:
    return replace(image, readers=image.readers.set(fact.reader.reader_id, fact.reader))


def reader_forgotten(image: ArchiveImage, fact: ReaderForgotten) -> ArchiveImage:
    return replace(image, readers=image.readers.delete(fact.reader_id))


def replica_diverged(image: ArchiveImage, fact: ReplicaDiverged) -> ArchiveImage:
    told = replace(image, diverged=image.diverged.set(fact.replica_id, fact))
    # The replica's snapshot is not the members', so its agreement to a trim does not count either.
    return _without_vote(told, fact.replica_id)


def trim_proposed(image: ArchiveImage, fact: TrimProposed) -> ArchiveImage:
    # Votes name a snapshot of the earlier proposal. They must not count for this one.
    return replace(image, proposed=fact, agreed=Map())


def trim_agreed(image: ArchiveImage, fact: TrimAgreed) -> ArchiveImage:
    return replace(image, agreed=image.agreed.set(fact.replica_id, fact))


def archive_trimmed(image: ArchiveImage, fact: ArchiveTrimmed) -> ArchiveImage:
    """Fold the trim: no replica counts as having epochs before the new beginning."""
    trimmed = replace(image, trimmed=fact, proposed=None, agreed=Map())
    for replica_id in sorted(image.snapshots):
        left = tuple(
            replace(each, first_epoch=max(each.first_epoch, fact.epoch))
            for each in image.announced(replica_id)
            # A snapshot from before the new beginning is deleted with its epochs.
            if each.epoch >= fact.epoch
        )
        trimmed = _with_snapshots(trimmed, replica_id, left)
    return trimmed


def _without_vote(image: ArchiveImage, replica_id: str) -> ArchiveImage:
    known = replica_id in image.agreed
    return replace(image, agreed=image.agreed.delete(replica_id)) if known else image


def to_facts(image: ArchiveImage) -> Iterable[ArchiveFact]:
    for replica in sorted_values(image.replicas):
        yield ReplicaChanged(replica)
    for replica_id in sorted(image.snapshots):
        for snapshot in image.snapshots[replica_id]:
            yield SnapshotAnnounced(replica_id, snapshot)
    for reader in sorted_values(image.readers):
        yield ReaderChanged(reader)
    if image.asked_epoch:
        yield SnapshotAsked(image.asked_epoch)
    if image.truncated is not None:
        yield image.truncated
    yield from sorted_values(image.diverged)
    if image.trimmed is not None:
        yield image.trimmed
    if image.proposed is not None:
        yield image.proposed
    yield from sorted_values(image.agreed)


def view(image: ArchiveImage) -> Json:
    return {
        "catch_up_replicas": tuple(replica_summaries(image).values()),
        "log_readers": tuple(sorted_values(image.readers)),
        "archive": archive_summary(image),
    }


def diff(before: ArchiveImage, after: ArchiveImage) -> Json:
    one, two = replica_summaries(before), replica_summaries(after)
    return {
        "catch_up_replicas": changed_rows("replica_id", one, two),
        "log_readers": changed_rows("reader_id", before.readers, after.readers),
        "archive": changed_fields(
            row_json(archive_summary(before)),
            row_json(archive_summary(after)),
        ),
    }


DOMAIN = Domain(
    name="archive",
    empty=ArchiveImage(),
    decide={
        AnnounceReplica: announce_replica,
        ForgetReplica: forget_replica,
        AnnounceSnapshot: announce_snapshot,
        WithdrawSnapshot: withdraw_snapshot,
        AskSnapshot: ask_snapshot,
        TruncateLog: truncate_log,
        AnnounceReader: announce_reader,
        ForgetReader: forget_reader,
        ChooseMembers: choose_members,
        AdmitDivergence: admit_divergence,
        ProposeTrim: propose_trim,
        AgreeToTrim: agree_to_trim,
        TrimArchive: trim_archive,
    },
    apply={
        ReplicaChanged: replica_changed,
        ReplicaForgotten: replica_forgotten,
        SnapshotAnnounced: snapshot_announced,
        SnapshotsForgotten: snapshots_forgotten,
        SnapshotAsked: snapshot_asked,
        LogTruncated: log_truncated,
        ReaderChanged: reader_changed,
        ReaderForgotten: reader_forgotten,
        ReplicaDiverged: replica_diverged,
        TrimProposed: trim_proposed,
        TrimAgreed: trim_agreed,
        ArchiveTrimmed: archive_trimmed,
    },
    features=dict.fromkeys((ReplicaDiverged, TrimProposed, TrimAgreed, ArchiveTrimmed), UPKEEP),
    to_facts=to_facts,
    view=view,
    diff=diff,
)
