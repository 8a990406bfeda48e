"""Proofs that the image is current: "at time t the log's end was asked, and all that was there is applied".

A process that is cut off from the log has an image like any other; only the age of its proof tells. Time is
taken before the question is sent, so that what was committed before ``asked_at_s`` is in the image. Callers
share one probe, and nobody probes when nobody asks.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from stele.log.follower import LogFollower
from stele.log.pulse import Moment
from stele.runtime.logs import get_logger

NEVER: Final = float("-inf")

log = get_logger(__name__)


class Proofs:
    """The newest proof of one follower. ``trouble`` says why the last probe gave none, or is empty."""

    def __init__(
        self,
        follower: LogFollower,
        probe_timeout_s: float,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self.asked_at_s = NEVER
        self.trouble = ""
        self._asked_at: Moment | None = None
        self._follower = follower
        self._probe_timeout_s = probe_timeout_s
        self._now_s = now_s or time.monotonic
        self._probe: asyncio.Task[None] | None = None

    def age_s(self) -> float:
        """By the clock that moved the furthest: a machine that slept has proven nothing since. Infinite while
        there is no proof.
        """
        return math.inf if self._asked_at is None else self._asked_at.age_s()

    async def within(self, max_age_s: float) -> bool:
        """Is the image proven by a question of at most ``max_age_s`` ago? Waits that long for a new proof."""
        return await self._proven(lambda: self.age_s() <= max_age_s, max_age_s)

    async def asked_after(self, at_s: float, timeout_s: float) -> bool:
        """Is it proven by a question that was sent after ``at_s``? Waits at most ``timeout_s``."""
        return await self._proven(lambda: self.asked_at_s > at_s, timeout_s)

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    async def _proven(self, enough: Callable[[], bool], timeout_s: float) -> bool:
        end_s = self._now_s() + timeout_s
        while not enough():
            left_s = end_s - self._now_s()
            if left_s <= 0 or not await _in_time(self._shared_probe(), left_s):
                return enough()
            if self.trouble:  # the next question would fail alike; who still wants one asks again
                return enough()
        return True

    def _shared_probe(self) -> "asyncio.Task[None]":
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask(), name="probe")
        return self._probe

    async def _ask(self) -> None:
        asked_at_s, asked_at = self._now_s(), Moment.now()
        try:
            await self._follower.wait_for_end(self._probe_timeout_s)
        except Exception as error:  # whatever it is, there is no proof
            if not self.trouble:
                log.warning("the log's end is out of reach", why=repr(error))
            self.trouble = f"the log's end was not reached: {error!r}"
        else:
            self.asked_at_s, self._asked_at, self.trouble = asked_at_s, asked_at, ""


async def _in_time(task: "asyncio.Task[None]", timeout_s: float) -> bool:
    """Wait for a task that others wait for too; False when the time is up."""
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    return bool(done)
