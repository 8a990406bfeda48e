"""A hybrid logical clock: timestamps in microseconds that never fall behind any that was seen.

A write that begins after another was acknowledged gets a later timestamp, although the nodes' clocks
differ: replicas name the timestamp that a write lost against, and the next attempt is later than that.
"""

from collections.abc import Callable


class HybridClock:
    """``now_us`` is the machine's clock, microseconds since 1970; it may jump."""

    def __init__(self, now_us: Callable[[], int], last_us: int = 0) -> None:
        self._now_us = now_us
        self._last_us = last_us

    def next(self) -> int:
        """A timestamp above all that were given or seen before."""
        self._last_us = max(self._now_us(), self._last_us + 1)
        return self._last_us

    def see(self, timestamp_us: int) -> None:
        """Somebody used this timestamp; ours will be later."""
        self._last_us = max(self._last_us, timestamp_us)
