"""New request ids, from a time and from chance."""

import secrets
import time

from stele.domain.requests.ids import asking_ms, uuid7

ENTROPY_BITS = 74


def new_request_id(state_id: bytes | None = None, horizon_ms: int = -1) -> str:
    """A UUID of version 7 that nobody had before.

    Its time is the clock's, and of those who read the log not later than that of the newest ``state_id`` that
    they have: ids from the future are not taken, and a process whose clock is ahead must be heard too. It is
    newer than ``horizon_ms``, which the refusal of an id that was too old tells.
    """
    now_ms = time.time_ns() // 1_000_000
    ms = 0 if state_id is None else asking_ms(state_id, now_ms)
    return uuid7(max(ms or now_ms, horizon_ms + 1), secrets.randbits(ENTROPY_BITS))
