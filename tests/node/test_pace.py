"""The pace of streaming: never faster than the rate, and a rate that changes is noticed at once."""

from __future__ import annotations

import asyncio
import time

from stele.agent.pulling import BURST_S, Pace


async def test_it_is_not_faster_than_the_rate() -> None:
    pace, began_s = Pace(lambda: 100_000.0), time.monotonic()
    for _ in range(10):
        await pace.took(5_000)
    assert time.monotonic() - began_s > 0.5 - BURST_S - 0.01


async def test_who_takes_at_the_same_time_is_let_on_in_turn() -> None:
    """All at once they would be seen to get on in leaps, with nothing between."""
    now_s = 0.0
    pace = Pace(lambda: 1000.0, lambda: now_s)
    waiting = [asyncio.create_task(pace.took(1000)) for _ in range(3)]
    while waiting:
        await asyncio.sleep(0)
        now_s += 1.0
        done, rest = await asyncio.wait(waiting, timeout=90, return_when=asyncio.FIRST_COMPLETED)
        assert done == {waiting.pop(0)}
        assert rest == {*waiting}


async def test_a_pause_is_made_up_for_only_a_little() -> None:
    now_s = 0.0
    pace = Pace(lambda: 1_000_000.0, lambda: now_s)
    now_s = 3600.0
    waits = asyncio.create_task(pace.took(10_000_000))
    await asyncio.sleep(0.05)
    assert not waits.done()
    now_s += 10.0
    await asyncio.wait_for(waits, 90)


async def test_a_rate_that_goes_up_is_noticed_while_it_waits() -> None:
    rate = 1.0
    pace = Pace(lambda: rate)
    waits = asyncio.create_task(pace.took(1_000_000))
    await asyncio.sleep(0.05)
    assert not waits.done()
    rate = 1e12
    await asyncio.wait_for(waits, 90)
