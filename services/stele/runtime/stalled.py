"""Connections that hold what they do not use: who takes nothing of its answer."""

from __future__ import annotations

import asyncio
from typing import Final

STALLED_S: Final = 60.0
"""What a peer has not begun to take after so long is dropped; until then it is kept in memory for it."""


class Stalled:
    """Ends a connection that is stuck: ``begin`` when no more can be written, ``end`` once it can."""

    def __init__(self, transport: asyncio.Transport, stalled_s: float = STALLED_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._stalled_s = stalled_s
        self._due: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """No more can be written until the peer has taken some."""
        self.end()
        left = self._transport.get_write_buffer_size()
        self._due = self._loop.call_later(self._stalled_s, self._look, left)

    def end(self) -> None:
        """It gets on: it has taken enough, or is over."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look(self, before: int) -> None:
        if self._transport.get_write_buffer_size() >= before:
            self._transport.abort()
        else:
            self.begin()
