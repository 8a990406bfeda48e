"""Proofs that an image is current: their age, one probe for all callers, and none without callers."""

from __future__ import annotations

import asyncio
import time

import pytest

from stele.log.clocks import Moment
from tests.session_guard.world import GuardedWorld

MAX_AGE_S = 2.0


async def test_proof_is_as_old_as_its_probe() -> None:
    world = await GuardedWorld.make()
    assert world.proofs.age_s() == float("inf")
    world.withhold_answers()
    before_s = time.monotonic()
    waiting = asyncio.create_task(world.proofs.within(2.0))
    await asyncio.sleep(0.1)
    world.answer()
    assert await waiting
    assert before_s <= world.proofs.asked_at_s <= before_s + 0.09
    await world.proofs.close()


async def test_concurrent_callers_share_one_probe_and_a_young_proof_needs_none() -> None:
    world = await GuardedWorld.make()
    assert all(await asyncio.gather(*(world.proofs.within(2.0) for _ in range(100))))
    assert world.asked == 1
    assert await world.proofs.within(2.0)
    assert world.asked == 1


async def test_probe_from_before_the_moment_does_not_count_after_it() -> None:
    world = await GuardedWorld.make()
    assert await world.proofs.within(2.0)
    now_s = time.monotonic()
    assert await world.proofs.asked_after(now_s, 2.0)
    assert world.proofs.asked_at_s > now_s
    assert world.asked == 2


async def test_later_caller_does_not_use_a_probe_in_flight() -> None:
    world = await GuardedWorld.make()
    world.withhold_answers()
    first = asyncio.create_task(world.proofs.within(2.0))
    await asyncio.sleep(0.01)
    now_s = time.monotonic()
    later = asyncio.create_task(world.proofs.asked_after(now_s, 2.0))
    await asyncio.sleep(0.01)
    world.answer()
    assert await first and await later
    assert world.proofs.asked_at_s > now_s and world.asked == 2


async def test_missing_answer_gives_no_proof_within_the_limit() -> None:
    world = await GuardedWorld.make()
    world.cut_off()
    began_s = time.monotonic()
    assert not await world.proofs.within(0.2)
    assert time.monotonic() - began_s >= 0.2
    await world.proofs.close()


async def test_proof_from_before_the_machine_slept_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The monotonic clock stops during sleep."""
    world = await GuardedWorld.make()
    assert await world.proofs.within(MAX_AGE_S)
    asleep_s, now = 3600.0, Moment.now
    monkeypatch.setattr(Moment, "now", lambda: now()._replace(boot_s=now().boot_s + asleep_s))
    assert world.proofs.age_s() >= asleep_s
    world.withhold_answers()
    assert not await world.proofs.within(0.2)
    world.answer()
    assert await world.proofs.within(MAX_AGE_S)
    await world.proofs.close()


async def test_unreached_end_proves_nothing() -> None:
    world = await GuardedWorld.make()
    world.freeze()
    world.world.start_join()
    assert not await world.proofs.within(0.2)
    await world.proofs.close()


async def test_failed_reader_proves_nothing_and_reports_the_reason() -> None:
    world = await GuardedWorld.make()
    world.follower.fail(RuntimeError("the topic is not the one that it was"))
    assert not await world.proofs.within(2.0)
    assert "not the one that it was" in world.proofs.trouble
