"""The election on a real broker: one instance is active, another takes over, and each can be elected again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from stele.coordinator.election import Election
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.runtime.group import FENCED_PAUSE_S
from tests.services.groups import fence_member

pytestmark = pytest.mark.broker

DEADLINE_S = 240.0
Candidate = Callable[[str], Awaitable[Election]]


@pytest.fixture
async def candidate(kafka: str, topics: str) -> AsyncIterator[Candidate]:
    async with AsyncExitStack() as stack:

        async def make(name: str) -> Election:
            election = Election(Brokers(kafka), topics, name, lambda: None)
            election.start()
            stack.push_async_callback(election.close)
            return election

        yield make


async def _until(true: Callable[[], bool], what: str) -> None:
    end_s = asyncio.get_running_loop().time() + DEADLINE_S
    while not true():
        assert asyncio.get_running_loop().time() < end_s, f"{what} within {DEADLINE_S} s"
        await asyncio.sleep(0.05)


async def test_one_instance_is_active_and_another_takes_over(candidate: Candidate) -> None:
    one = await candidate("c-1")
    await _until(lambda: one.elected, "the first is elected")
    two = await candidate("c-2")
    await one.close()
    await _until(lambda: two.elected, "the second takes over")
    assert not one.failure and not two.failure


async def test_fenced_instance_is_elected_again(
    candidate: Candidate, kafka: str, topics: str
) -> None:
    """This happens after a long silence, when its own return takes its name away."""
    one = await candidate("c-1")
    await _until(lambda: one.elected, "it is elected")
    group, topic = f"stele.{topics}.coordinators", flow_topic(topics, "reports")
    await asyncio.to_thread(fence_member, kafka, group, topic, "c-1", "cooperative-sticky")
    await _until(lambda: bool(one.failure), "it tells that it was fenced out")
    await _until(lambda: one.elected, "it is elected again")
    await _until(lambda: not one.failure, "and well")


async def test_instance_fenced_by_a_namesake_that_acts_is_not_elected_again(
    candidate: Candidate, kafka: str, topics: str
) -> None:
    one = await candidate("c-1")
    await _until(lambda: one.elected, "it is elected")
    two = await candidate("c-1")
    await _until(lambda: two.elected, "the second is elected")
    one.displaced()  # as the driver reports it after the claim of the second
    await _until(lambda: not one.elected, "the first is out")
    await asyncio.sleep(2 * FENCED_PAUSE_S)
    assert (one.elected, two.elected) == (False, True)
    assert "STELE_INSTANCE_ID" in one.failure
