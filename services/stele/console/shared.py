"""Questions to the services that many pages ask at once: each is asked once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

MOST: Final = 64


class Shared:
    """Answers by what was asked for. Who asks while the question is under way waits for the same answer; a
    failure is told to all who wait, and asked for again by the next one.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, asyncio.Task[bytes]] = OrderedDict()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """What ``ask`` gave for this key, now or before. Raises what it raised."""
        task = self._answers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._answers[key] = asyncio.ensure_future(_task(ask))
            self._answers.move_to_end(key)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return await asyncio.shield(task)


async def _task(ask: Callable[[], Awaitable[bytes]]) -> bytes:
    return await ask()
