"""The members of the archive, the epoch at which it may begin, and the limit of truncation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.archive import (
    ARCHIVE_KEEP_DAYS,
    ARCHIVE_KEEP_EPOCHS,
    ARCHIVE_REPLICATION,
    EXPLICIT_BEHIND,
    PROPOSAL_LASTS_S,
    READER_LOST_AFTER_S,
    TRUNCATE_BEHIND,
    UPKEEP,
    AgreedSnapshot,
    ArchiveImage,
    ArchiveTrimmed,
    ChooseMembers,
    LogReader,
    Replica,
    ReplicaChanged,
    TrimAgreed,
    Trimming,
    TrimProposed,
    Truncation,
    agreed,
    disputed,
    diverged,
    first_epoch,
    has_all,
    majority,
)
from stele.domain.model.requests import Request, RequestChanged, state_time_ms
from stele.domain.names import ReplicaState, RequestStatus
from stele.domain.rules.requests import overtaken, request_in_term, started

replace = msgspec.structs.replace

ANY_DC: Final = ""
"""Key in a replication for copies that may be in any dc."""
_STAYS: Final = {ReplicaState.MEMBER: 0, ReplicaState.JOINING: 1, ReplicaState.CANDIDATE: 2}
"""Rank of a replica by its state. Present members come before others."""


def choose(
    replicas: Iterable[Replica], wanted: Mapping[str, int], last: Set[str] = frozenset()
) -> tuple[str, ...]:
    """Return the members for a replication, in the order of choice.

    They are spread over dcs, then over racks. Present members come before others, and the replicas
    in ``last`` come after all others. The result is shorter than wanted if there are too few
    replicas.
    """
    found, chosen = list(replicas), list[Replica]()

    def rank(each: Replica) -> tuple[bool, int, int, int, str]:
        in_dc = sum(other.dc == each.dc for other in chosen)
        in_rack = sum((other.dc, other.rack) == (each.dc, each.rack) for other in chosen)
        return each.replica_id in last, in_dc, in_rack, _STAYS[each.state], each.replica_id

    # The rank depends on the members chosen so far, so it is computed for each choice.
    for dc, count in sorted(wanted.items()):
        for _ in range(count):
            free = [r for r in found if dc in (ANY_DC, r.dc) and r not in chosen]
            chosen += sorted(free, key=rank)[:1]
    return tuple(each.replica_id for each in chosen)


def wanted_members(image: Image) -> dict[str, int]:
    """Return the setting's goal: dc -> members, or the number of members in any dc."""
    return ARCHIVE_REPLICATION.of(image.features.settings)


def fits(replicas: Iterable[Replica], others: Iterable[Replica], wanted: Mapping[str, int]) -> bool:
    """Return True if both have equally many replicas, in each dc if the replication
    counts by dc.
    """
    by_dc = ANY_DC not in wanted
    counts = [Counter(each.dc if by_dc else ANY_DC for each in side) for side in (replicas, others)]
    return counts[0] == counts[1]


def has_room(image: Image, replica_id: str, dc: str) -> bool:
    """Return True if a replica may become a member at once.

    That requires fewer members than the setting asks for, and a log that still has all epochs. A
    replica is also a member at once while there is no member.
    """
    archive, wanted = image.archive, wanted_members(image)
    members = [archive.replicas[name] for name in archive.members() if name != replica_id]
    # An open reconfiguration has counted the members already. A further one would change what a
    # majority is.
    if image.requests.reconfigurations() or (members and archived_until(image)):
        return False
    if ANY_DC in wanted:
        return len(members) < wanted[ANY_DC]
    return sum(each.dc == dc for each in members) < wanted.get(dc, 0)


def archived_until(image: Image) -> int:
    """Return the last epoch that may be in the archive alone; 0 if the log has all epochs.

    Earlier epochs were deleted from the log, or the log is a recovered one that begins after them.
    """
    last_epochs = (each.last_epoch for each in image.founding.incarnations)
    return max(image.archive.truncated_epoch, *last_epochs, 0)


