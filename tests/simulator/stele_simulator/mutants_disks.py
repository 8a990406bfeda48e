"""Planted bugs of disks that are full, or in another node's machine, and of brokers that tell an old end."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import msgspec

from stele.agent import identity, member
from stele.agent.identity import FILE, STORE_FILE, DataDirectory, Heartbeats
from stele.domain.registry import KNOWN_FEATURES
from stele.log.chain import Anchor
from stele.log.port import TopicProbe
from stele.log.reader import TopicReader
from stele.node import commits
from stele.node.commits import DiskFull
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted


@planted(RUN, rule="I14")
def full_disk_counts_as_done(patch: Patch) -> None:
    """A write that had no room on the disk is answered as one that is there."""
    plain = commits._answer

    def answer(job: Any, result: object, error: Exception | None) -> None:
        plain(job, result, None if isinstance(error, DiskFull) else error)

    patch.function(plain, answer)


@planted(RUN, rule="I6")
def acks_need_no_room(patch: Patch) -> None:
    """A node acknowledges a version that it could not write to its full disk."""
    plain = DataDirectory.save

    def save(self: DataDirectory, **changes: object) -> None:
        try:
            plain(self, **changes)
        except OSError:
            self.identity = msgspec.structs.replace(self.identity, **changes)

    patch.attribute(DataDirectory, "save", save)


@planted(RUN)
def another_nodes_disk_is_taken(patch: Patch) -> None:
    """A node serves with whatever data directory it finds."""
    plain = identity.boot

    def boot(
        folder: Path,
        node_id: str,
        cluster: str,
        store_file: str = STORE_FILE,
        supported: Set[str] = KNOWN_FEATURES,
    ) -> DataDirectory:
        known = identity._read(folder / FILE)
        return plain(folder, known.node_id if known else node_id, cluster, store_file, supported)

    patch.function(plain, boot)


@planted(RUN)
def old_end_is_proof_of_loss(patch: Patch) -> None:
    """An end before the last winner is taken at once for the loss of it."""

    def at_once(self: TopicReader, anchor: Anchor, look: TopicProbe) -> None:
        raise self._lost(anchor, "it is gone")

    patch.attribute(TopicReader, "_wait_for_leader", at_once)


@planted(RUN, rule="I14")
def older_copies_are_taken(patch: Patch) -> None:
    """A node does not compare its disk with its earlier acknowledgements."""

    async def newest_ack(*_: object) -> None: ...

    patch.attribute(member, "newest_ack", newest_ack)


@planted(RUN, rule="I1")
def heartbeats_are_counted_in_memory(patch: Patch) -> None:
    """The number is raised, and the disk does not have it."""

    def raise_to(self: Heartbeats, number: int) -> None:
        self.counted = max(self.counted, number)

    patch.attribute(Heartbeats, "raise_to", raise_to)
