"""Planted bugs of disks that are full, or in another node's machine, and of brokers that tell an old end."""

import sqlite3
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final

import msgspec

from stele.agent import identity
from stele.agent.identity import FILE, STORE_FILE, DataDirectory
from stele.domain.registry import KNOWN_FEATURES
from stele.log.chain import Anchor
from stele.log.port import Look
from stele.log.reader import LogReader
from stele.node import binding, commits
from stele.node.commits import DiskFull
from stele.runtime.settings import ConfigurationError
from stele.sim.patching import Patch


def full_disk_counts_as_done(patch: Patch) -> None:
    """A write that had no room on the disk is answered as one that is there."""
    plain = commits._answer  # noqa: SLF001

    def answer(job: Any, result: object, error: Exception | None) -> None:
        plain(job, result, None if isinstance(error, DiskFull) else error)

    patch.function(plain, answer)


def acks_need_no_room(patch: Patch) -> None:
    """What a node cannot note for want of room, it acknowledges all the same."""
    plain = DataDirectory.save

    def save(self: DataDirectory, **changes: object) -> None:
        try:
            plain(self, **changes)
        except OSError:
            self.identity = msgspec.structs.replace(self.identity, **changes)

    patch.attribute(DataDirectory, "save", save)


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
        known = identity._read(folder / FILE)  # noqa: SLF001
        return plain(folder, known.node_id if known else node_id, cluster, store_file, supported)

    patch.function(plain, boot)


def old_end_is_proof_of_loss(patch: Patch) -> None:
    """An end before the last winner is taken at once for the loss of it."""

    def at_once(self: LogReader, anchor: Anchor, look: Look) -> None:
        raise self._lost(anchor, "it is gone")

    patch.attribute(LogReader, "_wait_for_leader", at_once)


def full_disk_at_the_first_start_is_final(patch: Patch) -> None:
    """A node that has no room for its store at its first start ends for good, as badly configured."""

    def unusable(path: Path, error: sqlite3.Error) -> Exception:
        return ConfigurationError(f"{path} cannot be read ({error})")

    patch.attribute(binding, "_unusable", unusable)


DISK_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    full_disk_counts_as_done,
    acks_need_no_room,
    another_nodes_disk_is_taken,
    old_end_is_proof_of_loss,
)
DISK_TEST_MUTANTS: Final = (full_disk_at_the_first_start_is_final,)
