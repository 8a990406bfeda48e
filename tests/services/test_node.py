"""Three node processes with a real broker, metadata log and coordinator: kills, fences, a join, a leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stele.domain.image import Image
from stele.domain.ring.tokens import token_of
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.node.cells import Cell
from stele.node.settings import MAX_KEY_BYTES, MAX_VALUE_BYTES
from stele.node.wire import (
    BATCH_PATH,
    Answer,
    AnyOp,
    Code,
    Read,
    ReadMode,
    Write,
    decode_answers,
    encode,
)
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from tests.services.processes import Service, Start, services
from tests.services.world import settle, until

pytestmark = pytest.mark.broker

KEYSPACE = "library"
HTTP_OK = 200
CLIENTS = 4
CLIENT_PAUSE_S = 0.005
TIMEOUT = aiohttp.ClientTimeout(total=10)


class Cluster:
    """Three normal nodes and a keyspace at replication factor 3. ``image`` follows the log."""

    def __init__(self, start: Start, folder: Path, http: aiohttp.ClientSession) -> None:
        self.nodes: dict[str, Service] = {}
        self.follower: LogFollower
        self.log_url = ""
        self._start = start
        self.folder = folder
        self._http = http

    @property
    def image(self) -> Image:
        return self.follower.image

    async def start_node(self, node_id: str, **settings: object) -> Service:
        self.nodes[node_id] = await self._start(
            "node",
            node_id,
            node_id=node_id,
            rack=f"r{node_id[1:]}",
            data_dir=self.folder / node_id,
            num_tokens=4,
            **settings,
        )
        return self.nodes[node_id]

    async def command(self, **command: object) -> dict[str, Any]:
        body = {"request_id": new_request_id(), "command": command}
        async with self._http.post(f"{self.log_url}/v1/commands", json=body) as answer:
            outcome: dict[str, Any] = await answer.json()
        assert outcome["applied"], outcome
        return outcome

    async def put(self, node_id: str, key: str, value: bytes) -> tuple[int, dict[str, Any]]:
        url = f"{self.nodes[node_id].url}/v1/data/{KEYSPACE}/{key}"
        async with self._http.put(url, data=value) as answer:
            return answer.status, await answer.json()

    async def get(self, node_id: str, key: str) -> tuple[int, bytes]:
        url = f"{self.nodes[node_id].url}/v1/data/{KEYSPACE}/{key}"
        async with self._http.get(url) as answer:
            return answer.status, await answer.read()

    def keyspace_id(self, name: str = KEYSPACE) -> str:
        keyspace = self.image.schema.named(name)
        assert keyspace is not None
        return keyspace.keyspace_id

    async def replica(self, node_id: str, *ops: AnyOp) -> list[Answer]:
        """What a node answers to other nodes."""
        url = self.nodes[node_id].url + BATCH_PATH
        async with self._http.post(url, data=encode(ops)) as answer:
            return decode_answers(await answer.read())

    async def replica_statuses(self, node_id: str) -> set[int]:
        """HTTP statuses of a node's replica until the process has ended; 0 is no connection."""
        service, found = self.nodes[node_id], set[int]()
        while service.process.poll() is None:
            try:
                async with self._http.post(service.url + BATCH_PATH, data=encode([])) as answer:
                    found.add(answer.status)
            except aiohttp.ClientError:
                found.add(0)
            await asyncio.sleep(0.01)
        return found

    async def normal(self, node_id: str) -> None:
        def is_normal() -> bool:
            node = self.image.node(node_id)
            return node is not None and node.state == "normal" and settle(self.image)

        await until(is_normal, f"{node_id} to be normal", 60)


@pytest.fixture
async def live(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        start = await stack.enter_async_context(
            services(kafka, topics, "redis://127.0.0.1:1/0", tmp_path)
        )
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=TIMEOUT))
        log = KafkaLog(kafka, flow_topic(topics, "epochs"))
        stack.push_async_callback(log.close)
        cluster = Cluster(start, tmp_path, http)
        cluster.follower = LogFollower(log)
        cluster.follower.start()
        cluster.log_url = (await start("metadata_log")).url
        await start("coordinator", resend_s=0.5)
        await asyncio.gather(*(cluster.start_node(node_id) for node_id in ("n1", "n2", "n3")))
        for node_id in ("n1", "n2", "n3"):
            await cluster.normal(node_id)
        await cluster.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 3})
        yield cluster


