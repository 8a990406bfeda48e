"""New request ids, from a time and randomness."""

import secrets
import time

from stele.domain.model.requests import asking_ms, uuid7

ENTROPY_BITS = 74


def new_request_id(state_id: bytes | None = None, horizon_ms: int = -1) -> str:
    """Return a new UUID of version 7.

    Its time is the clock's. For a process that reads the log, it is not later than the time of the
    newest ``state_id``. Ids from the future are not taken, and a process whose clock is ahead must
    still be able to send commands. The time is after ``horizon_ms``, which the rejection of an
    expired id reports.
    """
    now_ms = time.time_ns() // 1_000_000
    ms = 0 if state_id is None else asking_ms(state_id, now_ms)
    return uuid7(max(ms or now_ms, horizon_ms + 1), secrets.randbits(ENTROPY_BITS))
