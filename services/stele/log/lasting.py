"""For how long something has been seen to be so: what nobody looked at in between does not count."""

from typing import Final

MOST_BETWEEN_S: Final = 2.0
"""Of the time between two looks no more counts: this process may have slept, or the brokers been away."""


class Lasting:
    """Seconds of one monotonic clock."""

    def __init__(self, most_between_s: float = MOST_BETWEEN_S) -> None:
        self._most_between_s = most_between_s
        self._seen_s: float | None = None
        self._lasted_s = 0.0

    def seen(self, now_s: float) -> float:
        """It is so now; for how long it has been."""
        if self._seen_s is not None:
            self._lasted_s += min(now_s - self._seen_s, self._most_between_s)
        self._seen_s = now_s
        return self._lasted_s

    def over(self) -> None:
        """It is not so."""
        self._seen_s, self._lasted_s = None, 0.0