class Load:
    """Clients that write, each to keys of its own, every key twice, and remember what was acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.via = ["n1", "n2", "n3"]
        self.acknowledged: dict[str, bytes] = {}
        self.count = 0
        self._cluster = cluster
        self._running = True

    async def client(self, name: int) -> None:
        number = 0
        while self._running:
            number += 1
            key, value = f"c{name}/{number // 2}", os.urandom(1000)
            try:
                node_id = self.via[number % len(self.via)]
                status, _ = await self._cluster.put(node_id, key, value)
            except (aiohttp.ClientError, TimeoutError):
                status = 0
            if status == HTTP_OK:
                self.acknowledged[key] = value
                self.count += 1
            else:  # it may have taken effect or not: nothing can be said about the key any more
                self.acknowledged.pop(key, None)
                number += 2
            await asyncio.sleep(CLIENT_PAUSE_S)

    def stop(self) -> None:
        self._running = False

    async def go_on(self, writes: int) -> None:
        goal = self.count + writes
        await until(lambda: self.count >= goal, f"{writes} more acknowledged writes", 60)

    async def is_read(self, via: list[str]) -> None:
        """All that was acknowledged is found through these nodes."""
        keys = iter([*self.acknowledged.items()])

        async def reader(number: int) -> None:
            for key, value in keys:
                number += 1
                node_id = via[number % len(via)]
                assert await self._cluster.get(node_id, key) == (HTTP_OK, value), (node_id, key)

        await asyncio.gather(*(reader(number) for number in range(CLIENTS)))


@asynccontextmanager
async def load(cluster: Cluster) -> AsyncIterator[Load]:
    load = Load(cluster)
    clients = [asyncio.create_task(load.client(name)) for name in range(CLIENTS)]
    try:
        yield load
    finally:
        load.stop()
        await asyncio.gather(*clients)


async def test_values_survive_a_killed_node_and_are_read_through_any(live: Cluster) -> None:
    async with load(live) as clients:
        await clients.go_on(100)
        clients.via = ["n1", "n2"]
        live.nodes["n3"].kill()
        await clients.go_on(100)
    await clients.is_read(["n1", "n2"])

    await live.nodes["n3"].start()
    await live.nodes["n3"].until("/healthz", lambda h: h["ok"], "n3 to be well")
    node = await live.nodes["n3"].get("/v1/node")
    assert node["state"] == "normal"
    url = live.nodes["n3"].url
    await until(lambda: _address(live, "n3") == url, "n3's new address in the log")
    live.nodes["n1"].kill()
    await clients.is_read(["n3", "n2"])


async def test_a_node_that_lost_its_disk_is_refused_and_serves_nothing(live: Cluster) -> None:
    """It would answer quorum reads with less than it had acknowledged."""
    assert (await live.put("n1", "k", b"precious"))[0] == HTTP_OK
    node, folder = live.nodes["n3"], live.folder / "n3"
    host_id = (await node.get("/v1/node"))["host_id"]
    row = live.image.node("n3")
    assert row is not None and row.host_id == host_id != ""

    node.kill()
    kept = folder.rename(folder.with_name("n3-kept"))
    with contextlib.suppress(AssertionError):  # it may have ended before its address was heard
        await node.start()
    served = await live.replica_statuses("n3")
    assert HTTP_OK not in served, served
    await until(lambda: node.process.poll() is not None, "the end of n3")
    assert node.process.poll() == EXIT_BAD_CONFIGURATION
    assert "host_id_mismatch" in node.process.tail()

    shutil.rmtree(folder)
    kept.rename(folder)
    (folder / "store.sqlite").rename(folder / "elsewhere")
    with pytest.raises(AssertionError, match=r"store.sqlite is missing; .* restore"):
        await node.start()
    assert node.process.poll() == EXIT_BAD_CONFIGURATION

    (folder / "elsewhere").rename(folder / "store.sqlite")
    await node.start()
    live.nodes["n2"].kill()
    await node.until("/healthz", lambda h: h["ok"], "n3 with its own disk to be well")
    url = node.url
    await until(lambda: _address(live, "n3") == url, "n3's new address in the log")
    assert await live.get("n3", "k") == (HTTP_OK, b"precious")


async def test_a_stale_version_is_refused_by_every_replica_after_its_fence(
    live: Cluster,
) -> None:
    status, written = await live.put("n1", "k", b"v")
    assert status == 200
    stale = written["version"]
    await live.start_node("n4")
    await live.normal("n4")
    fields: dict[str, Any] = {
        "version": stale,
        "epoch": written["epoch"],
        "keyspace_id": live.keyspace_id(),
        "token": token_of(b"k"),
        "key": b"k",
    }
    ops = [
        Write(**fields, cell=Cell(written["timestamp"] + 1, False, b"stale")),
        Read(**fields, mode=ReadMode.CELL),
    ]
    for node_id in live.nodes:
        await live.nodes[node_id].until(
            "/v1/node", lambda n: n["epoch"] >= live.image.epoch, "the log's end"
        )
        answers = await live.replica(node_id, *ops)
        assert {answer.code for answer in answers} == {Code.STALE_VERSION}
    assert await live.get("n4", "k") == (200, b"v")


async def test_a_joining_node_gets_every_acknowledged_write_and_a_leaving_one_gives_them(
    live: Cluster,
) -> None:
    async with load(live) as clients:
        await clients.go_on(200)
        await live.start_node("n4")
        await live.normal("n4")
        clients.via = ["n2", "n3", "n4"]
        await clients.go_on(50)
        await live.command(type="leave", node_id="n1")
        await until(lambda: _state(live, "n1") == "left", "n1 to have left", 60)
        await until(lambda: settle(live.image), "the leave to be done", 60)
        await clients.go_on(20)
    status, body = await live.put("n1", "k", b"v")
    assert (status, body["code"]) == (503, "node_left")
    assert (await live.nodes["n1"].get("/healthz"))["ok"]
    live.nodes["n2"].kill()
    await clients.is_read(["n3", "n4"])


async def test_a_node_that_is_not_wanted_ends_with_the_reason(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    async with services(kafka, topics, "redis://127.0.0.1:1/0", tmp_path) as start:
        log = await start("metadata_log")
        first = await start("node", "n1", data_dir=tmp_path / "n1")
        await first.until("/v1/node", lambda n: n["state"] == "none", "n1 to be known")
        refused = await start("node", "n9", data_dir=tmp_path / "n9", address=first.url)
        await until(lambda: refused.process.poll() is not None, "the end of n9")
        assert refused.process.poll() == EXIT_BAD_CONFIGURATION
        assert f"Address {first.url} belongs to node 'n1'" in refused.process.tail()
        assert (await log.get("/healthz"))["ok"]


async def test_large_values_are_kept_and_too_large_ones_refused(live: Cluster) -> None:
    value = os.urandom(8 * 1024 * 1024)
    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(live.put("n1", f"large/{number}", value))
    for node_id in live.nodes:
        assert await live.get(node_id, "large/2") == (HTTP_OK, value)
    status, body = await live.put("n1", "larger", bytes(MAX_VALUE_BYTES + 1))
    assert (status, body["code"]) == (413, "body_too_large")
    status, body = await live.put("n1", "k" * (MAX_KEY_BYTES + 1), b"")
    assert (status, body["code"]) == (400, "bad_key")


def _state(cluster: Cluster, node_id: str) -> str:
    node = cluster.image.node(node_id)
    return "" if node is None else node.state


def _address(cluster: Cluster, node_id: str) -> str:
    node = cluster.image.node(node_id)
    return "" if node is None else node.address
