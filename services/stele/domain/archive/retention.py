"""Where the archive may begin: behind what is old enough by the settings, as a majority of the members agrees.

What stays begins with the snapshot and the record of one epoch, which is the same for all. It is never later
than the first epoch of the log itself, so what the topic has the archive has too; nor than where a reader is.
"""

from collections.abc import Iterable
from typing import NamedTuple

from stele.domain.archive.facts import ArchiveTrimmed, LogReader, TrimAgreed, TrimProposed
from stele.domain.archive.heads import Trimming
from stele.domain.archive.limits import (
    ARCHIVE_KEEP_DAYS,
    ARCHIVE_KEEP_EPOCHS,
    PROPOSAL_LASTS_S,
    READER_LOST_AFTER_S,
    UPKEEP,
)
from stele.domain.archive.majority import majority
from stele.domain.archive.members import archived_until
from stele.domain.image import Image
from stele.domain.requests.ids import state_time_ms

SECOND_MS = 1000
DAY_MS = 86_400_000


class Point(NamedTuple):
    """An epoch that the archive may begin at, and its state id."""

    epoch: int
    state_id: bytes


def why_not_at(image: Image, point: Point, now_ms: int) -> str:
    """Why the archive does not begin at this point; empty when it may. ``now_ms`` is the log's own time."""
    trimmed, until = image.archive.trimmed_epoch, archived_until(image)
    why = why_for_ever(image)
    if not why and point.epoch <= trimmed:
        why = f"the archive begins at epoch {trimmed} already"
    if not why and point.epoch > until:
        begins = max(until, 1)
        why = f"the log itself begins at epoch {begins}, and the archive has all that the log has"
    return why or _why_kept(image, point, now_ms)


def why_for_ever(image: Image) -> str:
    """Why nothing is ever deleted; empty when there is a rule by which it is."""
    settings = image.features.settings
    if not ARCHIVE_KEEP_DAYS.of(settings) and not ARCHIVE_KEEP_EPOCHS.of(settings):
        return "it is kept for ever: neither archive_keep_days nor archive_keep_epochs is set"
    if UPKEEP not in image.features.enabled:
        return f"feature {UPKEEP} is not enabled: `stele features enable {UPKEEP}`"
    return ""


def _why_kept(image: Image, point: Point, now_ms: int) -> str:
    """By the settings, or for a reader."""
    settings = image.features.settings
    days, epochs = ARCHIVE_KEEP_DAYS.of(settings), ARCHIVE_KEEP_EPOCHS.of(settings)
    if image.epoch - point.epoch < epochs:
        return f"the newest {epochs} epochs are kept: archive_keep_epochs"
    if days and now_ms - state_time_ms(point.state_id) < days * DAY_MS:
        return f"epochs of the last {days} days are kept: archive_keep_days"
    waiting = [r for r in _behind(image, point.epoch) if not _is_lost(image, r, point, now_ms)]
    return ", ".join(f"reader {each.reader_id} is at epoch {each.epoch}" for each in waiting)


def to_propose(image: Image, points: Iterable[Point], now_ms: int) -> Point | None:
    """The newest of these at which the archive may begin, unless something is proposed already."""
    if not may_propose(image, now_ms):
        return None
    found = [point for point in points if not why_not_at(image, point, now_ms)]
    return max(found, default=None)


def may_propose(image: Image, now_ms: int) -> bool:
    """Nothing is proposed, or has been for so long that it will come to nothing."""
    proposed = image.archive.proposed
    return proposed is None or now_ms - proposed.at_ms > PROPOSAL_LASTS_S * SECOND_MS


def trimming(image: Image, now_ms: int) -> Trimming:
    """What becomes of what is proposed now."""
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
            lost_readers=tuple(each.reader_id for each in _behind(image, proposed.epoch)),
        )
    )


def agreeing(members: Iterable[str], votes: Iterable[TrimAgreed]) -> list[TrimAgreed]:
    """The members' votes for the hash that most of them have, sorted."""
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


def _is_lost(image: Image, reader: LogReader, point: Point, now_ms: int) -> bool:
    """It has not moved for too long, although there was something to read: time counts from the point on."""
    since_ms = max(reader.moved_ms, state_time_ms(point.state_id))
    return now_ms - since_ms > SECOND_MS * READER_LOST_AFTER_S.of(image.features.settings)
