"""No more bytes a second than a rate that may change at any time."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.2
"""A changed rate is noticed within this."""
BURST_S: Final = 0.2
"""So long a pause is made up for; what was not used before that is lost."""
LEAST_BYTES: Final = 1.0
"""Nobody waits for a part of a byte: it is less than a clock can tell."""


class Pace:
    """``bytes_per_s`` is asked again and again; it must be above 0."""

    def __init__(
        self, bytes_per_s: Callable[[], float], clock: Callable[[], float] | None = None
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock or time.monotonic
        self._taken = 0.0
        self._paid = 0.0
        self._looked_at_s = self._clock()

    async def took(self, size_bytes: int) -> None:
        """Say what was taken, and wait until it is paid for. Each waits for what was taken up to then: were
        all to wait for everything, they would get on together, in leaps.
        """
        self._pay()
        self._taken += size_bytes
        own = self._taken
        while own - self._paid >= LEAST_BYTES:
            await asyncio.sleep(min(SLICE_S, (own - self._paid) / self._bytes_per_s()))
            self._pay()

    def _pay(self) -> None:
        now_s, rate = self._clock(), self._bytes_per_s()
        paid = (now_s - self._looked_at_s) * rate
        self._paid = min(self._paid + paid, self._taken + BURST_S * rate)
        self._looked_at_s = now_s
