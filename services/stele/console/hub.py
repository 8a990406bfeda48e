"""One stream of the log for all pages that are open: each gets every event once, in order, from where it left.

A page that reads slowly holds no memory of its own: all read from one list, and whoever is behind what that
holds is given the epochs of the past before it goes on.
"""

import asyncio
from collections import deque
from typing import Final

KEPT: Final = 4096
"""Events that a page can be behind without asking the log."""


class Hub:
    """Events by epoch, without gaps, and a bell for those who wait."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._bell = asyncio.Event()
        self.history = 0
        """Counts up when the log turns out to be another one: pages read all anew."""
        self.readers = 0

    @property
    def newest(self) -> int:
        """The newest epoch that there is an event of; 0: none."""
        return self._events[-1][0] if self._events else 0

    @property
    def oldest(self) -> int:
        """The oldest epoch that is kept; 0: none."""
        return self._events[0][0] if self._events else 0

    def add(self, epoch: int, event: bytes) -> None:
        """The event of the epoch that follows the newest."""
        assert not self._events or epoch == self.newest + 1
        self._events.append((epoch, event))
        self.ring()

    def begin_anew(self) -> None:
        """What was told is not of this history, or has a gap behind it."""
        self._events.clear()
        self.history += 1
        self.ring()

    def ring(self) -> None:
        """Wake all who wait."""
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def after(self, epoch: int, most: int = 256) -> list[tuple[int, bytes]]:
        """The events behind an epoch that are kept; none when there is nothing new, or a gap before them."""
        if not self._events or epoch + 1 < self.oldest or epoch >= self.newest:
            return []
        first = epoch + 1 - self.oldest
        return [self._events[at] for at in range(first, min(first + most, len(self._events)))]

    def bell(self) -> asyncio.Event:
        """Set with the next event. Take it before you look."""
        return self._bell
