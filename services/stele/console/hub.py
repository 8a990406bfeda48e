"""One stream of the log for all open pages: each gets every event once and in order.

A slow page holds no memory of its own, because all pages read from one list. A page that is behind
the list first receives the older epochs.
"""

import asyncio
from collections import deque
from typing import Final

KEPT: Final = 4096
"""Number of events kept. A page this far behind needs no query to the log."""


class Hub:
    """Events by epoch, without gaps, and a bell for the waiting pages."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._bell = asyncio.Event()
        self.history = 0
        """Increases when the log turns out to be another one. Pages then read everything again."""
        self.readers = 0

    @property
    def newest(self) -> int:
        """The newest epoch that has an event; 0 if there is none."""
        return self._events[-1][0] if self._events else 0

    @property
    def oldest(self) -> int:
        """The oldest epoch that is kept; 0 if there is none."""
        return self._events[0][0] if self._events else 0

    def add(self, epoch: int, event: bytes) -> None:
        """Add the event of the epoch that follows the newest."""
        assert not self._events or epoch == self.newest + 1
        self._events.append((epoch, event))
        self.ring()

    def restart(self) -> None:
        """Drop all events: they are of another history, or a gap follows them."""
        self._events.clear()
        self.history += 1
        self.ring()

    def ring(self) -> None:
        """Wake all waiting pages."""
        # Each ring replaces the bell: a page that takes the new one waits for the next event.
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def after(self, epoch: int, most: int = 256) -> list[tuple[int, bytes]]:
        """Return the kept events after an epoch; none if nothing is new or a gap lies between."""
        if not self._events or epoch + 1 < self.oldest or epoch >= self.newest:
            return []
        first = epoch + 1 - self.oldest
        return [self._events[at] for at in range(first, min(first + most, len(self._events)))]

    def bell(self) -> asyncio.Event:
        """Return the bell that the next event sets. Take it before you check for events."""
        return self._bell
