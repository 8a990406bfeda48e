"""A node stores no row before the epoch that created its table is synced, and keeps rows of lost tables."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stele.agent.agent import Agent, Flows
from stele.agent.cleanup import Cleaner
from stele.agent.gate import NotThisReplica
from stele.agent.identity import DataDirectory, boot
from stele.agent.judging import Code
from stele.agent.member import health_of
from stele.agent.orders import OrderProgress
from stele.domain.commands import CreateKeyspace, CreateTable, Noop
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.ring.partitioner import token_of
from stele.node.binding import bind_store
from stele.node.cells import Cell, StoredCell
from stele.node.store import SqliteStore
from stele.node.wire import Write
from stele.runtime.follow import Followed
from tests.domain.history import LOG_ID
from tests.node.peers import replica_of
from tests.node.sizes import size_of
from tests.node.test_agent import NEVER_S
from tests.node.test_cleanup import joined
from tests.node.test_gate import Start, record_count
from tests.node.world import OpenGate, World
from tests.polling import until

TABLE = "music.songs"


class Blocked:
    """A disk whose writes block until it is released."""

    def __init__(self, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        plain = directory.save

        def save(**changes: Any) -> None:
            assert self.released.wait(150)
            plain(**changes)

        monkeypatch.setattr(directory, "save", save)


@pytest.fixture
def world() -> World:
    world = World()
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=4))
    return world


@pytest.fixture
async def directory(world: World, tmp_path: Path) -> DataDirectory:
    """Return the directory of n1, a member that has synced all that it read."""
    directory = boot(tmp_path, "n1", "demo")
    directory.save(host_id="host-n1")
    bind_store(directory)
    await Start(directory, record_count(world), world).admit()
    return directory


@pytest.fixture
async def acks() -> list[Ack]:
    return []


@pytest.fixture
async def agent(world: World, directory: DataDirectory, acks: list[Ack]) -> AsyncIterator[Agent]:
    flows = Flows(send_ack=acks.append, send_report=lambda _: None)
    follower = await world.follower()
    agent = Agent(directory, OpenGate(), follower, flows, lambda _: {}, NEVER_S)  # type: ignore[arg-type]
    await until(lambda: acks, "the first heartbeat")
    yield agent
    await agent.close()


async def test_no_row_is_stored_before_the_creation_of_its_table_is_synced(
    world: World,
    directory: DataDirectory,
    agent: Agent,
    acks: list[Ack],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Blocked(directory, monkeypatch)
    store = SqliteStore(directory.store_path)
    replica = replica_of("n1", agent.follower, agent, store, catch_up_limit_s=0.02)
    world.apply(CreateTable(TABLE))
    created, data_id = world.image.epoch, world.data_id_of(TABLE)
    await agent.follower.wait_for_epoch(created)
    write = Write(
        data_id=data_id,
        token=token_of(b"a"),
        key=b"a",
        cell=Cell(7, False, b"value"),
        version=world.version,
        epoch=created,
        coordinating="n2",
    )
    assert (await replica.serve([write]))[0].code is Code.BEHIND
    assert not [ack for ack in acks if ack.epoch >= created]
    world.apply(Noop())
    disk.released.set()
    await until(lambda: agent.may_store(data_id), "the epoch is synced")
    assert (await replica.serve([write]))[0].code is Code.OK
    assert boot(directory.folder, "n1", "demo").identity.acknowledged.epoch >= created
    await store.close()


async def test_older_table_is_served_while_a_newer_creation_is_synced(
    world: World, directory: DataDirectory, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(CreateTable(TABLE))
    await agent.follower.wait_for_epoch(world.image.epoch)
    await agent.wait_until_synced([world.data_id_of(TABLE)], 150)
    disk = Blocked(directory, monkeypatch)
    world.apply(CreateTable("music.newer"))
    await agent.follower.wait_for_epoch(world.image.epoch)
    newer = world.data_id_of("music.newer")
    assert agent.may_store(world.data_id_of(TABLE)) and not agent.may_store(newer)
    disk.released.set()
    await agent.wait_until_synced([newer], 150)


async def test_acknowledged_epoch_is_that_of_the_newest_creation(
    world: World, agent: Agent, directory: DataDirectory
) -> None:
    world.apply(CreateTable(TABLE))
    created = world.image.epoch
    for _ in range(3):
        world.apply(Noop())
    await agent.follower.wait_for_epoch(world.image.epoch)
    await agent.wait_until_synced([world.data_id_of(TABLE)], 150)
    assert directory.identity.acknowledged.epoch == created


class Lost:
    """n1 stored 50 rows of a table whose creation was lost with the end of the log, and was restarted."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world, self.image = folder, world, Image()

    async def happen(self, agent: Agent, store: SqliteStore) -> None:
        before = self.world.image.epoch
        self.world.apply(CreateTable(TABLE))
        self.data_id = self.world.data_id_of(TABLE)
        await agent.follower.wait_for_epoch(self.world.image.epoch)
        await agent.wait_until_synced([self.data_id], 150)
        rows = [
            StoredCell(self.data_id, n, b"%d" % n, 1, False, b"acknowledged") for n in range(50)
        ]
        await store.write(rows)
        self.image = self.world.recover(before)

    def start(self, accept: str = "") -> tuple[DataDirectory, Start]:
        directory = boot(self.folder, "n1", "demo")
        bind_store(directory)
        world = self.world
        return directory, Start(directory, record_count(world), world, accept, self.image)


@pytest.fixture
async def store(directory: DataDirectory) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(directory.store_path)
    yield store
    await store.close()


async def test_node_with_rows_of_a_lost_table_refuses_the_recovered_log(
    world: World, directory: DataDirectory, agent: Agent, store: SqliteStore
) -> None:
    lost = Lost(directory.folder, world)
    await lost.happen(agent, store)
    _, start = lost.start()
    with pytest.raises(NotThisReplica, match="are lost"):
        await start.admit()


async def test_cleanup_keeps_rows_of_lost_tables_but_not_of_dropped_ones(
    world: World, directory: DataDirectory, agent: Agent, store: SqliteStore
) -> None:
    lost = Lost(directory.folder, world)
    await lost.happen(agent, store)
    again, start = lost.start(accept=LOG_ID.hex())
    await start.admit()
    assert again.identity.unknown_data == (lost.data_id,)
    later = await world.follower_after(lost.image)
    await store.write([StoredCell("dropped-later", 1, b"a", 1, False, b"value")])
    joined(world)
    await later.wait_for_epoch(world.image.epoch)
    cleaner = Cleaner("n1", later, store, lambda: again.identity.unknown_data)
    await cleaner.run(world.cleanup_order(), OrderProgress())
    assert (await size_of(store)).keys == 50
    assert await store.partitions() == [lost.data_id]
    followed = Followed(start.follower)
    followed.caught_up.set()
    health = health_of("n1", followed, start.gate, unknown_data=again.identity.unknown_data)
    assert health.ok and f"the log does not know: {lost.data_id}." in health.reason
    once_more, start = lost.start()
    await start.admit()
    assert once_more.identity.unknown_data == (lost.data_id,), "it is kept over restarts"
