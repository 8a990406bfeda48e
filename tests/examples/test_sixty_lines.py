"""The sixty-line store, the Valkey agent and the Go agent join, take over ranges under load, and leave."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from examples.sixty_lines.client import Client
from stele.domain import messages
from stele.log.brokers import Brokers
from stele.log.codec import decode_load
from stele.log.flows import FlowReader, flow_topic
from stele.router import RoutingError, http_router
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from stele_harness.demo.load import NO_ANSWER, Answer
from stele_harness.stack.process import Process, Program, spawn
from tests.deployment.load import Load, running
from tests.deployment.processes import HTTP_OK, NO_REDIS, Deployment, following
from tests.examples.go_agent import command_line
from tests.polling import until

STORE = Path("examples/sixty_lines/store.py")
SIXTY_LINES = (sys.executable, str(STORE))
PROGRAMS = {
    "sixty lines": lambda: SIXTY_LINES,
    "valkey": lambda: (sys.executable, "examples/valkey_shards/agent.py"),
    "go": command_line,
}
KEYSPACE = "library"


def test_store_has_at_most_sixty_lines() -> None:
    assert sum(bool(line.strip()) for line in STORE.read_text().splitlines()) <= 60


class Shelves:
    """Processes of an example store, started as a user starts them."""

    def __init__(
        self, kafka: str, cluster: str, folder: Path, argv: Sequence[str] = SIXTY_LINES
    ) -> None:
        self._argv = argv
        self._kafka = kafka
        self._cluster = cluster
        self._folder = folder
        self.running: dict[str, Process] = {}

    async def start(self, name: str) -> str:
        """Start a process and return its address; empty if it exited."""
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
        command = Program(
            name,
            [*self._argv],
            stdout=self._folder / f"{name}.out",
            stderr=self._folder / f"{name}.err",
            env={**os.environ, **settings},
        )
        process = self.running[name] = spawn(command)

        def announced() -> bool:
            return bool(process.stdout_of_this_run()) or process.poll() is not None

        await until(announced, f"{name} to print its address", 60)
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


class RoutedLoad(Load):
    """A load that finds the replicas of each key with a router and sends its requests to them."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.http, str, ("the router",))
        self._client = client

    async def _call(self, method: str, node: str, key: str, value: bytes | None) -> Answer:
        try:
            if value is None:
                found = await self._client.get(key)
                return Answer(HTTP_OK, found) if found else Answer(404, b"")
            await self._client.put(key, value)
        except (RoutingError, aiohttp.ClientError) as error:
            return Answer(NO_ANSWER, repr(error).encode())
        return Answer(HTTP_OK, b"")


def served(cluster: Deployment, name: str) -> int:
    placement = cluster.image.placement_of(KEYSPACE)
    assert placement is not None
    return sum(name in row.reads for row in placement.rows)


@pytest.mark.broker
@pytest.mark.parametrize(
    "program",
    # compiling the agent in Go takes a minute; test_go_agent.py covers it
    [pytest.param(p, marks=[pytest.mark.slow] if p == "go" else []) for p in PROGRAMS],
)
async def test_store_joins_takes_over_ranges_under_load_and_leaves(
    kafka: str, topics: str, tmp_path: Path, program: str
) -> None:
    argv = await asyncio.to_thread(PROGRAMS[program])
    shelves, loads = Shelves(kafka, topics, tmp_path, argv), list[messages.Load]()
    async with following(kafka, topics, NO_REDIS, tmp_path) as cluster:
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
                await cluster.normal(name)
            await cluster.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 3})
            async with http_router([cluster.log_url]) as router:
                await router.wait_for_epoch(cluster.image.epoch)
                async with running(RoutedLoad(Client(router, cluster.http, KEYSPACE))) as load:
                    await load.go_on(300)
                    await shelves.start("s4")
                    await cluster.normal("s4")
                    assert served(cluster, "s4") and shelves.rows("s4")
                    await load.go_on(100)
                    await cluster.command(type="leave", node_id="s1")
                    await until(lambda: cluster.node_state("s1") == "left", "s1 to leave", 60)
                    await cluster.rest()
                    await load.go_on(100)
                await load.is_read(load.via)
                failed = load.account.writes_unknown + load.account.writes_refused
                assert load.count > 10 * failed
            assert not served(cluster, "s1")
            assert {each.node_id for each in loads} == {"s1", "s2", "s3", "s4"}
            assert all(each.disk_total_bytes for each in loads)
        finally:
            await reader.close()
            await shelves.stop()


@pytest.mark.broker
async def test_store_does_not_start_if_its_data_file_is_missing(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    shelves = Shelves(kafka, topics, tmp_path)
    try:
        assert await shelves.start("s1")
        await shelves.stop()
        (tmp_path / "s1" / "store").unlink()
        await shelves.start("s1")
        process = shelves.running["s1"]
        await until(lambda: process.poll() is not None, "s1 to exit")
        assert process.poll() == EXIT_BAD_CONFIGURATION
        assert "store is missing" in process.tail()
    finally:
        await shelves.stop()
