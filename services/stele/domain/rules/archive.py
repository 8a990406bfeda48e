"""The rules of the archive: replicas, their snapshots, readers, truncation and trims."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from immutables import Map

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.archive import (
    MAX_READERS,
    MAX_REPLICAS,
    PROPOSAL_LASTS_S,
    SNAPSHOTS_KEPT,
    UPKEEP,
    AdmitDivergence,
    AgreedSnapshot,
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
    LogReader,
    LogTruncated,
    ProposeTrim,
    ReaderChanged,
    ReaderForgotten,
    Replica,
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
    diverged,
    replica_summaries,
)
from stele.domain.model.cluster import EpochStatus, epoch_status
from stele.domain.names import ReplicaState
from stele.domain.registry_entry import Domain
from stele.domain.rules.retention import (
    Point,
    agreed_snapshots,
    choose_members,
    has_room,
    lost_readers,
    may_propose,
    readers_waited_for,
    trimming,
    why_not_at,
    why_not_without,
)
from stele.domain.tables import Json, sorted_values

replace = msgspec.structs.replace

_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
MOST: Final = (1 << 63) - 1
_OURS: Final = (EpochStatus.HERE, EpochStatus.KEPT)


def announce_snapshot(context: Context, command: AnnounceSnapshot) -> Decision:
    """Accept a replica's snapshot.

    A repeated announcement changes nothing; a new one replaces the old.

    The newest ``SNAPSHOTS_KEPT`` snapshots are kept. Older announcements that claim earlier epochs
    than this one are forgotten.
    """
    image, archive = context.image, context.image.archive
    required(check_replica(archive, command.replica_id, command.folder_id))
    required(_check_snapshot(image, command))
    snapshot = AnnouncedSnapshot(
        epoch=command.epoch,
        state_id=command.state_id,
        hash=command.hash,
        size_bytes=command.size_bytes,
        # After a trim, no replica counts as having earlier epochs.
        first_epoch=max(command.first_epoch, min(archive.trimmed_epoch, command.epoch)),
        anchor_offset=command.anchor_offset,
        log_id=command.log_id,
        announced_ms=context.log_ms,
    )
    before = {each.epoch: each for each in archive.announced(command.replica_id)}
    # A replica repeats its announcements. A fact for each repetition would let an idle log grow.
    if _says_the_same(before.get(snapshot.epoch), snapshot):
        return ()
    # This announcement is the newest about where the replica's epochs begin. Older ones that claim
    # more would count for epochs that the replica no longer has.
    true = {e for e, each in before.items() if each.first_epoch >= snapshot.first_epoch}
    epochs = sorted({*true, snapshot.epoch})[-SNAPSHOTS_KEPT:]
    # Snapshots from before the beginning of the log or of the archive are of no further use.
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
    """Return True when both are equal except for the time of the announcement."""
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
    """Permit truncation up to a snapshot that a majority has, if no live reader needs more.

    The sender chooses how many snapshots to keep behind. The snapshot's own anchor is kept in any
    case.
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
    # Records are deleted by offset, so another offset than the agreed one must not pass.
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
    """Record a reader's position.

    A reader that goes back to an older epoch counts with that epoch.
    """
    image, readers = context.image, context.image.archive.readers
    required(bad_name("reader", command.reader_id) or _check_epoch(image, command.epoch))
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
    """Return the fact that forgets all snapshots of a replica, or nothing if it has
    announced none.
    """
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
    required(_check_epoch(image, command.epoch))
    # A recovered log continues an older history. Snapshots of the older log count if this history
    # contains their epoch.
    if epoch_status(image.founding, command.log_id, command.epoch, command.state_id) not in _OURS:
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


# Replicas whose snapshots differ from the members'.
#
# Their data does not count, and they start over.


TIMES: Final = 2
"""Divergences after which a replica is replaced like a dead member. Its disk or its build is
faulty.
"""


def to_admit(image: Image, replica_id: str) -> int:
    """Return the newest epoch at which a replica has diverged and must admit it, or 0."""
    if UPKEEP not in image.features.enabled:
        return 0
    epochs = diverged(image.archive).get(replica_id, ())
    return epochs[-1] if epochs else 0


