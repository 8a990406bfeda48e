"""The archive at one epoch: its replicas, what they have announced, readers, and where the log begins."""

import msgspec
from immutables import Map

from stele.domain.archive.facts import (
    AnnouncedSnapshot,
    ArchiveTrimmed,
    LogReader,
    LogTruncated,
    Replica,
    ReplicaDiverged,
    TrimAgreed,
    TrimProposed,
)
from stele.domain.names import ReplicaState


class ArchiveImage(msgspec.Struct, frozen=True):
    """``snapshots`` are those that a replica has announced, by its id, the newest last. ``asked_epoch`` is the
    last one of which a snapshot was asked for; 0: never.
    """

    replicas: Map[str, Replica] = Map()
    snapshots: Map[str, tuple[AnnouncedSnapshot, ...]] = Map()
    readers: Map[str, LogReader] = Map()
    asked_epoch: int = 0
    truncated: LogTruncated | None = None
    diverged: Map[str, ReplicaDiverged] = Map()
    """The last time that a replica did, by its id, until it is forgotten."""
    proposed: TrimProposed | None = None
    agreed: Map[str, TrimAgreed] = Map()
    """Who agrees to what is proposed, by replica."""
    trimmed: ArchiveTrimmed | None = None

    def of_state(self, state: ReplicaState) -> list[str]:
        """Replicas of a state, sorted."""
        return sorted(name for name, each in self.replicas.items() if each.state is state)

    def members(self) -> list[str]:
        return self.of_state(ReplicaState.MEMBER)

    def announced(self, replica_id: str) -> tuple[AnnouncedSnapshot, ...]:
        """The newest last."""
        return self.snapshots.get(replica_id, ())

    @property
    def truncated_epoch(self) -> int:
        """The first epoch that is in the log for certain; 0: nothing was ever deleted."""
        return 0 if self.truncated is None else self.truncated.epoch

    @property
    def trimmed_epoch(self) -> int:
        """The first epoch that the archive has for certain; 0: nothing was ever deleted from it."""
        return 0 if self.trimmed is None else self.trimmed.epoch

    @property
    def changed_epoch(self) -> int:
        """When a replica came into its state last."""
        return max((each.since_epoch for each in self.replicas.values()), default=0)