def why_not_without(image: Image, replica_id: str) -> str:
    """Return why the other members cannot do without this one, or an empty text.

    The text is also empty if the replica is no member.

    They can if a majority of them has all epochs that are not in the log, from the same first
    epoch.
    """
    archive, until = image.archive, archived_until(image)
    members = archive.members()
    others = [name for name in members if name != replica_id]
    if len(others) == len(members):
        return ""
    if not others:
        return "it is the only one"
    # The log has all epochs, so every replica can read them there.
    if not until:
        return ""
    from_epoch = first_epoch(archive, members)
    having = [name for name in others if has_all(archive, name, from_epoch, until)]
    needed = majority(len(others))
    if len(having) >= needed:
        return ""
    return (
        f"{needed} of the other members must have epochs {from_epoch} to {until}, which are not all in the log;"
        f" {', '.join(having) or 'none'} has"
    )


def why_not_member(image: Image, replica_id: str) -> str:
    """Return what a joining replica still lacks to become a member; empty if it lacks nothing.

    It needs all that the members have, up to the epoch at which it began to join.
    """
    archive = image.archive
    from_epoch = first_epoch(archive, archive.members())
    # All replicas take a snapshot at the epoch at which it began to join, so there is always one to
    # compare with.
    to_epoch = max(archive.replicas[replica_id].since_epoch, archived_until(image))
    if has_all(archive, replica_id, from_epoch, to_epoch):
        return ""
    announced, wrong = archive.announced(replica_id), diverged(archive).get(replica_id)
    if wrong:
        found = f"its snapshot of epoch {wrong[-1]} is not the members'"
    elif not announced:
        found = "it has announced none"
    else:
        newest = announced[-1]
        others = disputed(archive, replica_id, newest)
        found = f"it has {newest.first_epoch} to {newest.epoch}"
        found += f", of which {', '.join(others)} has another snapshot" if others else ""
    return (
        f"{replica_id} to have a snapshot of epoch {to_epoch} or later, and all epochs from {from_epoch} on;"
        f" {found}"
    )


def choose_members(context: Context, command: ChooseMembers) -> Decision:
    """Record the choice for the request whose turn it is, or another choice while it runs.

    A joining replica that is not chosen becomes a candidate again.
    """
    image, archive = context.image, context.image.archive
    request = required(request_in_term(image, command.term, command.target))
    if request not in image.requests.reconfigurations()[:1]:
        return overtaken(image, f"It is not the turn of request {request.request_id}.")
    pending = request.status is RequestStatus.PENDING
    # The same choice again would change nothing.
    is_known = command.members == request.members and not pending
    if command.as_of_epoch != archive.changed_epoch or is_known:
        return overtaken(image, "The catch-up replicas have changed since they were chosen.")
    required(_check_choice(archive, request, command.members))
    row = replace(started(context, request) if pending else request, members=command.members)
    return RequestChanged(row), *back_to_candidates(context.epoch, archive, command.members)


def _check_choice(
    archive: ArchiveImage, request: Request, members: tuple[str, ...]
) -> Rejection | None:
    """Refuse unless each replica is known and there are no more than the request asks for."""
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    known = {name for name in members if name in archive.replicas}
    dcs = Counter(archive.replicas[name].dc for name in known)
    most = wanted.get(ANY_DC, 0)
    within = dcs.total() <= most or all(count <= wanted.get(dc, 0) for dc, count in dcs.items())
    if known and len(known) == len(members) and within:
        return None
    return Rejection(
        "bad_members",
        f"{', '.join(members)[:200] or 'Nobody'} cannot be the members: {request.archive_replication} are"
        " asked for, each of them a catch-up replica that is known, and at least one.",
        "Read the newest state and choose again.",
    )


def back_to_candidates(
    epoch: int, archive: ArchiveImage, members: tuple[str, ...]
) -> Iterable[ReplicaChanged]:
    """Return joining replicas outside of ``members`` to candidates."""
    joining = archive.of_state(ReplicaState.JOINING)
    return (
        with_state(epoch, archive, name, ReplicaState.CANDIDATE)
        for name in joining
        if name not in members
    )


def with_state(
    epoch: int, archive: ArchiveImage, replica_id: str, state: ReplicaState
) -> ReplicaChanged:
    replica: Replica = replace(archive.replicas[replica_id], state=state, since_epoch=epoch)
    return ReplicaChanged(replica)


# The epoch at which the archive may begin: old enough by the settings, and agreed by a majority.
#
# The kept part begins with the snapshot and the record of one epoch, the same at all replicas. It
# is never later than the first epoch of the log, so the archive has all that the topic has. It is
# never later than the position of a reader.


