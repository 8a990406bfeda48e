"""Rows at three replicas that have read the log to different epochs (CASSANDRA-13004)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stele.agent.judging import Code
from stele.domain.image import Image
from stele.domain.ring.partitioner import token_of
from stele.log.follower import LogFollower
from stele.node import coordinate
from stele.node.cells import Cell, HybridClock, StoredCell, content_of
from stele.node.changes import Changes
from stele.node.coordinate import Consistency, Coordination, RequestRefused, Written
from stele.node.store import SqliteStore
from stele.node.wire import Answer, AnyOp, Read, ReadMode, Write
from tests.log.memory import MemoryLog, MemoryPartition
from tests.node.columned import (
    USERS,
    alter,
    column,
    create_tables,
    reads,
    row_of,
    schema_of,
    writes,
)
from tests.node.peers import NODES, replica_of
from tests.node.world import Sessions, World

QUORUM = Consistency.QUORUM


class LateFollower(LogFollower):
    """Reads the log only when something waits for an epoch, and never while it is ``deaf``."""

    def __init__(self, world: World) -> None:
        self._world, self._partition = world, MemoryPartition()
        self.deaf = False
        super().__init__(MemoryLog(self._partition))

    def read(self) -> None:
        """Read the log to its end."""
        for record in self._world.partition.records[len(self._partition.records) :]:
            self._partition.append(record.value)
            for follower in self._partition.followers:
                follower([record])

    async def wait_for_epoch(self, epoch: int, timeout_s: float = 30.0) -> Image:
        if not self.deaf:
            self.read()
        return await super().wait_for_epoch(epoch, min(timeout_s, 0.05) if self.deaf else timeout_s)

    async def wait_for_end(self, timeout_s: float = 30.0) -> Image:
        if not self.deaf:
            self.read()
        return await super().wait_for_end(timeout_s)


class Node:
    """A replica with its own store and log reader, which also coordinates."""

    def __init__(
        self, cluster: ThreeReplicas, name: str, follower: LateFollower, path: Path
    ) -> None:
        self.follower, self.store = follower, SqliteStore(path)
        sessions, clock = Sessions(follower), HybridClock(cluster.now_us)
        self.replica = replica_of(name, follower, sessions, self.store, clock)
        self.coordination = Coordination(name, follower, sessions, cluster.send, clock, 30.0)

    @property
    def version(self) -> int:
        return schema_of(self.follower.image).version


class ThreeReplicas:
    """Three nodes that hold every row."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = dict[str, Node]()
        self.sent = list[AnyOp]()
        self._now_us = 0

    def now_us(self) -> int:
        self._now_us += 1
        return self._now_us

    def start_clock(self, now_us: int) -> None:
        self._now_us = now_us

    def send(self, image: Image, node_id: str, op: AnyOp, until: float) -> asyncio.Future[Answer]:
        async def answer() -> Answer:
            self.sent.append(op)
            return (await self.nodes[node_id].replica.serve([op]))[0]

        return asyncio.get_running_loop().create_task(answer())

    async def write(
        self, via: str, row: dict[str, Any] | None, at_least: int = 0, how: Consistency = QUORUM
    ) -> Written:
        coordination = self.nodes[via].coordination
        return await coordination.write(USERS, writes("ada", row), how, at_least)

    async def read(self, via: str) -> dict[str, Any] | None:
        found = await self.nodes[via].coordination.read(USERS, reads("ada"), QUORUM)
        return row_of(found.image, "ada", found.cell)

    async def stored(self, node_id: str) -> Cell | None:
        data_id = self.world.data_id_of(USERS)
        return await self.nodes[node_id].store.read(data_id, token_of(b"ada"), b"ada")

    def versions(self) -> dict[str, int]:
        return {name: node.version for name, node in self.nodes.items()}


@pytest.fixture
async def cluster(world: World, tmp_path: Path) -> AsyncIterator[ThreeReplicas]:
    create_tables(world)
    cluster = ThreeReplicas(world)
    for name in NODES:
        follower = LateFollower(world)
        follower.start()
        await follower.wait_for_epoch(world.image.epoch)
        cluster.nodes[name] = Node(cluster, name, follower, tmp_path / f"{name}.sqlite")
    yield cluster
    for node in cluster.nodes.values():
        await node.store.close()


async def test_lagging_replica_catches_up_before_it_serves(cluster: ThreeReplicas) -> None:
    alter(cluster.world, add=(column("size", "int"),))
    cluster.nodes["n1"].follower.read()
    newest = cluster.nodes["n1"].version
    assert cluster.versions() == {**dict.fromkeys(NODES, newest - 1), "n1": newest}
    written = await cluster.write("n1", {"size": 3}, how=Consistency.ALL)
    assert written.table_version == newest
    assert cluster.versions() == dict.fromkeys(NODES, newest)


