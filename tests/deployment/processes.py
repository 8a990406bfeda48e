"""A cluster as processes on a real broker: nodes, a metadata-log, a coordinator and catch-up replicas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import aiohttp

from stele.domain.image import Image
from stele.domain.names import RequestStatus
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.routed import REPLICA
from stele.log.brokers import Brokers
from stele.log.ends import Prober
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.node.wire import BATCH_PATH, Answer, AnyOp, decode_answers, encode
from stele.runtime.request_ids import new_request_id
from stele.runtime.transport import connector
from stele_harness.stack.ports import free_port
from stele_harness.stack.process import Program
from tests import forked
from tests.deployment.load import PAUSE_S, Load
from tests.deployment.process import Service, Start, services
from tests.polling import until
from tests.services.world import settle

KEYSPACE = "library"
HTTP_OK = 200
REST_S = 240.0
NO_REDIS = "redis://127.0.0.1:1/0"
LOOK_S = 0.1
CLI_S = 240
DELETED_S = 240.0
TIMEOUT = aiohttp.ClientTimeout(total=10)


class Deployment:
    """The service processes of one cluster. Catch-up replicas keep their ports over restarts.

    ``image`` and ``http`` are there in the deployments of ``following``.
    """

    def __init__(self, start: Start, folder: Path, kafka: str, cluster: str) -> None:
        self.start = start
        self.folder = folder
        self.kafka, self.cluster = kafka, cluster
        self.nodes: dict[str, Service] = {}
        self.coordinator: Service
        self.follower: LogFollower
        self.http: aiohttp.ClientSession
        self.log_url = ""
        self.ports = [free_port() for _ in range(4)]
        self.urls = ",".join(f"http://127.0.0.1:{port}" for port in self.ports[:3])
        self.running: list[Service] = []
        """The metadata-log and the catch-up replicas, which ``supervised`` starts again."""

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
        """Apply a command; return its outcome once ``image`` has its epoch."""
        body = {"request_id": new_request_id(), "command": command}
        async with self.http.post(f"{self.log_url}/v1/commands", json=body) as answer:
            outcome: dict[str, Any] = await answer.json()
        assert outcome["applied"], outcome
        await until(lambda: self.image.epoch >= outcome["epoch"], "the command's epoch")
        return outcome

    async def newest_image(self) -> Image:
        """``image`` with all that the log had acknowledged when this was called."""
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
        """Number of rows that a node stores, counted after this call; a node keeps a count for a second."""
        asked_s = sent_s = time.monotonic()
        view = await self.nodes[node_id].get("/v1/node")
        while sent_s - view["counted_ago_s"] < asked_s:
            await asyncio.sleep(0.05)
            sent_s = time.monotonic()
            view = await self.nodes[node_id].get("/v1/node")
        return int(view["keys"])

    async def replica(self, node_id: str, *ops: AnyOp) -> list[Answer]:
        """The answers of a node to another node."""
        url = self.nodes[node_id].url + BATCH_PATH
        async with self.http.post(url, data=encode(ops), headers={REPLICA: node_id}) as answer:
            return decode_answers(await answer.read())

    async def replica_statuses(self, node_id: str) -> set[int]:
        """HTTP statuses of the replica of a node until its process ends; 0 is no connection."""
        service, found = self.nodes[node_id], set[int]()
        while service.process.poll() is None:
            try:
                async with self.http.post(
                    service.url + BATCH_PATH, data=encode([]), headers={REPLICA: node_id}
                ) as answer:
                    found.add(answer.status)
            except aiohttp.ClientError:
                found.add(0)
            await asyncio.sleep(0.01)
        return found

    async def normal(self, node_id: str) -> None:
        """Wait until a node is normal and the deployment at rest."""
        await until(
            lambda: self.node_state(node_id) == "normal" and settle(self.image),
            f"{node_id} to be normal",
            60,
        )

    def node_state(self, node_id: str) -> str:
        node = self.image.node(node_id)
        return "" if node is None else node.state

    def node_address(self, node_id: str) -> str:
        """Address by the log; empty for an unknown node."""
        node = self.image.node(node_id)
        return "" if node is None else node.address

    def rows(self, name: str = KEYSPACE) -> list[RangeReplicas]:
        """The ranges of a keyspace or table with their replicas."""
        placement = self.image.placement_of(name)
        assert placement is not None
        return [*placement.rows]

    async def start_balancer(self) -> Service:
        return await self.start(
            "tablet_balancer", "balancer", balance_interval_s=0.2, heartbeat_timeout_s=3
        )

    async def rest(self) -> None:
        """Wait until no operation is under way and nothing is to be cleaned up."""
        await until(lambda: settle(self.image), "rest", REST_S)

    async def ended(self, request_id: str) -> str:
        """The final status of a request, once the deployment is at rest."""

        def is_over() -> bool:
            request = self.image.request(request_id)
            return request is not None and request.finished_epoch > 0 and settle(self.image)

        await until(is_over, f"the end of {request_id}", REST_S)
        request = self.image.request(request_id)
        assert request is not None
        return request.status

    async def done(self, **command: object) -> None:
        """Apply a command, and wait until its request is done and the deployment at rest."""
        outcome = await self.command(**command)
        assert await self.ended(outcome["request_id"]) == RequestStatus.DONE, command

    def load(self, via: Sequence[str] = ("n1", "n2", "n3"), pause_s: float = PAUSE_S) -> Load:
        """A load through these nodes; see ``running`` and ``stopped``."""
        return Load(self.http, lambda name: self.nodes[name].url, via, pause_s)

    async def serve_keyspace(self, *names: str) -> None:
        """Wait until these nodes are normal, then create the keyspace."""
        for node_id in names:
            await self.normal(node_id)
        await self.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 3})

    async def metadata_log(
        self, instance: str = "ml-1", *, waits: bool = True, **more: object
    ) -> Service:
        """Start a metadata-log, which does not wait for replicas; with ``waits``, return once it is healthy."""
        settings = {"replicas_patience_s": 0, **more}
        log = await self.start(
            "metadata_log", instance, catch_up_urls=self.urls, http_port=self.ports[3], **settings
        )
        if waits:
            await log.until("/healthz", lambda answer: answer["ok"], "metadata-log is well")
        self.running.append(log)
        return log

    async def catch_up(self, number: int, **more: object) -> Service:
        replica = await self.start(
            "catch_up",
            f"cu-{number}",
            catch_up_urls=self.urls,
            http_port=self.ports[number - 1],
            data_dir=self.folder_of(number),
            rack=f"r{number}",
            snapshots_kept=3,
            **more,
        )
        self.running.append(replica)
        return replica

    def folder_of(self, number: int) -> Path:
        return self.folder / f"archive-{number}"

    def without(self, *numbers: int) -> tuple[str, ...]:
        """The options of a recovery that does without these replicas."""
        urls = self.urls.split(",")
        return tuple(each for number in numbers for each in ("--without", urls[number - 1]))

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Restart each process of ``running`` that ends inside the block, as a supervisor does."""
        starting = dict[Service, asyncio.Task[None]]()

        async def start(service: Service) -> None:
            try:
                with contextlib.suppress(AssertionError):
                    await service.start()
            finally:
                del starting[service]

        async def supervise() -> None:
            while True:
                for service in self.running:
                    # Each in a task: a replica that starts again may wait for another one that does.
                    if service not in starting and service.process.poll() is not None:
                        starting[service] = asyncio.create_task(start(service))
                await asyncio.sleep(LOOK_S)

        task = asyncio.create_task(supervise())
        try:
            yield
        finally:
            for each in (task, *starting.values()):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    async def begins_behind(self, offset: int) -> int:
        """The first offset of the topic, once it is greater than ``offset``."""
        prober, topic = Prober(Brokers(self.kafka)), flow_topic(self.cluster, "epochs")
        try:
            async with asyncio.timeout(DELETED_S):
                while (begin := (await asyncio.to_thread(prober.ends, topic)).begin) <= offset:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        finally:
            prober.close()
        return begin

    async def stele(self, *arguments: str, fails: bool = False) -> Any:
        """Output of ``stele``, decoded if the arguments ask for JSON; its error output if it must fail."""
        env = {
            **os.environ,
            "STELE_URL": f"http://127.0.0.1:{self.ports[3]}",
            "STELE_METADATA_LOG_URLS": f"http://127.0.0.1:{self.ports[3]}",
            "STELE_CATCH_UP_URLS": self.urls,
            "STELE_KAFKA_BOOTSTRAP": self.kafka,
            "STELE_CLUSTER": self.cluster,
            "COLUMNS": "200",
        }
        argv = [sys.executable, "-m", "stele.cli", *arguments]
        with TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            command = Program("stele", argv, folder / "out", folder / "err", env)
            process = await asyncio.to_thread(forked.start, command)
            code = await asyncio.to_thread(process.wait, CLI_S)
            process.kill()
            out, err = command.stdout.read_text(), command.stderr.read_text()
        assert code is not None, f"{arguments} did not end within {CLI_S} s: {out}\n{err}"
        assert (code != 0) is fails, f"{out}\n{err}"
        if fails:
            return err
        return json.loads(out) if "--json" in arguments else out


