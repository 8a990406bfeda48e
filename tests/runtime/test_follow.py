"""Catch-up with the log at the start of a service: retries, permanent errors and cancellation."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from stele.log.follower import LogFollower
from stele.runtime import follow
from stele.runtime.follow import Followed
from stele.runtime.retries import until_it_works
from tests.node.world import World

LIMIT_S = 240.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = partial(until_it_works, wait_initial=0.01, wait_max=0.01, wait_jitter=0.0)
    monkeypatch.setattr(follow, "until_it_works", soon)


def failing(follower: LogFollower, *errors: Exception) -> list[Exception]:
    """Make the next waits for the end raise these errors. Return the remaining ones."""
    left, wait_for_end = list(errors), follower.wait_for_end

    async def wait(timeout_s: float) -> object:
        if left:
            raise left.pop(0)
        return await wait_for_end(timeout_s)

    follower.wait_for_end = wait  # type: ignore[method-assign,assignment]
    return left


@pytest.mark.usefixtures("quick")
async def test_catch_up_retries_timeouts_until_the_end_is_read() -> None:
    followed = Followed(await World().follower())
    left = failing(followed.follower, *(TimeoutError(f"try {each}") for each in range(20)))
    assert not followed.health().ok
    await asyncio.wait_for(followed.catch_up(), LIMIT_S)
    assert not left and followed.caught_up.is_set() and followed.health().ok


@pytest.mark.usefixtures("quick")
async def test_catch_up_does_not_retry_permanent_errors() -> None:
    followed = Followed(await World().follower())
    left = failing(followed.follower, ValueError("unreadable"), TimeoutError("never raised"))
    with pytest.raises(ValueError, match="unreadable"):
        await followed.catch_up()
    assert len(left) == 1 and not followed.caught_up.is_set()


async def test_catch_up_can_be_cancelled_during_a_pause() -> None:
    followed = Followed(await World().follower())
    left = failing(followed.follower, *(TimeoutError("away") for _ in range(1000)))
    task = asyncio.create_task(followed.catch_up())
    async with asyncio.timeout(LIMIT_S):
        while len(left) == 1000:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LIMIT_S)