async def test_quorum_suffices_while_one_replica_cannot_catch_up(
    cluster: ThreeReplicas,
) -> None:
    alter(cluster.world, add=(column("size", "int"),))
    cluster.nodes["n1"].follower.read()
    cluster.nodes["n3"].follower.deaf = True
    written = await cluster.write("n1", {"size": 3})
    assert written.acks == ["n1", "n2"]
    with pytest.raises(RequestRefused) as refused:
        await cluster.write("n1", {"size": 4}, how=Consistency.ALL)
    assert str(refused.value.details["n3"]).startswith(Code.BEHIND)


async def test_node_reads_the_log_before_it_refuses_an_unknown_column(
    cluster: ThreeReplicas,
) -> None:
    alter(cluster.world, add=(column("size", "int"),))
    await cluster.write("n2", {"size": 3})
    row = await cluster.read("n3")
    assert row is not None and row["size"] == 3
    with pytest.raises(RequestRefused) as refused:
        await cluster.write("n1", {"weight": 3})
    assert (refused.value.status, refused.value.code) == (400, "unknown_column")


async def test_write_of_a_column_that_replicas_dropped_is_refused_without_effect(
    cluster: ThreeReplicas,
) -> None:
    """The replicas report the dropped column before the coordinator writes."""
    alter(cluster.world, drop=("age",))
    for name in ("n2", "n3"):
        cluster.nodes[name].follower.read()
    with pytest.raises(RequestRefused) as refused:
        await cluster.write("n1", {"age": 3})
    assert (refused.value.status, refused.value.code) == (400, "dropped_column")
    assert refused.value.details["table_version"] == cluster.nodes["n2"].version
    assert [await cluster.stored(name) for name in NODES] == [None] * 3


async def test_lagging_coordinator_returns_the_columns_that_replicas_know(
    cluster: ThreeReplicas,
) -> None:
    alter(cluster.world, add=(column("size", "int"),))
    cluster.nodes["n1"].follower.deaf = True
    await cluster.write("n2", {"size": 3})
    cluster.nodes["n1"].follower.deaf = False
    assert cluster.nodes["n1"].version < cluster.nodes["n2"].version
    assert await cluster.read("n1") == {
        "name": "ada",
        "age": None,
        "home": None,
        "tags": None,
        "size": 3,
    }


async def test_lagging_node_refuses_changes_that_have_unknown_columns(
    cluster: ThreeReplicas,
) -> None:
    """A consumer would continue from its cursor, and never see the column."""
    newest = cluster.world.image.cdc.newest()
    assert newest is not None
    cluster.start_clock(1000 * newest.since_ms + 60_000_000)
    alter(cluster.world, parameters={"cdc": "{'enabled': 'true'}"})
    behind = cluster.nodes["n1"]
    changes = Changes(behind.coordination, cluster.now_us)
    behind.follower.read()
    behind.follower.deaf = True
    alter(cluster.world, add=(column("size", "int"),))
    await cluster.write("n2", {"size": 3})
    cluster.start_clock(cluster.now_us() + 60_000_000)
    with pytest.raises(RequestRefused) as refused:
        await changes.read(USERS, b"", "", 100)
    assert (refused.value.status, refused.value.code) == (503, "behind")
    behind.follower.deaf = False
    page = await changes.read(USERS, b"", "", 100)
    assert [change.row for change in page.changes] == [{"name": "ada", "size": 3}]


async def test_sender_with_an_older_schema_is_served_and_gets_the_newer_version(
    cluster: ThreeReplicas,
) -> None:
    older = read_of(cluster.world.image)
    alter(cluster.world, add=(column("size", "int"),))
    cluster.nodes["n2"].follower.read()
    await cluster.write("n2", {"size": 3, "age": 36}, how=Consistency.ALL)
    newer = read_of(cluster.world.image)
    answers = await cluster.nodes["n2"].replica.serve([older, newer])
    assert [answer.code for answer in answers] == [Code.OK] * 2
    assert answers[0].cell == answers[1].cell is not None
    version = cluster.nodes["n2"].version
    assert [answer.table_version for answer in answers] == [version, 0]


def read_of(image: Image) -> Read:
    """Return a read as a node with this image sends it."""
    data = image.schema.serving(USERS)
    assert data is not None
    place = reads("ada")(image)
    return Read(
        version=image.topology.version,
        epoch=image.epoch,
        coordinating="n1",
        data_id=data.data_id,
        token=place.token,
        key=place.key,
        mode=ReadMode.CELL,
        table_version=place.table_version,
    )


async def test_node_that_cannot_read_the_log_serves_its_older_columns(
    cluster: ThreeReplicas,
) -> None:
    await cluster.write("n1", {"age": 36})
    alter(cluster.world, drop=("age",), add=(column("size", "int"),))
    for name in ("n2", "n3"):
        cluster.nodes[name].follower.read()
    cluster.nodes["n1"].follower.deaf = True
    await cluster.write("n2", {"size": 3})
    await cluster.write("n1", {"age": 37}, how=Consistency.ALL)
    assert await cluster.read("n1") == {"name": "ada", "age": 37, "home": None, "tags": None}
    assert await cluster.read("n2") == {"name": "ada", "home": None, "tags": None, "size": 3}


