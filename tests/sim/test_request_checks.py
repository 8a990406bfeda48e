"""The checker of request ids knows nothing of generations and horizons, only the number of kept decisions."""

import pytest

from stele.domain.facts import Epoch
from stele.domain.model.requests import time_ms, uuid7
from stele_simulator.request_checks import RequestChecks, checks_of
from stele_simulator.violation import Violation

SIZE = 2
LIMIT = 3
NOW_MS = 1_760_000_000_000


def _epoch(number: int, ms: int | None = None) -> Epoch:
    """Return an epoch that decides a request of this time."""
    request_id = uuid7(NOW_MS + (number if ms is None else ms), number)
    before, after = (bytes([each]) * 16 for each in (number - 1, number))
    return Epoch(
        prev_state_id=before,
        state_id=after,
        epoch=number,
        request_id=request_id,
        command="set_setting",
        facts=(),
    )


def _after(count: int) -> RequestChecks:
    return checks_of(map(_epoch, range(1, count + 1)), SIZE, LIMIT)


def test_request_is_decided_only_once() -> None:
    with pytest.raises(Violation, match="decided once, at epoch 3"):
        _after(5).check(_epoch(3))


def test_request_id_is_too_old_after_the_kept_decisions() -> None:
    most = (LIMIT + 1) * (SIZE + 1)
    _after(most).check(_epoch(50, ms=1))
    with pytest.raises(Violation, match="too old to be decided at epoch 50"):
        _after(most + 1).check(_epoch(50, ms=1))


def test_request_id_must_not_expire_while_its_time_is_remembered() -> None:
    known, request_id = LIMIT * SIZE, uuid7(NOW_MS + 1, 7)
    _after(known + 1).expired(request_id, bytes([known + 1]) * 16)
    with pytest.raises(Violation, match=f"{request_id} is told to be"):
        _after(known).expired(request_id, bytes([known]) * 16)


def test_expired_request_id_is_never_decided() -> None:
    checks, request_id = _after(LIMIT * SIZE + 2), uuid7(NOW_MS + 2, 7)
    checks.expired(request_id, bytes([LIMIT * SIZE + 2]) * 16)
    checks.check(_epoch(50, ms=3))
    with pytest.raises(Violation, match=f"ids of time {time_ms(request_id)}"):
        checks.check(_epoch(50, ms=2))
