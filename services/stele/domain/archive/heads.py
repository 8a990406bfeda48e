"""The archive as people see it: replicas with what each has announced, and how far the log can go."""

import msgspec

from stele.domain.archive.facts import (
    AnnouncedSnapshot,
    ArchiveTrimmed,
    LogTruncated,
    Replica,
    TrimAgreed,
    TrimProposed,
)


class ReplicaSummary(Replica, frozen=True, kw_only=True):
    """A replica with its announced snapshots, the newest last; those of the epochs in ``diverged`` are not what
    a majority of the members has, and do not count.
    """

    snapshots: tuple[AnnouncedSnapshot, ...] = ()
    diverged: tuple[int, ...] = ()
    began_anew: int = 0
    """How often it has diverged, and set aside what it had."""


class ArchiveSummary(msgspec.Struct, frozen=True):
    """When a snapshot was asked for last, how far the log is truncated, where the archive begins, and where it
    is to begin with whose consent; 0 and None: never.
    """

    asked_epoch: int = 0
    truncated: LogTruncated | None = None
    trimmed: ArchiveTrimmed | None = None
    proposed: TrimProposed | None = None
    agreed: tuple[TrimAgreed, ...] = ()


class AgreedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A majority of the members, which are named, has the same snapshot, since ``since_ms`` of the log."""

    epoch: int
    offset: int
    hash: str
    members: tuple[str, ...]
    since_ms: int


class Trimming(msgspec.Struct, frozen=True, kw_only=True):
    """How the archive is to begin later; ``trim`` is what can be written now, ``why_not`` why nothing can."""

    trim: ArchiveTrimmed | None = None
    why_not: str = ""


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """Records before ``offset``, which is that of ``epoch``, can be deleted; epoch 0: none can.
    ``why_not_more`` says why no others can. ``lost_readers`` are not there, and are not waited for.
    """

    epoch: int = 0
    offset: int = 0
    lost_readers: tuple[str, ...] = ()
    why_not_more: str = ""
