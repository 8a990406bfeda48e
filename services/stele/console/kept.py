"""Answers that many pages ask for at once: each is made once."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MOST: Final = 8
"""A map of a million tablets has 12 MB."""


class Kept:
    """The newest answers by what they are of. One at a time is made, in a thread."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, bytes] = OrderedDict()
        self._turn = asyncio.Lock()

    async def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """What ``make`` gave for this key, now or before."""
        async with self._turn:
            if key not in self._answers:
                self._answers[key] = await asyncio.to_thread(make)
                if len(self._answers) > MOST:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
            return self._answers[key]
