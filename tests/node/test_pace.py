"""The pace of streaming: never faster than the rate, and a changed rate takes effect at once."""

from __future__ import annotations

import asyncio
import time

from stele.agent.pulling import BURST_S, Pace


async def test_pace_does_not_exceed_the_rate() -> None:
    pace, began_s = Pace(lambda: 100_000.0), time.monotonic()
    for _ in range(10):
        await pace.took(5_000)
    assert time.monotonic() - began_s > 0.5 - BURST_S - 0.01


async def test_concurrent_takers_proceed_one_at_a_time() -> None:
    """If all proceeded at once, progress would come in bursts with long pauses."""
    now_s = 0.0
    pace = Pace(lambda: 1000.0, lambda: now_s)
    waiting = [asyncio.create_task(pace.took(1000)) for _ in range(3)]
    while waiting:
        await asyncio.sleep(0)
        now_s += 1.0
        done, rest = await asyncio.wait(waiting, timeout=240, return_when=asyncio.FIRST_COMPLETED)
        assert done == {waiting.pop(0)}
        assert rest == {*waiting}


async def test_idle_time_gives_only_a_small_burst() -> None:
    now_s = 0.0
    pace = Pace(lambda: 1_000_000.0, lambda: now_s)
    now_s = 3600.0
    waits = asyncio.create_task(pace.took(10_000_000))
    await asyncio.sleep(0.05)
    assert not waits.done()
    now_s += 10.0
    await asyncio.wait_for(waits, 240)


async def test_raised_rate_applies_to_a_running_wait() -> None:
    rate = 1.0
    pace = Pace(lambda: rate)
    waits = asyncio.create_task(pace.took(1_000_000))
    await asyncio.sleep(0.05)
    assert not waits.done()
    rate = 1e12
    await asyncio.wait_for(waits, 240)
