"""Proofs that the image is current: "at time t the log's end was asked, and all before it is
applied".

A process that is cut off from the log has an image like any other. Only the age of its proof shows
it. The time is taken before the request is sent, so commits before ``asked_at_s`` are in the image.
Callers share one probe, and without callers there is no probe.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from stele.log.clocks import Moment
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger

NEVER: Final = float("-inf")

log = get_logger(__name__)


class Proofs:
    """The newest proof of one follower. ``trouble`` is why the last probe failed, or empty."""

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
        """Age of the newest proof in seconds, by the clock that moved the furthest.

        Infinite without a proof. A machine that was suspended has proven nothing since.
        """
        return math.inf if self._asked_at is None else self._asked_at.age_s()

    async def within(self, max_age_s: float) -> bool:
        """Return whether a request of at most ``max_age_s`` ago proves the image.

        Waits that long for a new proof.
        """
        return await self._proven(lambda: self.age_s() <= max_age_s, max_age_s)

    async def asked_after(self, at_s: float, timeout_s: float) -> bool:
        """Return whether a request sent after ``at_s`` proves the image.

        Waits at most ``timeout_s``.
        """
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
            if self.trouble:  # the next probe would fail alike; callers may ask again
                return enough()
        return True

    def _shared_probe(self) -> "asyncio.Task[None]":
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask(), name="probe")
        return self._probe

    async def _ask(self) -> None:
        # Take the time before the request: a commit between the two is in the image, a later one
        # need not be.
        asked_at_s, asked_at = self._now_s(), Moment.now()
        try:
            await self._follower.wait_for_end(self._probe_timeout_s)
        except Exception as error:  # any error means that there is no proof
            if not self.trouble:
                log.warning("the log's end is out of reach", why=repr(error))
            self.trouble = f"the log's end was not reached: {error!r}"
        else:
            self.asked_at_s, self._asked_at, self.trouble = asked_at_s, asked_at, ""


async def _in_time(task: "asyncio.Task[None]", timeout_s: float) -> bool:
    """Wait for a task that other callers share. Return False on timeout; the task continues."""
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    return bool(done)
