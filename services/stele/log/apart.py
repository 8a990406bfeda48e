"""Large commands: decided in a thread, while the commands that arrive meanwhile are held.

A command that may touch every row of large placements takes seconds. It is decided on the state
after all records in flight. That state stays the newest because no other command is decided: those
that arrive wait in their order. If the record of another writer wins meanwhile, the decision is
discarded. See docs/design.md, rules 9 and 15.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.commands import (
    Advance,
    AlterSchema,
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    LoadState,
    RevertState,
    Rollback,
)
from stele.domain.image import Image
from stele.domain.schema.model import KeyspaceCreation, TableCreation, ViewCreation
from stele.log.flight import CommandInFlight, Pending, Records, Waiting

Made = tuple[Records, list[Image]] | Rejection | Exception
"""The result of a decision: records with the image after each, a rejection, or an exception."""

WHOLE_PLACEMENTS: Final = (
    Advance,
    Rollback,
    CreateKeyspace,
    CreateTable,
    RevertState,
    LoadState,
    KeyspaceCreation,
    TableCreation,
    ViewCreation,
)
"""Commands and changes whose decision may read or create many rows of the placements."""
LARGE_ROWS: Final = 5_000
"""Rows from which a command is large: reading all of them takes about 20 ms of a processor."""
LARGE_CHANGES: Final = 50
"""Changes from which a batch of schema changes is large: each may create a table."""
LARGE_BYTES: Final = 64 * 1024
"""Size of a state inside a command from which the command is large."""


class Deciding(msgspec.Struct):
    """A command under decision, with the commands (in order) and reads that arrived meanwhile.

    ``decide`` reads immutable images only, so any thread may call it.
    """

    command: CommandInFlight
    decide: Callable[[], Made]
    held: list[Waiting] = []
    readers: list[Pending] = []

    def __len__(self) -> int:
        return 1 + len(self.held) + len(self.readers)


def is_large(image: Image, command: AnyCommand) -> bool:
    """Return whether the decision on ``image`` may block an event loop for too long."""
    changes = command.changes if isinstance(command, AlterSchema) else (command,)
    if len(changes) >= LARGE_CHANGES:
        return True
    rows = [_rows(image, change) for change in changes if isinstance(change, WHOLE_PLACEMENTS)]
    return bool(rows) and sum(rows) >= LARGE_ROWS


def _rows(image: Image, change: object) -> int:
    """Return the number of rows that the decision on a command or change may read or create."""
    rows = image.ring.rows
    if isinstance(change, RevertState | LoadState) and len(change.content) >= LARGE_BYTES:
        return LARGE_ROWS
    if isinstance(change, CreateKeyspace | KeyspaceCreation):
        return rows + sum(len(node.tokens) for node in image.membership.nodes.values())
    if isinstance(change, CreateTable | TableCreation | ViewCreation):
        keyspace = image.schema.named(change.name.partition(".")[0])
        tablets = 0 if keyspace is None else keyspace.initial_tablets
        # Only the first new table of a process counts the tablets of all others.
        others = 0 if image.ring.has_tablet_counts else rows
        return others + max(tablets, change.options.min_tablet_count)
    return rows
