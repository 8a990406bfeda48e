"""``stele id``: what it prints is newer than what it is to come after."""

from __future__ import annotations

import pytest

from stele.domain.requests.model import NEWEST_MS, is_id, time_ms
from tests.cli.conftest import Stele


@pytest.mark.parametrize("after", [0, 1 << 45, NEWEST_MS - 1])
def test_an_id_comes_after_the_time_that_is_given(stele: Stele, after: int) -> None:
    made = stele("id", f"--after={after}").out.strip()
    assert is_id(made)
    assert time_ms(made) > after


def test_there_is_no_id_after_the_last_time(stele: Stele) -> None:
    ran = stele("id", f"--after={NEWEST_MS}")
    assert ran.exit_code != 0
    assert f"< {NEWEST_MS}" in ran.err
