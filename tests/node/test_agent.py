"""The agent's acks: heartbeats, and an immediate ack for each change that barriers wait for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.agent.agent import Agent, Flows
from stele.agent.identity import AHEAD, Acknowledged, boot, read
from stele.domain.commands import Exclude, ExcludeDead, Noop, Truncate
from stele.domain.messages import Ack, Order, Report
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.topology.barriers import AckTable
from stele.log.follower import LogFollower
from tests.node.world import KEYSPACE, TERM, OpenGate, World
from tests.polling import until

NEVER_S = 60.0


@pytest.fixture
def acks() -> list[Ack]:
    return []


def agent_of(
    folder: Path, follower: LogFollower, acks: list[Ack], heartbeat_s: float, gate: object = None
) -> Agent:
    reports: list[Report] = []
    flows = Flows(send_ack=acks.append, send_report=reports.append)
    directory = boot(folder, "n1", "demo")
    return Agent(
        directory,
        gate or OpenGate(),  # type: ignore[arg-type]
        follower,
        flows,
        lambda _: {},
        heartbeat_s,
    )


@pytest.fixture
async def agent(world: World, acks: list[Ack], tmp_path: Path) -> AsyncIterator[Agent]:
    agent = agent_of(tmp_path, await world.follower(), acks, NEVER_S)
    await until(lambda: acks, "the first heartbeat")
    yield agent
    await agent.close()


async def test_heartbeats_have_rising_sequence_numbers(
    world: World, acks: list[Ack], tmp_path: Path
) -> None:
    agent = agent_of(tmp_path, await world.follower(), acks, 0.01)
    await until(lambda: len(acks) >= 3, "three heartbeats")
    await agent.close()
    assert [ack.sequence for ack in acks[:3]] == [1, 2, 3]
    assert acks[0].epoch == world.image.epoch
    assert acks[0].oldest_version_in_use == acks[0].version == world.version


async def test_sequence_number_on_disk_is_never_behind_the_acks(
    world: World, acks: list[Ack], tmp_path: Path
) -> None:
    """The sequence continues after a restart."""
    counted, agent = list[int](), agent_of(tmp_path, await world.follower(), acks, 0.001)
    send = agent._flows.send_ack

    def compare(ack: Ack) -> None:
        counted.append(read(tmp_path).counted)
        send(ack)

    agent._flows = Flows(send_ack=compare, send_report=lambda _: None)
    await until(lambda: len(acks) > 3 * AHEAD, "many heartbeats")
    await agent.close()
    assert all(n >= ack.sequence for n, ack in zip(counted, acks, strict=True))
    assert len({*counted}) < len(acks) / AHEAD + 5, "it is not written for each"
    last = read(tmp_path).counted
    acks.clear()
    again = agent_of(tmp_path, await world.follower(), acks, NEVER_S)
    await until(lambda: acks, "the first heartbeat")
    await again.close()
    assert acks[0].sequence == last + 1


async def test_heartbeats_continue_up_to_the_number_on_a_slow_disk(
    world: World, acks: list[Ack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stop when the sequence reaches the number on disk."""
    agent = agent_of(tmp_path, await world.follower(), acks, 0.002)
    await until(lambda: len(acks) > 1, "the first heartbeats")
    go_on, raised = threading.Event(), agent._directory.heartbeats.raise_to

    def wait(number: int) -> None:
        go_on.wait(60)
        raised(number)

    monkeypatch.setattr(agent._directory.heartbeats, "raise_to", wait)
    counted = agent._directory.heartbeats.counted
    await until(lambda: acks[-1].sequence == counted, "all that may be told")
    await asyncio.sleep(0.05)
    assert acks[-1].sequence == counted
    go_on.set()
    await until(lambda: acks[-1].sequence > counted, "the next one")
    await agent.close()