@asynccontextmanager
async def following(
    kafka: str, topics: str, redis_url: str, folder: Path, **environment: str
) -> AsyncIterator[Deployment]:
    """A deployment without any process so far. Its processes get these variables."""
    async with (
        services(kafka, topics, redis_url, folder, **environment) as start,
        aiohttp.ClientSession(connector=connector(), timeout=TIMEOUT) as http,
    ):
        log = KafkaLog(Brokers(kafka), flow_topic(topics, "epochs"))
        deployment = Deployment(start, folder, kafka, topics)
        deployment.http = http
        deployment.follower = LogFollower(log)
        deployment.follower.start()
        try:
            yield deployment
        finally:
            await log.close()


@asynccontextmanager
async def nodes_of(
    kafka: str,
    topics: str,
    folder: Path,
    *names: str,
    node: Any = MappingProxyType({}),
    **settings: object,
) -> AsyncIterator[Deployment]:
    """Normal nodes of these names and a keyspace at replication factor 3.

    ``settings`` are those of the coordinator, ``node`` those of each node.
    """
    async with following(kafka, topics, NO_REDIS, folder) as deployment:
        deployment.log_url = (await deployment.start("metadata_log")).url
        deployment.coordinator = await deployment.start("coordinator", resend_s=0.5, **settings)
        await asyncio.gather(*(deployment.start_node(name, **node) for name in names))
        await deployment.serve_keyspace(*names)
        yield deployment


async def is_refused(starting: Awaitable[Service], words: str) -> None:
    """Check that a process ends with these words, before or soon after its announcement."""
    try:
        service = await starting
    except AssertionError as error:
        assert words in str(error), error
        return
    await until(lambda: service.process.poll() is not None, "the process to end", 40)
    assert words in service.process.tail(), service.process.tail()
