"""New request ids, from a time and from chance."""

import secrets
import time

from stele.domain.requests.ids import state_time_ms, uuid7

ENTROPY_BITS = 74


def new_request_id(state_id: bytes | None = None) -> str:
    """A UUID of version 7 that nobody had before.

    Its time is the clock's, and of those who read the log not later than that of the newest ``state_id`` that
    they have: ids from the future are not taken, and a process whose clock is ahead must be heard too.
    """
    ms = time.time_ns() // 1_000_000
    read_ms = state_time_ms(state_id) if state_id is not None else 0
    return uuid7(min(ms, read_ms) if read_ms else ms, secrets.randbits(ENTROPY_BITS))
