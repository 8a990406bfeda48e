"""Stores of sixty lines, around Valkey, in Go: each joins, takes over ranges under load, and leaves."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from examples.sixty_lines.client import Client
from stele.domain.messages import Load
from stele.log.brokers import Brokers
from stele.log.codec import decode_load
from stele.log.flows import FlowReader, flow_topic
from stele.router import RoutingError, http_router
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from stele.stack.process import Command, Process, spawn
from tests.examples.go_agent import command_line
from tests.services.nodes import Cluster, cluster_without_nodes, state_of
from tests.services.world import settle, until

STORE = Path("examples/sixty_lines/store.py")
SIXTY_LINES = (sys.executable, str(STORE))
PROGRAMS = {
    "sixty lines": lambda: SIXTY_LINES,
    "valkey": lambda: (sys.executable, "examples/valkey_shards/agent.py"),
    "go": command_line,
}
KEYSPACE = "library"
CLIENTS = 3
NO_REDIS = "redis://127.0.0.1:1/0"


def test_it_has_sixty_lines() -> None:
    assert sum(bool(line.strip()) for line in STORE.read_text().splitlines()) <= 60


class Shelves:
    """Processes of the store, as a newcomer starts them."""

    def __init__(
        self, kafka: str, cluster: str, folder: Path, argv: Sequence[str] = SIXTY_LINES
    ) -> None:
        self._argv = argv
        self._kafka = kafka
        self._cluster = cluster
        self._folder = folder
        self.running: dict[str, Process] = {}

    async def start(self, name: str) -> str:
        """Its address."""
        settings = {
            "STELE_CLUSTER": self._cluster,
            "STELE_KAFKA_BOOTSTRAP": self._kafka,
            "STELE_NODE_ID": name,
            "STELE_INSTANCE_ID": name,
            "STELE_RACK": f"r{name[1:]}",
            "STELE_NUM_TOKENS": "4",
            "STELE_DATA_DIR": str(self._folder / name),
            "STELE_LOAD_INTERVAL_S": "0.2",
        }
        command = Command(
            name,
            [*self._argv],
            stdout=self._folder / f"{name}.out",
            stderr=self._folder / f"{name}.err",
            env={**os.environ, **settings},
        )
        process = self.running[name] = spawn(command)

        def announced() -> bool:
            return bool(process.stdout_of_this_run()) or process.poll() is not None

        await until(announced, f"{name} to say where it listens", 60)
        line = process.stdout_of_this_run().partition("\n")[0]
        return str(json.loads(line)["http"]) if line else ""

    def rows(self, name: str) -> int:
        if self._argv != SIXTY_LINES:
            return -1
        with sqlite3.connect(self._folder / name / "store") as store:
            (count,) = store.execute("select count(*) from rows").fetchone()
        return int(count)

    async def stop(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(p.stop) for p in self.running.values()))


class Clients:
    """Clients that write each to keys of their own, and read back what was acknowledged."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.acknowledged: dict[str, bytes] = {}
        self.failed = 0
        self.count = 0
        self._running = True

    async def write(self, name: int) -> None:
        number = 0
        while self._running:
            number += 1
            key, value = f"c{name}/{number % 150}", os.urandom(100)
            self.acknowledged.pop(key, None)
            try:
                await self.client.put(key, value)
            except (RoutingError, aiohttp.ClientError):
                self.failed += 1
                continue
            self.acknowledged[key] = value
            self.count += 1
            if number % 3 == 0:
                assert await self.client.get(key) == value
            await asyncio.sleep(0.005)

    async def go_on(self, count: int) -> None:
        goal = self.count + count
        await until(lambda: self.count >= goal, f"{count} more writes", 60)

    def stop(self) -> None:
        self._running = False

    async def is_read(self) -> None:
        for key, value in self.acknowledged.items():
            assert await self.client.get(key) == value, key


@asynccontextmanager
async def loaded(client: Client) -> AsyncIterator[Clients]:
    load = Clients(client)
    tasks = [asyncio.create_task(load.write(name)) for name in range(CLIENTS)]
    try:
        yield load
    finally:
        load.stop()
        await asyncio.gather(*tasks)


async def is_normal(cluster: Cluster, name: str) -> None:
    await until(
        lambda: state_of(cluster, name) == "normal" and settle(cluster.image),
        f"{name} to be normal",
        60,
    )


def served(cluster: Cluster, name: str) -> int:
    placement = cluster.image.placement_of(KEYSPACE)
    assert placement is not None
    return sum(name in row.reads for row in placement.rows)


@pytest.mark.broker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_it_joins_takes_over_ranges_under_load_and_leaves(
    kafka: str, topics: str, tmp_path: Path, program: str
) -> None:
    argv = await asyncio.to_thread(PROGRAMS[program])
    shelves, loads = Shelves(kafka, topics, tmp_path, argv), list[Load]()
    async with cluster_without_nodes(kafka, topics, NO_REDIS, tmp_path) as cluster:
        cluster.log_url = (await cluster.start("metadata_log")).url
        cluster.coordinator = await cluster.start("coordinator", resend_s=0.5)
        reader = FlowReader(
            Brokers(kafka),
            flow_topic(topics, "load"),
            lambda value: loads.append(decode_load(value)),
            lambda error: None,
        )
        await reader.start()
        try:
            await asyncio.gather(*(shelves.start(name) for name in ("s1", "s2", "s3")))
            for name in ("s1", "s2", "s3"):
                await is_normal(cluster, name)
            await cluster.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 3})
            async with http_router([cluster.log_url]) as router:
                await router.wait_for_epoch(cluster.image.epoch)
                async with loaded(Client(router, cluster.http, KEYSPACE)) as load:
                    await load.go_on(300)
                    await shelves.start("s4")
                    await is_normal(cluster, "s4")
                    assert served(cluster, "s4") and shelves.rows("s4")
                    await load.go_on(100)
                    await cluster.command(type="leave", node_id="s1")
                    await until(
                        lambda: state_of(cluster, "s1") == "left" and settle(cluster.image),
                        "s1 to have left",
                        60,
                    )
                    await load.go_on(100)
                await load.is_read()
                assert load.count > 10 * load.failed
            assert not served(cluster, "s1")
            assert {each.node_id for each in loads} == {"s1", "s2", "s3", "s4"}
            assert all(each.disk_total_bytes for each in loads)
        finally:
            await reader.close()
            await shelves.stop()


@pytest.mark.broker
async def test_a_store_that_was_emptied_is_not_taken_for_the_one_that_was(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    shelves = Shelves(kafka, topics, tmp_path)
    try:
        assert await shelves.start("s1")
        await shelves.stop()
        (tmp_path / "s1" / "store").unlink()
        await shelves.start("s1")
        process = shelves.running["s1"]
        await until(lambda: process.poll() is not None, "its end")
        assert process.poll() == EXIT_BAD_CONFIGURATION
        assert "store is missing" in process.tail()
    finally:
        await shelves.stop()
