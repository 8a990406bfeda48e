"""Silence and patience, counted only while the process was reading.

Pure; seconds of one monotonic clock.

A process that was stopped, partitioned from the brokers or not elected has read nothing. That
proves nothing about the nodes. Every time limit for a node therefore uses ``ObservedTime``.
"""

from typing import Final

import msgspec

NEVER: Final = float("-inf")


class ObservedTime(msgspec.Struct, frozen=True):
    """The present stretch of time in which a process has read without a gap.

    After more than ``gap_s`` without a confirmation the stretch is over. The next confirmation
    begins another, so each node gets its full time again.
    """

    gap_s: float
    since_s: float = NEVER
    """When the stretch began."""
    until_s: float = NEVER
    """The newest confirmation."""

    def confirmed(self, at_s: float, began_s: float = NEVER) -> "ObservedTime":
        """Return the observed time after a reader has read everything up to ``at_s``.

        ``began_s`` is the time at which the reader began.
        """
        if at_s <= self.until_s:
            return self
        # After a gap the stretch begins now. A reader that began later has read nothing before.
        is_gap = at_s - self.until_s > self.gap_s
        return ObservedTime(self.gap_s, at_s if is_gap else max(self.since_s, began_s), at_s)

    def counted_since(self, from_s: float, now_s: float) -> float:
        """Return the time from which a wait that began at ``from_s`` counts.

        It is ``now_s`` while nothing is read.
        """
        is_reading = now_s - self.until_s <= self.gap_s
        return max(from_s, self.since_s) if is_reading else now_s

    def elapsed_s(self, from_s: float, now_s: float) -> float:
        """Return the observed seconds since ``from_s``, without those before the last gap."""
        return now_s - self.counted_since(from_s, now_s)


ALWAYS: Final = ObservedTime(float("inf"), until_s=0.0)
"""The clock of a process that never misses a message."""
