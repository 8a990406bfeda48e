"""Rows at three replicas that have read the log to different epochs (CASSANDRA-13004)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stele.agent.judging import Code, Routing
from stele.domain.image import Image
from stele.domain.ring.partitioner import token_of
from stele.log.follower import LogFollower
from stele.node import coordinate
from stele.node.cells import Cell, HybridClock, StoredCell, content_of
from stele.node.changes import Changes
from stele.node.coordinate import Consistency, Coordination, RequestRefused, Written
from stele.node.load import Rates
from stele.node.replica import LocalReplica
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
from tests.node.world import Sessions, World

NODES = ("n1", "n2", "n3")
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

    def __init__(self, company: Company, name: str, follower: LateFollower, path: Path) -> None:
        self.follower, self.store = follower, SqliteStore(path)
        sessions, clock = Sessions(follower), HybridClock(company.now_us)
        self.replica = LocalReplica(
            name, follower, Routing(follower), sessions, self.store, clock, Rates(1.0)
        )
        self.coordination = Coordination(name, follower, sessions, company.send, clock, 30.0)

    @property
    def version(self) -> int:
        return schema_of(self.follower.image).version


class Company:
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
        data = self.world.image.schema.serving(USERS)
        assert data is not None
        return await self.nodes[node_id].store.read(data.data_id, token_of(b"ada"), b"ada")

    def versions(self) -> dict[str, int]:
        return {name: node.version for name, node in self.nodes.items()}


@pytest.fixture
async def company(world: World, tmp_path: Path) -> AsyncIterator[Company]:
    create_tables(world)
    company = Company(world)
    for name in NODES:
        follower = LateFollower(world)
        follower.start()
        await follower.wait_for_epoch(world.image.epoch)
        company.nodes[name] = Node(company, name, follower, tmp_path / f"{name}.sqlite")
    yield company
    for node in company.nodes.values():
        await node.store.close()


async def test_a_replica_that_is_behind_catches_up_before_it_serves(company: Company) -> None:
    alter(company.world, add=(column("size", "int"),))
    company.nodes["n1"].follower.read()
    newest = company.nodes["n1"].version
    assert company.versions() == {**dict.fromkeys(NODES, newest - 1), "n1": newest}
    written = await company.write("n1", {"size": 3}, how=Consistency.ALL)
    assert written.table_version == newest
    assert company.versions() == dict.fromkeys(NODES, newest)


async def test_a_replica_that_cannot_catch_up_refuses_and_the_others_suffice(
    company: Company,
) -> None:
    alter(company.world, add=(column("size", "int"),))
    company.nodes["n1"].follower.read()
    company.nodes["n3"].follower.deaf = True
    written = await company.write("n1", {"size": 3})
    assert written.acks == ["n1", "n2"]
    with pytest.raises(RequestRefused) as refused:
        await company.write("n1", {"size": 4}, how=Consistency.ALL)
    assert str(refused.value.details["n3"]).startswith(Code.BEHIND)


async def test_a_node_that_does_not_know_a_column_reads_the_log_before_it_refuses(
    company: Company,
) -> None:
    alter(company.world, add=(column("size", "int"),))
    await company.write("n2", {"size": 3})
    row = await company.read("n3")
    assert row is not None and row["size"] == 3
    with pytest.raises(RequestRefused) as refused:
        await company.write("n1", {"weight": 3})
    assert (refused.value.status, refused.value.code) == (400, "unknown_column")


async def test_a_write_of_a_column_that_replicas_have_dropped_is_refused_and_not_done(
    company: Company,
) -> None:
    """The coordinator learns of it from the replicas, before it writes."""
    alter(company.world, drop=("age",))
    for name in ("n2", "n3"):
        company.nodes[name].follower.read()
    with pytest.raises(RequestRefused) as refused:
        await company.write("n1", {"age": 3})
    assert (refused.value.status, refused.value.code) == (400, "dropped_column")
    assert refused.value.details["table_version"] == company.nodes["n2"].version
    assert [await company.stored(name) for name in NODES] == [None] * 3


async def test_a_node_that_is_behind_shows_the_columns_that_the_replicas_of_a_row_know(
    company: Company,
) -> None:
    alter(company.world, add=(column("size", "int"),))
    company.nodes["n1"].follower.deaf = True
    await company.write("n2", {"size": 3})
    company.nodes["n1"].follower.deaf = False
    assert company.nodes["n1"].version < company.nodes["n2"].version
    assert await company.read("n1") == {
        "name": "ada",
        "age": None,
        "home": None,
        "tags": None,
        "size": 3,
    }


async def test_a_node_that_is_behind_leaves_no_column_out_of_the_changes(company: Company) -> None:
    """A consumer would go on from its cursor, and never see the column."""
    newest = company.world.image.cdc.newest()
    assert newest is not None
    company.start_clock(1000 * newest.since_ms + 60_000_000)
    alter(company.world, parameters={"cdc": "{'enabled': 'true'}"})
    behind = company.nodes["n1"]
    changes = Changes(behind.coordination, company.now_us)
    behind.follower.read()
    behind.follower.deaf = True
    alter(company.world, add=(column("size", "int"),))
    await company.write("n2", {"size": 3})
    company.start_clock(company.now_us() + 60_000_000)
    with pytest.raises(RequestRefused) as refused:
        await changes.read(USERS, b"", "", 100)
    assert (refused.value.status, refused.value.code) == (503, "behind")
    behind.follower.deaf = False
    page = await changes.read(USERS, b"", "", 100)
    assert [change.row for change in page.changes] == [{"name": "ada", "size": 3}]


async def test_an_older_sender_is_served_and_told_of_the_newer_version(company: Company) -> None:
    older = read_of(company.world.image)
    alter(company.world, add=(column("size", "int"),))
    company.nodes["n2"].follower.read()
    await company.write("n2", {"size": 3, "age": 36}, how=Consistency.ALL)
    newer = read_of(company.world.image)
    answers = await company.nodes["n2"].replica.serve([older, newer])
    assert [answer.code for answer in answers] == [Code.OK] * 2
    assert answers[0].cell == answers[1].cell is not None
    version = company.nodes["n2"].version
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


async def test_a_node_that_cannot_read_the_log_serves_by_its_older_columns(
    company: Company,
) -> None:
    await company.write("n1", {"age": 36})
    alter(company.world, drop=("age",), add=(column("size", "int"),))
    for name in ("n2", "n3"):
        company.nodes[name].follower.read()
    company.nodes["n1"].follower.deaf = True
    await company.write("n2", {"size": 3})
    await company.write("n1", {"age": 37}, how=Consistency.ALL)
    assert await company.read("n1") == {"name": "ada", "age": 37, "home": None, "tags": None}
    assert await company.read("n2") == {"name": "ada", "home": None, "tags": None, "size": 3}


async def test_a_client_that_knows_a_newer_version_is_served_by_it_or_refused(
    company: Company,
) -> None:
    alter(company.world, add=(column("size", "int"),))
    newest = company.world.image.epoch
    written = await company.write("n1", {"size": 3}, at_least=newest)
    assert written.table_version == newest == company.nodes["n1"].version
    company.nodes["n1"].follower.deaf = True
    with pytest.raises(RequestRefused) as refused:
        await company.write("n1", {"size": 3}, at_least=newest + 1)
    assert (refused.value.status, refused.value.code) == (503, "behind")


async def test_replicas_with_different_columns_of_a_row_agree_after_a_read(
    company: Company,
) -> None:
    """Each has a write that the others missed."""
    made: dict[str, dict[str, Any]] = {
        "n1": {"age": 1},
        "n2": {"tags": ["x"]},
        "n3": {"home": {"street": "Ring"}},
    }
    for name, row in made.items():
        cell = writes("ada", row)(company.world.image).cell_at(company.now_us())
        op = read_of(company.world.image)
        await company.nodes[name].store.write([StoredCell(op.data_id, op.token, op.key, *cell)])
    merged_row = {"name": "ada", "age": 1, "tags": ["x"], "home": {"street": "Ring"}}
    full = await company.nodes["n1"].coordination.read(USERS, reads("ada"), Consistency.ALL)
    assert row_of(full.image, "ada", full.cell) == merged_row
    assert await company.read("n2") == merged_row


async def test_a_read_writes_a_large_row_back_in_pieces(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is larger than a call between nodes could otherwise not be read."""
    monkeypatch.setattr(coordinate, "PIECE_BYTES", 1)
    row = {"age": 1, "tags": ["x"], "home": {"street": "Ring"}}
    cell = writes("ada", row)(company.world.image).cell_at(company.now_us())
    op = read_of(company.world.image)
    await company.nodes["n1"].store.write([StoredCell(op.data_id, op.token, op.key, *cell)])
    found = await company.nodes["n2"].coordination.read(USERS, reads("ada"), Consistency.ALL)
    assert row_of(found.image, "ada", found.cell) == {"name": "ada", **row}
    written = [op.cell for op in company.sent if isinstance(op, Write)]
    assert {len(content_of(each.value).columns) for each in written} == {1}
    stored = [await company.stored(name) for name in NODES]
    assert stored.count(cell) >= 2


NUMBERS = frozenset({"age", "size", "weight", "height"})


class Drawn:
    """Changes of columns and writes, drawn at random, and the row that they make."""

    def __init__(self, company: Company, seed: int) -> None:
        self._company, self._chance = company, random.Random(seed)
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
        """Read the row through a node. A node that is behind shows the columns that it knows."""
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
async def test_reads_and_writes_while_columns_change_never_fail_and_show_no_dropped_value(
    company: Company, seed: int
) -> None:
    """Nodes read the log at different times. A column that is added again is a new one."""
    drawn = Drawn(company, seed)
    await company.write("n1", {})
    for number in range(30):
        await drawn.step(number)
        await drawn.check()
    for name, node in company.nodes.items():
        node.follower.read()
        await drawn.check(name)
