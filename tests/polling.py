"""Wait for a condition with a limit; the failure names what was awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.02
PATIENCE_S = 240.0
"""Limit of a wait. It is no promise: a busy machine is five times slower than an idle one."""


def wait_until(
    condition: Callable[[], object],
    what: str,
    deadline_s: float = PATIENCE_S,
    *,
    poll_s: float = POLL_S,
    tolerate: tuple[type[Exception], ...] = (),
) -> None:
    """Errors of the ``tolerate`` types count as not yet; the failure shows the last one."""
    end, last = time.monotonic() + deadline_s, ""
    while True:
        try:
            if condition():
                return
        except tolerate as error:
            last = f"; {error!r}"[:500]
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s} s: {what}{last}")
        time.sleep(poll_s)


async def until(condition: Callable[[], object], what: str, deadline_s: float = PATIENCE_S) -> None:
    """Wait in the event loop."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(POLL_S / 4)
