"""The time in a new request id: that of the clock, or of the log if that is older."""

import time

from stele.domain.model.requests import state_time_ms, time_ms, uuid7
from stele.runtime.request_ids import new_request_id

HOUR_MS = 3_600_000


def test_request_id_is_not_later_than_the_time_of_the_log() -> None:
    now_ms = time.time_ns() // 1_000_000
    ahead, behind = (_state_of(now_ms + by_ms) for by_ms in (HOUR_MS, -HOUR_MS))
    assert time_ms(new_request_id(behind)) == state_time_ms(behind) == now_ms - HOUR_MS
    for others in (ahead, bytes(16), None):
        assert 0 <= time_ms(new_request_id(others)) - now_ms < HOUR_MS / 2
    assert new_request_id(behind) != new_request_id(behind)


def _state_of(ms: int) -> bytes:
    return bytes.fromhex(uuid7(ms, 1).replace("-", ""))