SECOND_MS = 1000
DAY_MS = 86_400_000


class Point(NamedTuple):
    """An epoch at which the archive may begin, and its state id."""

    epoch: int
    state_id: bytes


def why_not_at(image: Image, point: Point, now_ms: int) -> str:
    """Return why the archive must not begin at this point, or an empty text.

    ``now_ms`` is the log's own time.
    """
    trimmed, until = image.archive.trimmed_epoch, archived_until(image)
    why = why_for_ever(image)
    if not why and point.epoch <= trimmed:
        why = f"the archive begins at epoch {trimmed} already"
    if not why and point.epoch > until:
        begins = max(until, 1)
        why = f"the log itself begins at epoch {begins}, and the archive has all that the log has"
    return why or _why_kept(image, point, now_ms)


def why_for_ever(image: Image) -> str:
    """Return why archived epochs are never deleted, or an empty text if a rule deletes them."""
    settings = image.features.settings
    if not ARCHIVE_KEEP_DAYS.of(settings) and not ARCHIVE_KEEP_EPOCHS.of(settings):
        return "it is kept for ever: neither archive_keep_days nor archive_keep_epochs is set"
    if UPKEEP not in image.features.enabled:
        return f"feature {UPKEEP} is not enabled: `stele features enable {UPKEEP}`"
    return ""


def _why_kept(image: Image, point: Point, now_ms: int) -> str:
    """Return the setting or the readers that keep the epoch, or an empty text."""
    settings = image.features.settings
    days, epochs = ARCHIVE_KEEP_DAYS.of(settings), ARCHIVE_KEEP_EPOCHS.of(settings)
    if image.epoch - point.epoch < epochs:
        return f"the newest {epochs} epochs are kept: archive_keep_epochs"
    # The age is in the state id, which has the log's own time. A member with a wrong clock can thus
    # propose only a point that all members accept.
    if days and now_ms - state_time_ms(point.state_id) < days * DAY_MS:
        return f"epochs of the last {days} days are kept: archive_keep_days"
    since_ms = state_time_ms(point.state_id)
    waiting = [r for r in _behind(image, point.epoch) if not _is_lost(image, r, since_ms, now_ms)]
    return ", ".join(f"reader {each.reader_id} is at epoch {each.epoch}" for each in waiting)


def to_propose(image: Image, points: Iterable[Point], now_ms: int) -> Point | None:
    """Return the newest point at which the archive may begin; None while a proposal is pending."""
    if not may_propose(image, now_ms):
        return None
    found = [point for point in points if not why_not_at(image, point, now_ms)]
    return max(found, default=None)


def may_propose(image: Image, now_ms: int) -> bool:
    """Return True if no proposal is pending, or if the pending one is too old to succeed."""
    proposed = image.archive.proposed
    return proposed is None or now_ms - proposed.at_ms > PROPOSAL_LASTS_S * SECOND_MS


def trimming(image: Image, now_ms: int) -> Trimming:
    """Return the fact that the present proposal permits, or why it permits none."""
    archive = image.archive
    proposed = archive.proposed
    if proposed is None:
        why = why_for_ever(image) or "no snapshot is old enough for it to begin at"
        return Trimming(why_not=why)
    why = why_not_at(image, point_of(proposed), now_ms)
    if why:
        return Trimming(why_not=why)
    members, votes = archive.members(), agreeing(archive.members(), archive.agreed.values())
    needed = majority(len(members))
    if len(votes) < needed:
        found = ", ".join(vote.replica_id for vote in votes) or "none"
        return Trimming(
            why_not=f"{needed} of the {len(members)} members must have the same snapshot of epoch"
            f" {proposed.epoch}, and what is before it in their stores if they have one; {found} has"
        )
    return Trimming(
        trim=ArchiveTrimmed(
            epoch=proposed.epoch,
            state_id=proposed.state_id,
            hash=votes[0].hash,
            members=tuple(vote.replica_id for vote in votes),
            stores=tuple(sorted({vote.store for vote in votes if vote.store})),
            # Readers that are behind but not lost would have stopped the trim above.
            lost_readers=tuple(each.reader_id for each in _behind(image, proposed.epoch)),
        )
    )


