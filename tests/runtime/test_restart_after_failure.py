"""Processes that restart on errors, and processes that stay since they may have unique data."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.domain.model.cluster import LogRecovered
from stele.log.errors import (
    AnchorLostError,
    LogError,
    LostWinnersError,
    NoBeginningError,
    OffsetGoneError,
    RecoveredError,
    TruncatedError,
)
from stele.runtime import starting
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import restart_after_failure

RECOVERED = LogRecovered("0a" * 16, 5, "0b" * 16, "0c" * 16, "", 5, 0)


class NoReplica:
    replicas = 1

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
async def test_process_with_possibly_unique_epochs_stays_until_the_recovery(
    failure: LogError, ends: bool
) -> None:
    failed, ended = asyncio.Event(), list[bool]()
    failed.set()
    task = asyncio.create_task(
        restart_after_failure(
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


class Replica:
    """A replica that follows the recovered log after some requests."""

    replicas = 1

    def __init__(self) -> None:
        self.asked = 0

    async def archives(self) -> list[Any]:
        self.asked += 1
        before = SimpleNamespace(log_id=bytes(16).hex())
        return [("", SimpleNamespace(incarnations=[before]))] if self.asked > 1 else []


async def test_process_that_read_nothing_waits_for_a_recovered_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process started without a snapshot, and would restart again and again."""
    monkeypatch.setattr(starting, "LOOK_S", 0.001)
    failed, ended, replica = asyncio.Event(), list[int](), Replica()
    failed.set()
    await asyncio.wait_for(
        starting.restart_after_failure(
            failed,
            lambda: RecoveredError(3, RECOVERED, "recovered"),
            lambda: bytes(16),
            cast(CatchUp, replica),
            lambda: ended.append(replica.asked),
            has_read=lambda: False,
        ),
        5,
    )
    assert ended == [2]


async def test_process_without_catch_up_replicas_restarts() -> None:
    """The next start may find a recreated topic."""
    failed, ended = asyncio.Event(), list[bool]()
    failed.set()
    await asyncio.wait_for(
        restart_after_failure(
            failed,
            lambda: RecoveredError(3, RECOVERED, "recovered"),
            lambda: bytes(16),
            cast(CatchUp, SimpleNamespace(replicas=0)),
            lambda: ended.append(True),
            has_read=lambda: False,
        ),
        5,
    )
    assert ended