async def test_a_burst_of_epochs_is_acknowledged_once(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    for _ in range(50):
        world.apply(Noop())
    await until(lambda: acks[-1].epoch == world.image.epoch, "the ack of the last epoch")
    assert len(acks) <= 3


async def test_release_of_an_old_version_is_acknowledged_at_once(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    world.start_join()
    before = world.version
    changes = world.key_that_changes()
    held = agent.hold(before, world.keyspace_id, token_of(changes))
    world.advance()
    await until(lambda: acks[-1].version == before + 1, "the ack of the new version")
    assert acks[-1].oldest_version_in_use == before
    agent.release(held)
    await until(lambda: acks[-1].oldest_version_in_use == before + 1, "the ack of the release")


async def test_request_on_an_unchanged_range_holds_no_version(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    world.start_join()
    before = world.version
    stays = world.key_that_stays()
    held = agent.hold(before, world.keyspace_id, token_of(stays))
    world.advance()
    await until(lambda: acks[-1].version == before + 1, "the ack of the new version")
    assert acks[-1].oldest_version_in_use == before + 1
    agent.release(held)


async def test_acks_contain_a_session_until_its_work_has_ended(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    world.start_join()
    world.advance()
    session = world.session
    with agent.enter(session) as guard:
        guard.check()
        await until(lambda: acks[-1].sessions_in_use == (session,), "the session")
        world.advance()
        await until(lambda: acks[-1].epoch == world.image.epoch, "the ack of the next step")
        assert acks[-1].sessions_in_use == (session,)
    await until(lambda: acks[-1].sessions_in_use == (), "the end of the session's work")


async def test_node_that_cannot_read_the_log_sends_no_acks(
    world: World, acks: list[Ack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await world.follower()
    agent = agent_of(tmp_path, follower, acks, 0.001)
    await until(lambda: acks, "the first heartbeat")
    follower.failure = RuntimeError("corrupt")
    count, sleeps, sleep = len(acks), 0, asyncio.sleep

    async def counted(delay_s: float) -> None:
        nonlocal sleeps
        sleeps += delay_s == 0.001
        await sleep(delay_s)

    monkeypatch.setattr(asyncio, "sleep", counted)
    await until(lambda: sleeps >= 3, "three more beats")
    assert len(acks) == count
    await agent.close()


async def test_no_ack_is_sent_while_the_identity_of_the_log_is_in_doubt(
    world: World, acks: list[Ack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await world.follower()
    agent = agent_of(tmp_path, follower, acks, NEVER_S)
    await until(lambda: acks, "the first heartbeat")
    follower._reader.suspect("the test wants it")
    agent._ack()
    assert len(acks) == 1
    await until(lambda: not follower.is_suspended, "the look that ends the doubt")
    agent._ack()
    assert len(acks) == 2
    await agent.close()


async def test_agent_sends_no_acks_and_takes_no_orders_before_the_gate_opens(
    world: World, acks: list[Ack], tmp_path: Path
) -> None:
    class Shut(OpenGate):
        is_open = False

    gate = Shut()
    agent = agent_of(tmp_path, await world.follower(), acks, 0.005, gate)
    order = Order(node_id="n1", term=1, index=1, kind=OrderKind.STREAM, epoch=1, session="s")
    agent.offer(order)
    assert not agent._orders._tasks
    world.apply(Noop())
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert acks == []
    gate.is_open = True
    agent.offer(order)
    assert agent._orders._tasks
    await until(lambda: acks, "the first ack")
    assert acks[0].host_id == agent.host_id != ""
    await agent.close()


async def test_fence_is_on_disk_before_the_ack_that_contains_it(
    world: World, agent: Agent, acks: list[Ack], tmp_path: Path
) -> None:
    known = json.loads((tmp_path / "node.json").read_text())["acknowledged"]
    assert known["fence_version"] == acks[-1].fence_version
    written: list[Acknowledged] = []
    save = agent._directory.save

    def noted(**changes: object) -> None:
        assert all(ack.version == known["version"] for ack in acks)
        save(**changes)
        written.append(agent._directory.identity.acknowledged)

    agent._directory.save = noted  # type: ignore[method-assign]
    world.start_join()
    world.fence()
    fence, epoch = world.image.topology.fence_version, world.image.epoch
    assert fence > known["fence_version"]
    await until(lambda: acks[-1].fence_version == fence, "the ack of the fence")
    assert written[-1] == Acknowledged(epoch, world.image.state_id.hex(), fence, fence)
    count = len(written)
    world.apply(Noop())
    await until(lambda: acks[-1].epoch == epoch + 1, "an ack of nothing new to fence")
    assert len(written) == count, "an ack without a new version or fence costs no sync"


async def test_exclusion_is_on_disk_before_the_ack_of_its_epoch(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    """An exclusion creates no version. A restarted node that had forgotten it would accept requests of the
    excluded node again.
    """
    world.apply(Exclude(("n3",)), "exclude")
    await until(lambda: acks[-1].epoch == world.image.epoch, "an ack of what asks for it")
    world.apply(ExcludeDead(TERM, "exclude"))
    epoch = world.image.membership.last_exclusion()
    assert epoch == world.image.epoch > agent._directory.identity.acknowledged.epoch
    noted = list[int]()

    def send(ack: Ack) -> None:
        noted.append(agent._directory.identity.acknowledged.epoch)
        acks.append(ack)

    agent._flows = Flows(send_ack=send, send_report=lambda _: None)
    await until(lambda: acks[-1].epoch >= epoch, "the ack of the exclusion")
    assert noted and min(noted) >= epoch


async def test_disk_slower_than_the_rounds_does_not_stop_the_acks(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    """Each time a version has been stored, there is a newer one."""
    loop, rounds, silent = asyncio.get_running_loop(), 0, 0
    save = agent._directory.save

    async def next_round() -> None:
        nonlocal rounds, silent
        rounds += 1
        silent += len(acks) == count
        world.apply(Truncate(KEYSPACE), f"truncate-{rounds}")
        world.open(f"truncate-{rounds}")
        world.advance(f"truncate-{rounds}")
        await agent.follower.wait_for_epoch(world.image.epoch)

    def slow(**changes: object) -> None:
        save(**changes)
        noted = agent._directory.identity.acknowledged
        assert all(ack.version <= noted.version for ack in acks)
        assert all(ack.fence_version <= noted.fence_version for ack in acks)
        if rounds < 5:
            asyncio.run_coroutine_threadsafe(next_round(), loop).result()

    agent._directory.save = slow  # type: ignore[method-assign]
    count = len(acks)
    world.start_join()
    await until(lambda: acks[-1].version == world.version and rounds == 5, "the last ack")
    assert silent == 1, "the first round came before anything could be told"
    epochs = [ack.epoch for ack in acks]  # an identical ack is a heartbeat
    assert epochs == sorted(epochs)
    known = {image.epoch: image for image in world.history.images}
    for ack in acks:
        image = known[ack.epoch]
        assert (ack.state_id, ack.version) == (image.state_id, image.topology.version)
        assert ack.oldest_version_in_use <= ack.version


async def test_no_ack_is_sent_while_the_disk_cannot_store_the_fence(
    world: World, agent: Agent, acks: list[Ack]
) -> None:
    tried = 0

    def full(**_: object) -> None:
        nonlocal tried
        tried += 1
        raise OSError(28, "No space left on device")

    save, agent._directory.save = agent._directory.save, full  # type: ignore[method-assign]
    count = len(acks)
    world.start_join()
    await until(lambda: tried and agent._syncing is None, "the attempt to note it")
    assert len(acks) == count
    agent._directory.save = save  # type: ignore[method-assign]
    world.apply(Noop())
    await until(lambda: acks[-1].version == world.version, "the ack once there is room")


def test_each_start_has_a_greater_boot_id(tmp_path: Path) -> None:
    boots = [boot(tmp_path, "n1", "demo").identity for _ in range(12)]
    ids = [identity.boot_id("a life") for identity in boots]
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
