"""Catch-up replicas of the tests' world: live ones answer, and announce requested snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stele.coordinator.model import ReplicaLiveness
from stele.domain.commands import TruncateLog
from stele.domain.model.archive import TRUNCATE_BEHIND
from stele.domain.rules.retention import truncatable
from tests.domain.archive.announced import replica, snapshot

if TYPE_CHECKING:
    from tests.coordinator.world import Brain, World


@dataclass
class SimReplica:
    """A replica with every epoch from ``first_epoch`` on. An ``idle`` one answers, but takes no snapshots."""

    replica_id: str
    dc: str = "dc1"
    rack: str = "r1"
    alive: bool = True
    idle: bool = False
    content: str = "right"
    first_epoch: int = 1

    def look(self, world: World) -> None:
        """Announce the replica and the newest requested snapshot, and truncate the log."""
        if not self.alive:
            return
        archive = world.image.archive
        if self.replica_id not in archive.replicas:
            assert world.apply(replica(self.replica_id, self.dc, self.rack)) is None
        elif not self.idle:
            newest = max((each.epoch for each in archive.announced(self.replica_id)), default=0)
            found = truncatable(world.image, world.history.at_ms)
            if newest < archive.asked_epoch:
                self.announce(world, archive.asked_epoch)
            elif found.epoch and TRUNCATE_BEHIND.of(world.image.features.settings):
                assert world.apply(TruncateLog(found.epoch, found.offset)) is None

    def announce(self, world: World, epoch: int) -> None:
        said = snapshot(self.replica_id, epoch, self.first_epoch, self.content)
        assert world.apply(said) is None


def heard_by(brain: Brain) -> dict[str, ReplicaLiveness]:
    """Return what a coordinator has received after it asked all replicas once more."""
    world, before = brain.world, brain.heard
    found = dict[str, ReplicaLiveness]()
    for name in world.image.archive.replicas:
        known = before.get(name, ReplicaLiveness(world.now_s))
        each = world.replicas.get(name)
        heard = each is not None and each.alive
        found[name] = ReplicaLiveness(known.since_s, world.now_s) if heard else known
    return found
