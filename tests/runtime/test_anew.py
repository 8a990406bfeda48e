"""When a process ends so that it begins anew, and when it stays since it may hold what nobody else has."""

import asyncio
from typing import Any, cast

import pytest

from stele.domain.cluster.facts import LogRecovered
from stele.log.errors import (
    AnchorLostError,
    LogError,
    LostWinnersError,
    NoBeginningError,
    OffsetGoneError,
    RecoveredError,
    TruncatedError,
)
from stele.runtime.anew import begin_anew
from stele.runtime.catch_up import CatchUp

RECOVERED = LogRecovered("0a" * 16, 5, "0b" * 16, "0c" * 16, "", 5, 0)


class NoReplica:
    async def archives(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("failure", "ends"),
    [
        (TruncatedError(3, "the topic begins at 9"), True),
        (OffsetGoneError(9, "the topic has 0 to 8"), True),
        (RecoveredError(3, RECOVERED, "recovered"), True),
        (NoBeginningError(0, "no beginning"), True),
        (AnchorLostError(3, "it is gone"), False),
        (LostWinnersError(3, "winners are gone"), False),
    ],
)
async def test_who_may_hold_what_is_left_stays_until_the_log_is_recovered(
    failure: LogError, ends: bool
) -> None:
    failed, ended = asyncio.Event(), list[bool]()
    failed.set()
    task = asyncio.create_task(
        begin_anew(
            failed,
            lambda: failure,
            lambda: bytes(16),
            cast(CatchUp, NoReplica()),
            lambda: ended.append(True),
        )
    )
    await asyncio.sleep(0.02)
    task.cancel()
    assert bool(ended) is ends
