"""Planted bugs of disks that are full, or in another node's machine, and of brokers that tell an old end."""

import sqlite3
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final

import msgspec

from stele.agent import identity, member, older_copy
from stele.agent.agent import Agent
from stele.agent.heartbeats import Heartbeats
from stele.agent.identity import FILE, STORE_FILE, DataDirectory
from stele.domain.messages import Ack
from stele.domain.registry import KNOWN_FEATURES
from stele.log import newest
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


def older_copies_are_taken(patch: Patch) -> None:
    """A node does not look at what it has told before."""

    async def last_told(*_: object) -> None: ...

    patch.attribute(member, "last_told", last_told)


def copies_are_known_by_their_starts(patch: Patch) -> None:
    """A copy that was made while the node ran is as good as the newest directory."""

    def is_older(boots: int, counted: int, told: Ack) -> bool:
        return older_copy.starts_of(told) >= boots

    patch.function(older_copy.is_older, is_older)


def a_missing_count_compares_nothing(patch: Patch) -> None:
    """A directory without the file ``heartbeats`` is compared by its starts alone."""

    def is_older(boots: int, counted: int, told: Ack) -> bool:
        return older_copy.starts_of(told) >= boots or told.sequence > counted > 0

    patch.function(older_copy.is_older, is_older)


def an_accepted_copy_begins_at_what_was_told(patch: Patch) -> None:
    """The directory that was the newest before has counted more, and serves as soon as it is put back."""
    patch.attribute(older_copy, "MOST_AHEAD", 0)


def an_accepted_copy_promises_what_it_knows(patch: Patch) -> None:
    """What the node told later it has not promised: a log that has lost that is followed without a question."""

    def nothing(known: identity.Identity, told: Ack) -> dict[str, object]:
        return {}

    patch.function(older_copy._promise_of, nothing)  # noqa: SLF001


def heartbeats_are_counted_in_memory(patch: Patch) -> None:
    """The number is raised, and the disk does not have it."""

    def raise_to(self: Heartbeats, number: int) -> None:
        self.counted = max(self.counted, number)

    patch.attribute(Heartbeats, "raise_to", raise_to)


def acks_are_ahead_of_the_number(patch: Patch) -> None:
    """An ack is sent before a number as great is on the disk."""
    patch.attribute(Agent, "_ahead", lambda self: 1)
    patch.attribute(Heartbeats, "is_short", lambda self, sequence: self.counted < sequence)


def one_slot_is_enough(patch: Patch) -> None:
    """The number is written over the one before, and a torn write leaves none."""
    plain = Heartbeats.raise_to

    def raise_to(self: Heartbeats, number: int) -> None:
        self._newest = 1 - self._newest
        plain(self, number)

    patch.attribute(Heartbeats, "raise_to", raise_to)


def the_newest_stretch_is_the_topic(patch: Patch) -> None:
    """Who was away for long is not found in the topic of acks."""
    plain = newest._Backwards.find  # noqa: SLF001

    def find(self: Any) -> list[bytes]:
        between, looked = self._between, list[object]()

        def once(*where: object) -> list[bytes]:
            looked.append(where)
            return between(*where) if len(looked) == 1 else []

        self._between = once
        return plain(self)

    patch.attribute(newest._Backwards, "find", find)  # noqa: SLF001


DISK_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    full_disk_counts_as_done,
    acks_need_no_room,
    another_nodes_disk_is_taken,
    old_end_is_proof_of_loss,
    older_copies_are_taken,
    heartbeats_are_counted_in_memory,
)
DISK_TEST_MUTANTS: Final = (
    full_disk_at_the_first_start_is_final,
    copies_are_known_by_their_starts,
    a_missing_count_compares_nothing,
    an_accepted_copy_begins_at_what_was_told,
    an_accepted_copy_promises_what_it_knows,
    acks_are_ahead_of_the_number,
    one_slot_is_enough,
    the_newest_stretch_is_the_topic,
)
