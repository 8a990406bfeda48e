"""``stele id``: the printed id is later than the given time."""

from __future__ import annotations

import pytest

from stele.domain.model.requests import NEWEST_MS, is_id, time_ms
from tests.cli.conftest import Stele


@pytest.mark.parametrize("after", [0, 1 << 45, NEWEST_MS - 1])
def test_new_id_is_later_than_the_given_time(stele: Stele, after: int) -> None:
    made = stele("id", f"--after={after}").out.strip()
    assert is_id(made)
    assert time_ms(made) > after


def test_id_after_the_latest_time_is_refused(stele: Stele) -> None:
    ran = stele("id", f"--after={NEWEST_MS}")
    assert ran.exit_code != 0
    assert f"< {NEWEST_MS}" in ran.err
