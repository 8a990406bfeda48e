"""Backoff between writers: how long and how often a writer lets others win (``log.turns``)."""

import asyncio
from collections.abc import Callable
from typing import Final

from stele.log.turns import Turns

FIRST_WINDOW_S: Final = 0.1
LONGEST_WINDOW_S: Final = 1.0
"""Longest turn for another writer.

It must read all that has won, and append, which may take long.
"""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 10.0
"""Longest pause after an unused turn: the loser may have been the last record of a dead writer."""


class GivingWay:
    """Ends the turns of other writers. ``go_on`` appends what waits. Lives in the event loop."""

    def __init__(
        self, turns: Turns, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]
    ) -> None:
        self._turns = turns
        self._loop = loop
        self._go_on = go_on
        self._window_s, self._pause_s = FIRST_WINDOW_S, FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None
        turns.may_give_way = True

    def look(self, in_flight: int) -> None:
        """Update the timer after each change.

        Another writer's turn starts once this writer has no record in flight.
        """
        if self._turns.gives_way and self._timer is None and not in_flight:
            self._timer = self._loop.call_later(self._window_s, self._in_vain)
        elif self._timer is not None and not self._turns.gives_way and self._turns.may_give_way:
            self.close()  # another writer used the turn
            self._pause_s = FIRST_PAUSE_S

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _in_vain(self) -> None:
        self._turns.go_on()
        self._turns.may_give_way = False
        self._timer = self._loop.call_later(self._pause_s, self._once_more)
        self._window_s = min(2 * self._window_s, LONGEST_WINDOW_S)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._go_on()

    def _once_more(self) -> None:
        self._timer = None
        self._turns.may_give_way = True
