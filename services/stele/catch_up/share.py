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
    now_s: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Callable[[], None]:
    """To be called again and again by a thread: it sleeps, so that it works for this share of the time."""
    clock, pause = now_s or time.monotonic, sleep or time.sleep
    began_s = clock()

    def rest() -> None:
        nonlocal began_s
        worked_s = clock() - began_s
        if worked_s >= TURN_S:
            pause(worked_s * (1 - share) / share)
            began_s = clock()

    return rest
