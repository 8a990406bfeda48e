"""Caches of answers that many pages request at once: each is computed, or queried, once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

MOST_TEXTS: Final = 8
"""Number of answers kept. A map of a million tablets has 12 MB."""


class ComputedAnswers:
    """The newest answers by key. They are computed one at a time, in a thread."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, bytes] = OrderedDict()
        self._turn = asyncio.Lock()

    async def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the result of ``make`` for this key, now or before."""
        async with self._turn:
            if key not in self._answers:
                self._answers[key] = await asyncio.to_thread(make)
                if len(self._answers) > MOST_TEXTS:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
            return self._answers[key]


MOST_QUERIES: Final = 64


class SharedQueries:
    """Answers by query. A caller during an open query waits for the same answer.

    A failure reaches all waiting callers; the next caller sends the query again.
    """

    def __init__(self, most: int = MOST_QUERIES) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, asyncio.Task[bytes]] = OrderedDict()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the result of ``ask`` for this key, now or before. Raises its error."""
        task = self._answers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._answers[key] = asyncio.ensure_future(_task(ask))
            self._answers.move_to_end(key)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        # One caller's cancellation must not cancel the query of the others.
        return await asyncio.shield(task)


async def _task(ask: Callable[[], Awaitable[bytes]]) -> bytes:
    return await ask()
