"""Changes to a keyspace under its clients: truncations and changes of replication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stele.domain.commands import (
    AnyCommand,
    Cleanup,
    KeyspaceRfChange,
    NoopRequest,
    Quiesce,
    Truncate,
)
from stele.domain.image import Image
from stele.domain.names import RequestStatus
from stele_simulator.live.admin import Admin
from stele_simulator.live.clients import SCRATCH
from stele_simulator.live.command_sender import CommandSender, see_finished
from stele_simulator.live.history import History, Truncation

PAUSE_S: Final = 4.0
TRUNCATES: Final = 0.4
ALTERS: Final = 0.4
COPIES: Final = (2, 3)
"""Replication factors. With one copy, a node that dies would take the only copies with it."""


class ScratchAdmin(Admin):
    """Truncations, changes of replication, and requests that concern all nodes."""

    def __init__(
        self, sender: CommandSender, image: Callable[[], Image], history: History, seed: int
    ) -> None:
        super().__init__(sender, image, f"{seed} scratch", PAUSE_S)
        self._history = history

    async def _change(self) -> None:
        dice = self._chance.random()
        if dice < TRUNCATES:
            await self._truncate()
        elif dice < TRUNCATES + ALTERS:
            await self._ask(KeyspaceRfChange(SCRATCH, {"dc1": self._other_copies()}))
        else:
            await self._ask(self._chance.choice((Cleanup(), Quiesce(), NoopRequest())))

    async def _truncate(self) -> None:
        began = self._history.now()
        request_id = await self._ask(Truncate(SCRATCH))
        if request_id is None:
            return
        request = self._image().request(request_id)
        if request is not None and request.status is RequestStatus.FAILED:
            return  # it was rejected before it began: there is no way back from it
        done = request is not None and request.status is RequestStatus.DONE
        ended = self._history.now()
        self._history.add(Truncation(began=began, ended=ended, keyspace=SCRATCH, done=done))

    async def _ask(self, command: AnyCommand) -> str | None:
        """Return the id of a request that has ended or whose outcome is unknown; None when it was rejected."""
        self._history.event(f"{SCRATCH}: {command}")
        outcome = await self._sender.ask(command, "scratch")
        if outcome is None:
            return ""
        if not outcome.applied:
            return None
        await see_finished(self._image, outcome.request_id)
        return outcome.request_id

    def _other_copies(self) -> int:
        keyspace = self._image().schema.named(SCRATCH)
        now = keyspace.replication["dc1"] if keyspace is not None else 0
        return next(copies for copies in COPIES if copies != now)