def has_admitted_divergence(archive: ArchiveImage, replica_id: str, folder_id: str) -> bool:
    """Return True if the log records already that the data in this folder does not count."""
    last = archive.diverged.get(replica_id)
    return last is not None and last.folder_id == folder_id


def unreliable(archive: ArchiveImage) -> set[str]:
    """Return the replicas that must be replaced."""
    return {name for name, last in archive.diverged.items() if last.times >= TIMES}


def admit_divergence(context: Context, command: AdmitDivergence) -> Decision:
    """Record a divergence, once for each folder, and forget the replica's announced snapshots."""
    archive = context.image.archive
    required(check_replica(archive, command.replica_id, command.folder_id))
    if has_admitted_divergence(archive, command.replica_id, command.folder_id):
        return ()
    if command.epoch not in diverged(archive).get(command.replica_id, ()):
        return Rejection(
            "not_diverged",
            f"The snapshot of epoch {str(command.epoch)[:20]} that '{command.replica_id}' has announced is not"
            " another one than a majority of the members has.",
            "`stele catch-up show` says who has diverged.",
        )
    before = archive.diverged.get(command.replica_id)
    fact = ReplicaDiverged(
        replica_id=command.replica_id,
        epoch=command.epoch,
        folder_id=command.folder_id,
        times=1 if before is None else before.times + 1,
    )
    return fact, *forgotten_snapshots(archive, command.replica_id)


# Decisions on trimming the archive: a proposal, the replicas' agreement, and then a fact.


MAX_STORE_CHARS: Final = 1024


def propose_trim(context: Context, command: ProposeTrim) -> Decision:
    """Accept a member's proposal if the settings and the readers permit it now."""
    image, archive = context.image, context.image.archive
    replica = archive.replicas.get(command.replica_id)
    if replica is None:
        return unknown_replica(command.replica_id)
    if replica.state is not ReplicaState.MEMBER:
        return Rejection(
            "not_a_member",
            f"Replica '{command.replica_id}' is not a member of the archive.",
            "Members propose where it begins: `stele catch-up show` lists them.",
        )
    if not (_ID.fullmatch(command.state_id) and 1 <= command.epoch <= image.epoch):
        return Rejection(
            "no_such_epoch",
            f"There is no epoch {str(command.epoch)[:20]} with state id '{command.state_id[:40]}'.",
            "Give an epoch of the log, and 32 hex digits.",
        )
    if not may_propose(image, context.log_ms):
        assert archive.proposed is not None
        return Rejection(
            "already_proposed",
            f"Epoch {archive.proposed.epoch} is proposed already.",
            f"Agree to it; after {PROPOSAL_LASTS_S} s another one is taken.",
            {"epoch": str(archive.proposed.epoch)},
        )
    point = Point(command.epoch, bytes.fromhex(command.state_id))
    why = why_not_at(image, point, context.log_ms)
    if why:
        return _not_trimmed(command.epoch, why)
    return (
        TrimProposed(
            replica_id=command.replica_id,
            epoch=command.epoch,
            state_id=command.state_id,
            at_ms=context.log_ms,
        ),
    )


def agree_to_trim(context: Context, command: AgreeToTrim) -> Decision:
    archive = context.image.archive
    required(check_replica(archive, command.replica_id, command.folder_id))
    proposed = archive.proposed
    if proposed is None or proposed.epoch != command.epoch:
        return _not_proposed(command.epoch)
    store = command.store
    if (
        not _SHA256.fullmatch(command.hash)
        or len(store) > MAX_STORE_CHARS
        or not f"{store}x".isprintable()
    ):
        return Rejection(
            "bad_snapshot",
            "The hash has the 64 hex digits of a SHA-256, and the store is a URL.",
            "Send them as they are.",
        )
    vote = TrimAgreed(
        replica_id=command.replica_id, epoch=command.epoch, hash=command.hash, store=store
    )
    return () if archive.agreed.get(command.replica_id) == vote else (vote,)


