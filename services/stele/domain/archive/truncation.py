"""How far the log may be truncated: up to a snapshot that a majority of the members has, with all before it.

What stays begins with the record of that snapshot's epoch, its anchor: whoever reads the snapshot finds where
to go on. So nothing is deleted that no majority has, and never the anchor of the newest snapshot.
"""

from stele.domain.archive.facts import LogReader
from stele.domain.archive.heads import AgreedSnapshot, Truncation
from stele.domain.archive.image import ArchiveImage
from stele.domain.archive.limits import EXPLICIT_BEHIND, READER_LOST_AFTER_S, TRUNCATE_BEHIND
from stele.domain.archive.majority import agreed, majority
from stele.domain.image import Image

SECOND_MS = 1000


def truncatable(image: Image, now_ms: int) -> Truncation:
    """How far the log can be truncated now; ``now_ms`` is the time by which readers are lost."""
    archive, behind = image.archive, snapshots_behind(image)
    found = agreed_snapshots(image)
    if len(found) < behind:
        return Truncation(why_not_more=_too_few(archive, len(found), behind))
    why = (
        f"the log goes back behind the {behind} newest snapshots that a majority of the members has"
    )
    for snapshot in found[behind - 1 :]:
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
    """Behind how many agreed snapshots it goes back."""
    return TRUNCATE_BEHIND.of(image.features.settings) or EXPLICIT_BEHIND


def agreed_snapshots(image: Image) -> list[AgreedSnapshot]:
    """Those that the log may be truncated behind, the newest first: whoever has one has all that is in the log
    before it.
    """
    from_epoch = max(image.archive.truncated_epoch, 1)
    return agreed(image.archive, image.log_id.hex(), from_epoch)


def readers_waited_for(image: Image, snapshot: AgreedSnapshot, now_ms: int) -> list[LogReader]:
    """Readers that need records before a snapshot, and are not lost."""
    return [
        each for each in _behind(image, snapshot) if not _is_lost(image, each, snapshot, now_ms)
    ]


def lost_readers(image: Image, snapshot: AgreedSnapshot, now_ms: int) -> list[str]:
    """Readers that need records before a snapshot, and are not waited for."""
    behind = _behind(image, snapshot)
    return [each.reader_id for each in behind if _is_lost(image, each, snapshot, now_ms)]


def _behind(image: Image, snapshot: AgreedSnapshot) -> list[LogReader]:
    readers = image.archive.readers
    return [readers[name] for name in sorted(readers) if readers[name].epoch < snapshot.epoch]


def _is_lost(image: Image, reader: LogReader, snapshot: AgreedSnapshot, now_ms: int) -> bool:
    """It has not moved for too long, although there was something to read: the time counts from the snapshot
    on, so nobody is lost for the silence of a log in which nothing happened.
    """
    since_ms = max(reader.moved_ms, snapshot.since_ms)
    return now_ms - since_ms > SECOND_MS * READER_LOST_AFTER_S.of(image.features.settings)


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
