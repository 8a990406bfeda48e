"""The replicas of the archive with what each has announced, and where that is not the members'."""

import msgspec

from stele.domain.archive.heads import ArchiveSummary, ReplicaSummary
from stele.domain.archive.image import ArchiveImage
from stele.domain.archive.majority import diverged


def replica_summaries(archive: ArchiveImage) -> dict[str, ReplicaSummary]:
    """By id, sorted."""
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
