"""A cache of answers that many pages request at once: each is computed, or queried, once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

MOST_QUERIES: Final = 64


class SharedQueries:
    """The newest answers by query. A caller during an open query waits for the same answer.

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
