"""What is said about the archive, decided: replicas and their snapshots, readers, and how far the log is
truncated.
"""

import re
from typing import Final

import msgspec

from stele.domain.archive.commands import (
    AnnounceReader,
    AnnounceSnapshot,
    AskSnapshot,
    ForgetReader,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.archive.facts import (
    AnnouncedSnapshot,
    LogReader,
    LogTruncated,
    ReaderChanged,
    ReaderForgotten,
    SnapshotAnnounced,
    SnapshotAsked,
    SnapshotsForgotten,
)
from stele.domain.archive.heads import AgreedSnapshot
from stele.domain.archive.image import ArchiveImage
from stele.domain.archive.limits import MAX_READERS, SNAPSHOTS_KEPT
from stele.domain.archive.truncation import agreed_snapshots, lost_readers, readers_waited_for
from stele.domain.base import Rejection
from stele.domain.cluster.lineage import Standing, standing
from stele.domain.context import Context, Decision, bad_name
from stele.domain.facts import AnyFact
from stele.domain.image import Image

_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
MOST: Final = (1 << 63) - 1
_OURS: Final = (Standing.HERE, Standing.KEPT)


def announce_snapshot(context: Context, command: AnnounceSnapshot) -> Decision:
    """What a replica says again changes nothing; what it says anew of an epoch holds. The newest are kept, of
    those that say no more than this one does of where its epochs begin.
    """
    image, archive = context.image, context.image.archive
    refused = check_replica(archive, command.replica_id, command.folder_id)
    refused = refused or _check_snapshot(image, command)
    if refused is not None:
        return refused
    snapshot = AnnouncedSnapshot(
        epoch=command.epoch,
        state_id=command.state_id,
        hash=command.hash,
        size_bytes=command.size_bytes,
        first_epoch=max(command.first_epoch, min(archive.trimmed_epoch, command.epoch)),
        anchor_offset=command.anchor_offset,
        log_id=command.log_id,
        announced_ms=context.log_ms,
    )
    before = {each.epoch: each for each in archive.announced(command.replica_id)}
    if _says_the_same(before.get(snapshot.epoch), snapshot):
        return ()
    true = {e for e, each in before.items() if each.first_epoch >= snapshot.first_epoch}
    epochs = sorted({*true, snapshot.epoch})[-SNAPSHOTS_KEPT:]
    least = max(archive.truncated_epoch, archive.trimmed_epoch)
    kept = {epoch for epoch in epochs if epoch >= least}
    forgotten = tuple(sorted(before.keys() - kept - {snapshot.epoch}))
    facts: list[AnyFact] = []
    if snapshot.epoch in kept:
        facts.append(SnapshotAnnounced(command.replica_id, snapshot))
    if forgotten:
        facts.append(SnapshotsForgotten(command.replica_id, forgotten))
    return tuple(facts)


def _says_the_same(known: AnnouncedSnapshot | None, snapshot: AnnouncedSnapshot) -> bool:
    """But for when it was said."""
    if known is None:
        return False
    return msgspec.structs.replace(snapshot, announced_ms=known.announced_ms) == known


def withdraw_snapshot(context: Context, command: WithdrawSnapshot) -> Decision:
    archive = context.image.archive
    if command.replica_id not in archive.replicas:
        return unknown_replica(command.replica_id)
    known = command.epoch in [each.epoch for each in archive.announced(command.replica_id)]
    return (SnapshotsForgotten(command.replica_id, (command.epoch,)),) if known else ()


def ask_snapshot(context: Context, command: AskSnapshot) -> Decision:
    if not context.image.archive.replicas:
        return Rejection(
            "no_replicas",
            "There is no catch-up replica to take a snapshot.",
            "Start the service catch-up; `stele catch-up show` lists its replicas.",
        )
    return (SnapshotAsked(context.epoch),)


def truncate_log(context: Context, command: TruncateLog) -> Decision:
    """Only up to a snapshot that a majority of the members has, and that all readers have met that are not
    lost.

    That it goes back behind more than one snapshot is for whoever asks; its own anchor stays in any case.
    """
    image, before = context.image, context.image.archive.truncated
    if before is not None and command.epoch <= before.epoch:
        return Rejection(
            "already_truncated",
            f"The log is truncated up to epoch {before.epoch} already.",
            "There is nothing left to delete.",
            {"epoch": str(before.epoch), "offset": str(before.offset)},
        )
    found = (s for s in agreed_snapshots(image) if s.epoch == command.epoch)
    snapshot = next((s for s in found if s.offset == command.offset), None)
    if snapshot is None:
        return _not_agreed(image, command)
    waiting = readers_waited_for(image, snapshot, context.log_ms)
    if waiting:
        names = ", ".join(f"'{each.reader_id}' is at epoch {each.epoch}" for each in waiting)
        return Rejection(
            "readers_behind",
            f"Readers need records before epoch {snapshot.epoch}: {names}.",
            "Wait for them; or if one never comes back, `stele log readers forget ID`.",
            {"readers": ",".join(each.reader_id for each in waiting)},
        )
    return (_truncated(context, snapshot),)


def _truncated(context: Context, snapshot: AgreedSnapshot) -> LogTruncated:
    image = context.image
    return LogTruncated(
        epoch=snapshot.epoch,
        offset=snapshot.offset,
        log_id=image.log_id.hex(),
        hash=snapshot.hash,
        members=snapshot.members,
        lost_readers=tuple(lost_readers(image, snapshot, context.log_ms)),
    )


def announce_reader(context: Context, command: AnnounceReader) -> Decision:
    """A reader that goes back says so too: it counts with where it is now."""
    image, readers = context.image, context.image.archive.readers
    refused = bad_name("reader", command.reader_id) or _check_epoch(image, command.epoch)
    if refused is not None:
        return refused
    known = readers.get(command.reader_id)
    if known is None and len(readers) >= MAX_READERS:
        return Rejection(
            "too_many_readers",
            f"{len(readers)} readers are known, which is the limit.",
            "Forget those that never come back: `stele log readers forget ID`.",
        )
    if known is not None and known.epoch == command.epoch:
        return ()
    reader = LogReader(reader_id=command.reader_id, epoch=command.epoch, moved_ms=context.log_ms)
    return (ReaderChanged(reader),)


def forget_reader(context: Context, command: ForgetReader) -> Decision:
    if command.reader_id not in context.image.archive.readers:
        return Rejection(
            "unknown_reader",
            f"There is no reader '{command.reader_id[:80]}'.",
            "`stele log readers` lists them.",
        )
    return (ReaderForgotten(command.reader_id),)


def unknown_replica(replica_id: str) -> Rejection:
    return Rejection(
        "unknown_replica",
        f"There is no catch-up replica '{replica_id[:80]}'.",
        "`stele catch-up show` lists them; one that runs announces itself.",
    )


def forgotten_snapshots(archive: ArchiveImage, replica_id: str) -> tuple[AnyFact, ...]:
    """A replica has none any more."""
    epochs = tuple(each.epoch for each in archive.announced(replica_id))
    return (SnapshotsForgotten(replica_id, epochs),) if epochs else ()


def check_replica(archive: ArchiveImage, replica_id: str, folder_id: str) -> Rejection | None:
    replica = archive.replicas.get(replica_id)
    if replica is None:
        return unknown_replica(replica_id)
    if replica.folder_id == folder_id:
        return None
    return Rejection(
        "another_folder",
        f"Replica '{replica_id}' has the folder '{replica.folder_id}' since it announced itself last.",
        "Two processes may have the same id: give each its own. Or announce the replica again first.",
        {"folder_id": replica.folder_id},
    )


def _check_snapshot(image: Image, command: AnnounceSnapshot) -> Rejection | None:
    refused = _check_epoch(image, command.epoch)
    if refused is not None:
        return refused
    if standing(image.founding, command.log_id, command.epoch, command.state_id) not in _OURS:
        return Rejection(
            "foreign_log",
            f"The snapshot is of log '{command.log_id[:40]}', and its epoch is not in this history, of log"
            f" {image.log_id.hex()}.",
            "Take a snapshot of this log: `stele log snapshot` asks for one.",
            {"log_id": image.log_id.hex()},
        )
    flaw = ""
    if not _ID.fullmatch(command.state_id):
        flaw = "state_id has 32 hex digits"
    elif not _SHA256.fullmatch(command.hash):
        flaw = "hash has the 64 hex digits of a SHA-256"
    elif not 1 <= command.first_epoch <= command.epoch:
        flaw = f"first_epoch is from 1 to {command.epoch}"
    elif not (0 <= command.size_bytes <= MOST and 0 <= command.anchor_offset <= MOST):
        flaw = "size_bytes and anchor_offset are not negative, and fit in 8 bytes"
    if not flaw:
        return None
    return Rejection("bad_snapshot", f"The snapshot cannot be: {flaw}.", "Send it as it is.")


def _check_epoch(image: Image, epoch: int) -> Rejection | None:
    if 1 <= epoch <= image.epoch:
        return None
    return Rejection(
        "no_such_epoch",
        f"The log has epochs 1 to {image.epoch}, and no {str(epoch)[:20]}.",
        "Say of which epoch it is; or is it of another cluster?",
        {"epoch": str(image.epoch)},
    )


def _not_agreed(image: Image, command: TruncateLog) -> Rejection:
    found = agreed_snapshots(image)
    known = ", ".join(f"{each.epoch} at offset {each.offset}" for each in found) or "none"
    return Rejection(
        "no_majority",
        f"No majority of the members has announced a snapshot of epoch {str(command.epoch)[:20]} at offset"
        f" {str(command.offset)[:20]}, and all before it. It has of: {known}.",
        "`stele log truncate --dry-run` says up to where the log can be truncated, and why not further.",
    )
