"""New request ids, from the clock and from chance."""

import secrets
import time

from stele.domain.requests.ids import uuid7

ENTROPY_BITS = 74


def new_request_id() -> str:
    """A UUID of version 7 that nobody had before."""
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(ENTROPY_BITS))