def trim_archive(context: Context, command: TrimArchive) -> Decision:
    """Trim the archive if the rule still permits it and a majority of the members agrees."""
    proposed = context.image.archive.proposed
    if proposed is None or proposed.epoch != command.epoch:
        return _not_proposed(command.epoch)
    # Readers and settings may have changed since the proposal, so every rule is checked again.
    found = trimming(context.image, context.log_ms)
    return _not_trimmed(command.epoch, found.why_not) if found.trim is None else (found.trim,)


def _not_proposed(epoch: int) -> Rejection:
    return Rejection(
        "not_proposed",
        f"It is not proposed that the archive begins at epoch {str(epoch)[:20]}.",
        "Members propose it once the settings archive_keep_days and archive_keep_epochs allow it.",
    )


def _not_trimmed(epoch: int, why: str) -> Rejection:
    return Rejection(
        "not_trimmed",
        f"The archive does not begin at epoch {epoch}: {why}.",
        "`stele catch-up show` says where it begins, and what is waited for.",
    )


# Decisions on catch-up replicas that are announced or forgotten.


MAX_ADDRESS_CHARS = 256


def announce_replica(context: Context, command: AnnounceReplica) -> Decision:
    """Add or update the row of a replica.

    With another folder, its announced snapshots are forgotten.

    While no record was deleted from the log, the first replicas become members at once, as many as
    the setting asks for. The log itself has all that they need. The first replica of all becomes a
    member at once, too.
    """
    image, archive = context.image, context.image.archive
    required(_check_replica(command))
    known = archive.replicas.get(command.replica_id)
    if known is None and len(archive.replicas) >= MAX_REPLICAS:
        return Rejection(
            "too_many_replicas",
            f"{len(archive.replicas)} catch-up replicas are known, which is the limit.",
            "Forget those that never come back: `stele catch-up forget ID`. Let each process keep its id.",
        )
    state = ReplicaState.CANDIDATE if known is None else known.state
    if state is ReplicaState.CANDIDATE and has_room(image, command.replica_id, command.dc):
        state = ReplicaState.MEMBER
    stays = known is not None and known.state is state
    replica = Replica(
        replica_id=command.replica_id,
        dc=command.dc,
        rack=command.rack,
        address=command.address,
        state=state,
        since_epoch=known.since_epoch if known is not None and stays else context.epoch,
        folder_id=command.folder_id,
    )
    if known == replica:
        return ()
    # The announced snapshots were files in the other folder. They must not count for a majority.
    lost = known is not None and known.folder_id != replica.folder_id
    forgotten = forgotten_snapshots(archive, command.replica_id) if lost else ()
    return ReplicaChanged(replica), *forgotten


def forget_replica(context: Context, command: ForgetReplica) -> Decision:
    """Forget a replica.

    A member is forgotten only if the others can do without it, or with ``force``.
    """
    archive = context.image.archive
    if command.replica_id not in archive.replicas:
        return unknown_replica(command.replica_id)
    why = why_not_without(context.image, command.replica_id)
    if why and not command.force:
        return Rejection(
            "member_needed",
            f"Replica '{command.replica_id}' is a member: {why}.",
            "Start others and `stele catch-up reconfigure`; or if it is gone for good, say `force`: what only"
            " it has is given up.",
        )
    return (ReplicaForgotten(command.replica_id, unsafe=bool(why)),)


def _check_replica(command: AnnounceReplica) -> Rejection | None:
    refused = (
        bad_name("catch-up replica", command.replica_id)
        or bad_name("dc", command.dc)
        or bad_name("rack", command.rack)
        or (bad_name("folder", command.folder_id) if command.folder_id else None)
    )
    if refused is not None:
        return refused
    scheme, _, place = command.address.partition("://")
    plain = command.address.isprintable() and " " not in command.address
    if scheme in ("http", "https") and place and plain and len(place) <= MAX_ADDRESS_CHARS:
        return None
    return Rejection(
        "bad_address",
        f"'{command.address[:80]}' is not an address of a catch-up replica.",
        "Give its URL, such as http://10.0.0.7:8086.",
    )


# The folds and views of the archive, and its entry in the registry.


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


def rows(image: ArchiveImage) -> Json:
    return {
        "catch_up_replicas": replica_summaries(image),
        "log_readers": image.readers,
        "archive": archive_summary(image),
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
    rows=rows,
)
