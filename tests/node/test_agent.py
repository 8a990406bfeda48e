"""The agent's acks: heartbeats, and at once when something changed that others wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.acks import AckTable
from stele.domain.commands import Noop
from stele.domain.messages import Ack, Report
from stele.node.agent import Agent, Flows
from stele.node.identity import Identity, boot
from stele.runtime.settings import ConfigurationError
from tests.node.world import World, until

NEVER_S = 60.0


@pytest.fixture
def acks() -> list[Ack]:
    return []


def agent_of(world: World, follower: object, acks: list[Ack], heartbeat_s: float) -> Agent:
    reports: list[Report] = []
    flows = Flows(send_ack=acks.append, send_report=reports.append)
    identity = Identity("n1", "demo", 3, "join-1")
    return Agent(identity, follower, flows, lambda _: {}, heartbeat_s)  # type: ignore[arg-type]


@pytest.fixture
async def agent(world: World, acks: list[Ack]) -> AsyncIterator[Agent]:
    agent = agent_of(world, await world.follower(), acks, NEVER_S)
    await until(lambda: acks, "the first heartbeat")
    yield agent
    await agent.close()


async def test_it_beats_and_counts_up(world: World, acks: list[Ack]) -> None:
    agent = agent_of(world, await world.follower(), acks, 0.01)
    await until(lambda: len(acks) >= 3, "three heartbeats")
    await agent.close()
    assert [ack.sequence for ack in acks[:3]] == [1, 2, 3]
    assert acks[0].epoch == world.image.epoch
    assert acks[0].oldest_version_in_use == acks[0].version == world.version


async def test_a_new_epoch_is_acknowledged_at_once(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    world.apply(Noop())
    await until(lambda: acks[-1].epoch == world.image.epoch, "the ack of the epoch")


async def test_a_burst_of_epochs_is_acknowledged_once(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    for _ in range(50):
        world.apply(Noop())
    await until(lambda: acks[-1].epoch == world.image.epoch, "the ack of the last epoch")
    assert len(acks) <= 3


async def test_the_release_of_an_old_version_is_told_at_once(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    before = world.version
    agent.hold(before)
    world.start_join()
    await until(lambda: acks[-1].version == before + 1, "the ack of the new version")
    assert acks[-1].oldest_version_in_use == before
    agent.release(before)
    await until(lambda: acks[-1].oldest_version_in_use == before + 1, "the ack of the release")


async def test_sessions_are_told_until_their_work_has_ended(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    world.start_join()
    world.advance()
    session = world.image.topology.topology.session
    with agent.enter(session) as guard:
        guard.check()
        await until(lambda: acks[-1].sessions_in_use == (session,), "the session")
        world.advance()
        await until(lambda: acks[-1].epoch == world.image.epoch, "the ack of the next step")
        assert acks[-1].sessions_in_use == (session,)
    await until(lambda: acks[-1].sessions_in_use == (), "the end of the session's work")


async def test_a_node_that_cannot_read_the_log_falls_silent(world: World, acks: list[Ack]) -> None:
    follower = await world.follower()
    agent = agent_of(world, follower, acks, 0.01)
    await until(lambda: acks, "the first heartbeat")
    follower.failure = RuntimeError("corrupt")
    await asyncio.sleep(0)
    count = len(acks)
    await asyncio.sleep(0.05)
    assert len(acks) <= count + 1
    await agent.close()


def test_each_start_has_a_greater_boot_id(tmp_path: Path) -> None:
    boots = [boot(tmp_path, "n1", "demo") for _ in range(12)]
    ids = [identity.boot_id() for identity in boots]
    assert ids == sorted(ids) and len(set(ids)) == 12
    assert len({identity.join_request_id for identity in boots}) == 1
    table = AckTable()
    for number, boot_id in enumerate(ids):
        ack = Ack(
            node_id="n1",
            boot_id=boot_id,
            sequence=100 - number,
            epoch=number,
            version=1,
            fence_version=1,
            oldest_version_in_use=1,
        )
        table = table.with_ack(ack, 0.0)
        assert table.by_node["n1"].ack is ack


def test_a_data_folder_belongs_to_one_node(tmp_path: Path) -> None:
    boot(tmp_path, "n1", "demo")
    with pytest.raises(ConfigurationError, match="holds the data of node 'n1'"):
        boot(tmp_path, "n2", "demo")
