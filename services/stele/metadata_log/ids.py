"""Ids and times of the records that a metadata-log appends."""

import random
import time

from stele.log.maker import Ids
from stele.log.state_ids import ENTROPY_BITS, next_state_id


def make_ids() -> Ids:
    """Return ids made of randomness and the clock.

    State ids are not secret, so one true random seed suffices.
    """
    chance = random.Random(random.SystemRandom().getrandbits(256))

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def state_id(previous: bytes) -> bytes:
        return next_state_id(previous, now_ms(), chance.getrandbits(ENTROPY_BITS))

    return Ids(next_state_id=state_id, now_ms=now_ms)