async def test_client_with_a_newer_schema_version_is_served_at_it_or_refused(
    cluster: ThreeReplicas,
) -> None:
    alter(cluster.world, add=(column("size", "int"),))
    newest = cluster.world.image.epoch
    written = await cluster.write("n1", {"size": 3}, at_least=newest)
    assert written.table_version == newest == cluster.nodes["n1"].version
    cluster.nodes["n1"].follower.deaf = True
    with pytest.raises(RequestRefused) as refused:
        await cluster.write("n1", {"size": 3}, at_least=newest + 1)
    assert (refused.value.status, refused.value.code) == (503, "behind")


async def test_replicas_with_different_columns_of_a_row_agree_after_a_read(
    cluster: ThreeReplicas,
) -> None:
    """Each has a write that the others missed."""
    made: dict[str, dict[str, Any]] = {
        "n1": {"age": 1},
        "n2": {"tags": ["x"]},
        "n3": {"home": {"street": "Ring"}},
    }
    for name, row in made.items():
        cell = writes("ada", row)(cluster.world.image).cell_at(cluster.now_us())
        op = read_of(cluster.world.image)
        await cluster.nodes[name].store.write([StoredCell(op.data_id, op.token, op.key, *cell)])
    merged_row = {"name": "ada", "age": 1, "tags": ["x"], "home": {"street": "Ring"}}
    full = await cluster.nodes["n1"].coordination.read(USERS, reads("ada"), Consistency.ALL)
    assert row_of(full.image, "ada", full.cell) == merged_row
    assert await cluster.read("n2") == merged_row


async def test_a_read_writes_a_large_row_back_in_pieces(
    cluster: ThreeReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is larger than a call between nodes could otherwise not be read."""
    monkeypatch.setattr(coordinate, "PIECE_BYTES", 1)
    row = {"age": 1, "tags": ["x"], "home": {"street": "Ring"}}
    cell = writes("ada", row)(cluster.world.image).cell_at(cluster.now_us())
    op = read_of(cluster.world.image)
    await cluster.nodes["n1"].store.write([StoredCell(op.data_id, op.token, op.key, *cell)])
    found = await cluster.nodes["n2"].coordination.read(USERS, reads("ada"), Consistency.ALL)
    assert row_of(found.image, "ada", found.cell) == {"name": "ada", **row}
    written = [op.cell for op in cluster.sent if isinstance(op, Write)]
    assert {len(content_of(each.value).columns) for each in written} == {1}
    stored = [await cluster.stored(name) for name in NODES]
    assert stored.count(cell) >= 2


NUMBERS = frozenset({"age", "size", "weight", "height"})


class RandomChanges:
    """Random changes of columns and random writes, and the row that results."""

    def __init__(self, cluster: ThreeReplicas, seed: int) -> None:
        self._company, self._chance = cluster, random.Random(seed)
        self._key, self._values = "name", dict[str, Any]()

    async def step(self, number: int) -> None:
        world, there = self._company.world, sorted(NUMBERS & self._columns().keys())
        match self._chance.choice(("add", "drop", "rename", "write", "write", "write")):
            case "add" if len(there) < len(NUMBERS):
                name = self._chance.choice(sorted(NUMBERS - {*there}))
                alter(world, add=(column(name, "int"),))
            case "drop" if there:
                name = self._chance.choice(there)
                alter(world, drop=(name,))
                self._values.pop(name, None)
            case "rename":
                alter(world, rename={self._key: f"name{number}"})
                self._key = f"name{number}"
            case _:
                names = (name for name in there if self._chance.random() < 0.5)
                row = {name: self._chance.choice((None, number)) for name in names}
                await self._company.write(self._node(), row)
                self._values.update(row)
        for node in self._company.nodes.values():
            if self._chance.random() < 0.2:
                node.follower.read()

    async def check(self, via: str = "") -> None:
        """Read the row through a node. A lagging node returns the columns that it knows."""
        via = via or self._node()
        shown = await self._company.read(via)
        assert shown is not None
        if self._company.nodes[via].version == schema_of(self._company.world.image).version:
            assert shown == {self._key: "ada", **self._columns(), **self._values}

    def _columns(self) -> dict[str, None]:
        columns = schema_of(self._company.world.image).columns
        return {each.name: None for each in columns if not each.in_primary_key}

    def _node(self) -> str:
        return self._chance.choice(NODES)


@pytest.mark.parametrize("seed", range(8))
async def test_requests_during_column_changes_succeed_without_dropped_values(
    cluster: ThreeReplicas, seed: int
) -> None:
    """Nodes read the log at different times. A column that is added again is a new one."""
    random_changes = RandomChanges(cluster, seed)
    await cluster.write("n1", {})
    for number in range(30):
        await random_changes.step(number)
        await random_changes.check()
    for name, node in cluster.nodes.items():
        node.follower.read()
        await random_changes.check(name)
