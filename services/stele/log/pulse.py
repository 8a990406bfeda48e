"""Noticing that time went by while this process did not run: stopped, suspended, or its machine restored."""

import time
from typing import Final, NamedTuple

LONGEST_PAUSE_S: Final = 1.0
"""Whoever was away for longer looks whether the log is still the one that it read (rule 11)."""


class Moment(NamedTuple):
    """A time by each clock, in seconds."""

    monotonic_s: float
    boot_s: float
    wall_s: float

    @staticmethod
    def now() -> "Moment":
        return Moment(time.monotonic(), _boot_clock(), time.time())

    def age_s(self) -> float:
        """How long ago it was."""
        return Moment.now().after(self)

    def after(self, before: "Moment") -> float:
        """The seconds in between by the clock that moved the furthest.

        A stopped process sees a gap on all clocks; the monotonic one stands while a machine sleeps, and in a
        restored machine only the wall clock may tell.
        """
        return max(self[0] - before[0], self[1] - before[1], self[2] - before[2])


class Pulse:
    """Each ``beat`` tells the seconds since the one before."""

    def __init__(self) -> None:
        self._last = Moment.now()

    def beat(self) -> float:
        before, self._last = self._last, Moment.now()
        return self._last.after(before)


def _boot_clock() -> float:
    """Goes on while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOT_CLOCK else time.monotonic()


_HAS_BOOT_CLOCK: Final = hasattr(time, "CLOCK_BOOTTIME")
