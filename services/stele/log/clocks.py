"""Detect pauses of this process: it was stopped or suspended, or its machine was restored."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

LONGEST_PAUSE_S: Final = 1.0
"""Seconds of pause after which a process must look at the log again (docs/design.md, rule 11)."""


class Moment(NamedTuple):
    """A time on each of three clocks, in seconds."""

    monotonic_s: float
    boot_s: float
    wall_s: float

    @staticmethod
    def now() -> Moment:
        return Moment(time.monotonic(), _boot_clock(), time.time())

    def age_s(self) -> float:
        """Return the seconds since this moment."""
        return Moment.now().after(self)

    def after(self, before: Moment) -> float:
        """Return the seconds from ``before`` to this moment, on the clock that moved furthest.

        All clocks advance while a process is stopped. The monotonic clock stops while a machine
        sleeps. In a restored machine only the wall clock may show the time that has passed.
        """
        return max(self[0] - before[0], self[1] - before[1], self[2] - before[2])


class ClockJumpDetector:
    """Measures the seconds between two calls of ``elapsed_s``."""

    def __init__(self) -> None:
        self._last = Moment.now()

    def elapsed_s(self) -> float:
        """Return the seconds since the previous call, or since the creation."""
        before, self._last = self._last, Moment.now()
        return self._last.after(before)


def _boot_clock() -> float:
    """Return a clock in seconds that advances while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOT_CLOCK else time.monotonic()


_HAS_BOOT_CLOCK: Final = hasattr(time, "CLOCK_BOOTTIME")


# Measure how long a condition has held. Time between two samples counts only up to a limit.


MOST_BETWEEN_S: Final = 2.0
"""Most seconds to count between two samples: the process may have slept, or brokers were away."""


class ConditionTimer:
    """The duration of one condition, in seconds of a monotonic clock."""

    def __init__(self, most_between_s: float = MOST_BETWEEN_S) -> None:
        self._most_between_s = most_between_s
        self._seen_s: float | None = None
        self._lasted_s = 0.0

    def sample(self, now_s: float) -> float:
        """Note that the condition holds at ``now_s``; return the seconds that it has held."""
        if self._seen_s is not None:
            self._lasted_s += min(now_s - self._seen_s, self._most_between_s)
        self._seen_s = now_s
        return self._lasted_s

    def reset(self) -> None:
        """Note that the condition does not hold."""
        self._seen_s, self._lasted_s = None, 0.0
