"""What the members of the archive agree on, and who of them has all of it."""

from collections import Counter
from collections.abc import Iterable

from stele.domain.archive.facts import AnnouncedSnapshot
from stele.domain.archive.heads import AgreedSnapshot
from stele.domain.archive.image import ArchiveImage

Content = tuple[str, str, int]
"""State id, hash and offset: what must be equal of two snapshots of one epoch."""


def majority(members: int) -> int:
    """How many of so many members are more than half."""
    return members // 2 + 1


def agreed(archive: ArchiveImage, log_id: str, from_epoch: int) -> list[AgreedSnapshot]:
    """Snapshots of a log that a majority of the members has, with every epoch from ``from_epoch`` on; the
    newest first.
    """
    members = archive.members()
    votes: dict[tuple[int, Content], list[tuple[int, str]]] = {}
    for member in members:
        for each in archive.announced(member):
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
            since_ms=sorted(voted)[needed - 1][0],
        )
        for (epoch, (_, hash_, offset)), voted in sorted(votes.items(), reverse=True)
        if len(voted) >= needed
    ]


def content(snapshot: AnnouncedSnapshot) -> Content:
    return snapshot.state_id, snapshot.hash, snapshot.anchor_offset


def diverged(archive: ArchiveImage) -> dict[str, tuple[int, ...]]:
    """Replicas whose snapshot of some epoch is not the one that a majority of the members has, and which epochs
    these are. Of two members neither is right.
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
    """What a majority of the members has, by log and epoch."""
    members = archive.members()
    counts = Counter(
        (each.log_id, each.epoch, content(each))
        for member in members
        for each in archive.announced(member)
    )
    needed = majority(len(members))
    return {(log, epoch): found for (log, epoch, found), n in counts.items() if n >= needed}


def first_epoch(archive: ArchiveImage, members: Iterable[str]) -> int:
    """The first epoch from which a majority of these has all, and what is in the log at the latest."""
    names = [*members]
    begins = max(archive.truncated_epoch, 1)
    firsts = [
        min((each.first_epoch for each in archive.announced(name)), default=begins)
        for name in names
    ]
    return min(begins, *sorted(firsts)[majority(len(names)) - 1 :][:1]) if names else begins


def has_all(archive: ArchiveImage, replica_id: str, from_epoch: int, to_epoch: int) -> bool:
    """A replica has every epoch from one to another, and a snapshot of the last one or a later one, which is
    not another than the members'. While no majority of them says what is right, any other member that has
    another is enough to doubt it.
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
    """Other members that have another snapshot of the same epoch, sorted."""
    return [
        member
        for member in archive.members()
        if member != replica_id
        for each in archive.announced(member)
        if (each.log_id, each.epoch) == (snapshot.log_id, snapshot.epoch)
        and content(each) != content(snapshot)
    ]
