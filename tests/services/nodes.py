"""A cluster of node processes with a real broker, metadata log and coordinator, and clients of its data."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from stele.domain.image import Image
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.node.wire import BATCH_PATH, Answer, AnyOp, decode_answers, encode
from stele.runtime.http_client import connector
from stele.runtime.request_ids import new_request_id
from tests.services.processes import Service, Start, services
from tests.services.world import settle, until

KEYSPACE = "library"
HTTP_OK = 200
CLIENTS = 4
CLIENT_PAUSE_S = 0.005
TIMEOUT = aiohttp.ClientTimeout(total=10)


class Cluster:
    """Three normal nodes and a keyspace at replication factor 3. ``image`` follows the log."""

    def __init__(self, start: Start, folder: Path, http: aiohttp.ClientSession) -> None:
        self.nodes: dict[str, Service] = {}
        self.coordinator: Service
        self.follower: LogFollower
        self.log_url = ""
        self.start = start
        self.folder = folder
        self.http = http

    @property
    def image(self) -> Image:
        return self.follower.image

    async def start_node(self, node_id: str, **settings: object) -> Service:
        self.nodes[node_id] = await self.start(
            "node",
            node_id,
            node_id=node_id,
            **{
                "rack": f"r{node_id[1:]}",
                "data_dir": self.folder / node_id,
                "num_tokens": 4,
                **settings,
            },
        )
        return self.nodes[node_id]

    async def command(self, **command: object) -> dict[str, Any]:
        """Apply a command; when this is over ``image`` shows it."""
        body = {"request_id": new_request_id(), "command": command}
        async with self.http.post(f"{self.log_url}/v1/commands", json=body) as answer:
            outcome: dict[str, Any] = await answer.json()
        assert outcome["applied"], outcome
        await until(lambda: self.image.epoch >= outcome["epoch"], "the command's epoch")
        return outcome

    async def catch_up(self) -> Image:
        """``image``, with all that the log had acknowledged when this was asked."""
        asked = {"level": "barrier"}
        async with self.http.get(f"{self.log_url}/v1/topology", params=asked) as answer:
            epoch = (await answer.json())["epoch"]
        await until(lambda: self.image.epoch >= epoch, f"the log's epoch {epoch}")
        return self.image

    async def put(self, node_id: str, key: str, value: bytes) -> tuple[int, dict[str, Any]]:
        url = f"{self.nodes[node_id].url}/v1/data/{KEYSPACE}/{key}"
        async with self.http.put(url, data=value) as answer:
            return answer.status, await answer.json()

    async def get(self, node_id: str, key: str) -> tuple[int, bytes]:
        url = f"{self.nodes[node_id].url}/v1/data/{KEYSPACE}/{key}"
        async with self.http.get(url) as answer:
            return answer.status, await answer.read()

    def keyspace_id(self, name: str = KEYSPACE) -> str:
        keyspace = self.image.schema.named(name)
        assert keyspace is not None
        return keyspace.keyspace_id

    async def keys(self, node_id: str) -> int:
        """The rows that a node stores, counted after this was asked; a node keeps a count for a second."""
        asked_s = sent_s = time.monotonic()
        view = await self.nodes[node_id].get("/v1/node")
        while sent_s - view["counted_ago_s"] < asked_s:
            await asyncio.sleep(0.05)
            sent_s = time.monotonic()
            view = await self.nodes[node_id].get("/v1/node")
        return int(view["keys"])

    async def replica(self, node_id: str, *ops: AnyOp) -> list[Answer]:
        """What a node answers to other nodes."""
        url = self.nodes[node_id].url + BATCH_PATH
        async with self.http.post(url, data=encode(ops)) as answer:
            return decode_answers(await answer.read())

    async def replica_statuses(self, node_id: str) -> set[int]:
        """HTTP statuses of a node's replica until the process has ended; 0 is no connection."""
        service, found = self.nodes[node_id], set[int]()
        while service.process.poll() is None:
            try:
                async with self.http.post(service.url + BATCH_PATH, data=encode([])) as answer:
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

    async def serve_keyspace(self, *names: str) -> None:
        """Wait for these nodes, then create the keyspace."""
        for node_id in names:
            await self.normal(node_id)
        await self.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 3})


