"""Wait for a condition with a limit; the failure says what was awaited."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.02


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = 90.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(POLL_S)