def agreeing(members: Iterable[str], votes: Iterable[TrimAgreed]) -> list[TrimAgreed]:
    """Return the members' votes for the hash that most of them have, sorted by replica."""
    by_hash = dict[str, list[TrimAgreed]]()
    known = {*members}
    for vote in sorted(votes, key=lambda each: each.replica_id):
        if vote.replica_id in known:
            by_hash.setdefault(vote.hash, []).append(vote)
    return max((by_hash[name] for name in sorted(by_hash)), key=len, default=[])


def point_of(proposed: TrimProposed) -> Point:
    return Point(proposed.epoch, bytes.fromhex(proposed.state_id))


def _behind(image: Image, epoch: int) -> list[LogReader]:
    readers = image.archive.readers
    return [readers[name] for name in sorted(readers) if readers[name].epoch < epoch]


def _is_lost(image: Image, reader: LogReader, since_ms: int, now_ms: int) -> bool:
    """Return True if the reader has not moved for too long although it had something to read.

    Time counts from ``since_ms``, when there was something to read. An idle log thus loses no
    reader.
    """
    still_ms = now_ms - max(reader.moved_ms, since_ms)
    return still_ms > SECOND_MS * READER_LOST_AFTER_S.of(image.features.settings)


# The limit of truncation: a snapshot that a majority has, with all epochs before it.
#
# The kept records begin with the record of that snapshot's epoch, its anchor. A reader of the
# snapshot therefore finds the offset at which to continue. Truncation deletes only what a majority
# has, and never the anchor of the newest agreed snapshot.


def truncatable(image: Image, now_ms: int) -> Truncation:
    """Return how far the log can be truncated now. ``now_ms`` decides which readers are lost."""
    archive, behind = image.archive, snapshots_behind(image)
    found = agreed_snapshots(image)
    if len(found) < behind:
        return Truncation(why_not_more=_too_few(archive, len(found), behind))
    why = f"the log is truncated behind the {behind} newest snapshots that a majority of the members has"
    # The list is sorted with the newest first, so the first snapshot that no reader waits for is
    # the farthest.
    for snapshot in found[behind - 1 :]:
        # All further snapshots are older, and the log is truncated beyond them already.
        if snapshot.epoch <= archive.truncated_epoch:
            break
        waiting = readers_waited_for(image, snapshot, now_ms)
        if not waiting:
            lost = tuple(lost_readers(image, snapshot, now_ms))
            return Truncation(
                epoch=snapshot.epoch, offset=snapshot.offset, lost_readers=lost, why_not_more=why
            )
        why = ", ".join(f"reader {each.reader_id} is at epoch {each.epoch}" for each in waiting)
    return Truncation(why_not_more=why)


def snapshots_behind(image: Image) -> int:
    """Return how many agreed snapshots the log must still reach behind."""
    return TRUNCATE_BEHIND.of(image.features.settings) or EXPLICIT_BEHIND


def agreed_snapshots(image: Image) -> list[AgreedSnapshot]:
    """Return the snapshots that the log may be truncated to, the newest first.

    A member that has one of them has all epochs that the log has before it.
    """
    from_epoch = max(image.archive.truncated_epoch, 1)
    return agreed(image.archive, image.log_id.hex(), from_epoch)


def readers_waited_for(image: Image, snapshot: AgreedSnapshot, now_ms: int) -> list[LogReader]:
    """Return the readers that need records before a snapshot and are not lost."""
    return [
        each
        for each in _behind(image, snapshot.epoch)
        if not _is_lost(image, each, snapshot.since_ms, now_ms)
    ]


def lost_readers(image: Image, snapshot: AgreedSnapshot, now_ms: int) -> list[str]:
    """Return the readers that need records before a snapshot and are lost."""
    behind = _behind(image, snapshot.epoch)
    return [each.reader_id for each in behind if _is_lost(image, each, snapshot.since_ms, now_ms)]


def _too_few(archive: ArchiveImage, found: int, behind: int) -> str:
    members = archive.members()
    if not members:
        return "no catch-up replica is a member"
    needed = majority(len(members))
    silent = [member for member in members if not archive.announced(member)]
    lacking = f"; {', '.join(silent)} announced none" if silent else ""
    return (
        f"the log keeps what follows the newest {behind} snapshots that {needed} of the {len(members)} members"
        f" have alike, and of these there are {found}{lacking}; `stele log snapshot` has one more taken"
    )
