"""A decision that is made apart from the event loop, and what waits for it (design, 2).

A command that may touch every row of large placements takes seconds. It is decided on the state that everything
in flight leads to, which stays the newest while nothing else is decided: what is asked meanwhile waits in its
order. Should another writer's record win in between, that state never comes to be, and what was decided is
thrown away.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.commands import (
    Advance,
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    LoadState,
    RevertState,
    Rollback,
)
from stele.domain.image import Image
from stele.log.flight import Command, Records, Reply, Waiting

Made = tuple[Records, list[Image]] | Rejection | Exception
"""What a command becomes: its records and the image after each, why it is refused, or how it broke the core."""
Apart = Callable[[Callable[[], Made], Callable[[Made], None]], None]
"""Does the work somewhere else, and calls back with what came of it, in the event loop."""

WHOLE_PLACEMENTS: Final = (
    Advance,
    Rollback,
    CreateKeyspace,
    CreateTable,
    RevertState,
    LoadState,
)
"""Commands whose decision may look at every row there is, or make that many."""
LARGE_ROWS: Final = 5_000
"""About 20 ms of a processor where all of them are looked at."""
LARGE_BYTES: Final = 64 * 1024
"""Of a state that a command brings along."""


class Deciding(msgspec.Struct):
    """The command, and what was asked while it is decided: commands in their order, and readers."""

    command: Command
    held: list[Waiting] = []
    readers: list[Reply] = []

    def __len__(self) -> int:
        return 1 + len(self.held) + len(self.readers)


def at_once(work: Callable[[], Made], tell: Callable[[Made], None]) -> None:
    """Apart from nothing: for whoever has no event loop to keep free."""
    tell(work())


def is_large(image: Image, command: AnyCommand) -> bool:
    """Whether its decision on ``image`` may hold up an event loop."""
    if not isinstance(command, WHOLE_PLACEMENTS):
        return False
    if isinstance(command, RevertState | LoadState) and len(command.content) >= LARGE_BYTES:
        return True
    rows = sum(map(len, image.ring.placements.values()))
    if isinstance(command, CreateKeyspace):
        rows += sum(len(node.tokens) for node in image.membership.nodes.values())
    elif isinstance(command, CreateTable):
        keyspace = image.schema.named(command.name.partition(".")[0])
        tablets = 0 if keyspace is None else keyspace.initial_tablets
        rows += max(tablets, command.options.min_tablet_count)
    return rows >= LARGE_ROWS
