"""Noticing that time went by while this process did not run: stopped, suspended, or its machine restored."""

import time
from typing import Final

LONGEST_PAUSE_S: Final = 1.0
"""Whoever was away for longer looks whether the log is still the one that it read (rule 11)."""


class Pulse:
    """Each ``beat`` tells the seconds since the one before, by the clock that moved the furthest.

    A stopped process sees the gap on all clocks; the monotonic one stands while a machine sleeps, and
    in a restored machine only the wall clock may tell.
    """

    def __init__(self) -> None:
        self._last = _clocks()

    def beat(self) -> float:
        now, before = _clocks(), self._last
        self._last = now
        return max(now[0] - before[0], now[1] - before[1], now[2] - before[2])


def _clocks() -> tuple[float, float, float]:
    return time.monotonic(), _boot_clock(), time.time()


def _boot_clock() -> float:
    """Goes on while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOT_CLOCK else time.monotonic()


_HAS_BOOT_CLOCK: Final = hasattr(time, "CLOCK_BOOTTIME")
