"""A bounded share of the processor for work that nobody waits for."""

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.25
"""Of one processor."""
TURN_S: Final = 0.01
"""So long it works at once: whatever else the process does waits no longer for its turn."""


def resting(
    share: float = SHARE,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[], None]:
    """To be called again and again by a thread: it sleeps, so that it works for this share of the time."""
    began_s = now_s()

    def rest() -> None:
        nonlocal began_s
        worked_s = now_s() - began_s
        if worked_s >= TURN_S:
            sleep(worked_s * (1 - share) / share)
            began_s = now_s()

    return rest