@asynccontextmanager
async def cluster_without_nodes(
    kafka: str, topics: str, redis_url: str, folder: Path, **environment: str
) -> AsyncIterator[Cluster]:
    """What starts its services, with these variables, and follows their log. Nothing of it runs yet."""
    async with (
        services(kafka, topics, redis_url, folder, **environment) as start,
        aiohttp.ClientSession(connector=connector(), timeout=TIMEOUT) as http,
    ):
        log = KafkaLog(Brokers(kafka), flow_topic(topics, "epochs"))
        cluster = Cluster(start, folder, http)
        cluster.follower = LogFollower(log)
        cluster.follower.start()
        try:
            yield cluster
        finally:
            await log.close()


@asynccontextmanager
async def cluster_of(
    kafka: str,
    topics: str,
    folder: Path,
    *names: str,
    node: Any = MappingProxyType({}),
    **settings: object,
) -> AsyncIterator[Cluster]:
    """Normal nodes of these names and a keyspace at replication factor 3.

    Settings are the coordinator's, those of ``node`` the nodes'.
    """
    async with cluster_without_nodes(kafka, topics, "redis://127.0.0.1:1/0", folder) as cluster:
        cluster.log_url = (await cluster.start("metadata_log")).url
        cluster.coordinator = await cluster.start("coordinator", resend_s=0.5, **settings)
        await asyncio.gather(*(cluster.start_node(name, **node) for name in names))
        await cluster.serve_keyspace(*names)
        yield cluster


class Load:
    """Clients that write, each to keys of its own, every key twice, and remember what was acknowledged.

    What was acknowledged is read at once through the next node; ``reads`` counts those that answered.
    """

    def __init__(self, cluster: Cluster, pause_s: float = CLIENT_PAUSE_S) -> None:
        self.via = ["n1", "n2", "n3"]
        self.acknowledged: dict[str, bytes] = {}
        self.count = 0
        self.reads = 0
        self._cluster = cluster
        self._pause_s = pause_s
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
                await self._read_back(key, value, self.via[(number + 1) % len(self.via)])
            else:  # it may have taken effect or not: nothing can be said about the key any more
                self.acknowledged.pop(key, None)
                number += 2
            await asyncio.sleep(self._pause_s)

    async def _read_back(self, key: str, value: bytes, node_id: str) -> None:
        try:
            status, found = await self._cluster.get(node_id, key)
        except (aiohttp.ClientError, TimeoutError):
            return
        assert status not in (HTTP_OK, 404) or (status, found) == (HTTP_OK, value), (node_id, key)
        self.reads += status == HTTP_OK

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
async def load(cluster: Cluster, pause_s: float = CLIENT_PAUSE_S) -> AsyncIterator[Load]:
    load = Load(cluster, pause_s)
    clients = [asyncio.create_task(load.client(name)) for name in range(CLIENTS)]
    try:
        yield load
    finally:
        load.stop()
        await asyncio.gather(*clients)


async def is_refused(starting: Awaitable[Service], words: str) -> None:
    """The process ends and says why, at once or a moment after it announced itself."""
    try:
        service = await starting
    except AssertionError as error:
        assert words in str(error), error
        return
    await until(lambda: service.process.poll() is not None, "the process to end", 40)
    assert words in service.process.tail(), service.process.tail()


def state_of(cluster: Cluster, node_id: str) -> str:
    node = cluster.image.node(node_id)
    return "" if node is None else node.state


def address_of(cluster: Cluster, node_id: str) -> str:
    node = cluster.image.node(node_id)
    return "" if node is None else node.address
