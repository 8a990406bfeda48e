"""A deployment whose processes change their builds one after the other while clients write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from stele.runtime.request_ids import new_request_id
from stele_harness.stack.ports import free_port
from tests.deployment.process import Service
from tests.deployment.processes import Deployment, following
from tests.polling import until
from tests.upgrade.builds import environment

LOGS = ("metadata-log-1", "metadata-log-2")
REPLICAS = ("cu-1", "cu-2")
FIRST_NODES = ("n1", "n2", "n3")
NEWCOMER = "n4"
NODES = (*FIRST_NODES, NEWCOMER)
SETTINGS = 16
"""Names of settings that are written in turn."""
PAUSE_S = 0.05
"""Pause between two writes of a client. It leaves processor time to processes that start."""
AWAY = (0, 503, 504)
"""Statuses of an instance that cannot answer now; 0 is no connection."""


class Builds:
    """The processes of a deployment by name, and the changes of their builds.

    They are two metadata-logs, a coordinator, a session guard, two catch-up replicas, a balancer and
    three nodes; a fourth node joins later.
    """

    def __init__(self, cluster: Deployment) -> None:
        self.cluster = cluster
        self.processes: dict[str, Service] = {}

    async def roll(self, name: str, build: Path) -> None:
        """Restart a process with another build; return once it is healthy and its address known."""
        service = self.processes[name]
        await service.restart(**environment(build))
        await service.until("/healthz", lambda health: health["ok"], f"{name} to be well", 60)
        if name in NODES:
            await until(
                lambda: self.cluster.node_address(name) == service.url, f"the new address of {name}"
            )
        self.cluster.log_url = self.processes[LOGS[0]].url

    async def join(self, name: str) -> None:
        """Start a node of the build that the cluster began with; return once it is normal."""
        self.processes[name] = await self.cluster.start_node(name)
        await self.cluster.normal(name)

    async def agree_on_a_snapshot(self) -> None:
        """Wait until both replicas have announced the same snapshot of one epoch."""
        outcome = await self.cluster.command(type="ask_snapshot")

        def agreed(answer: dict[str, Any]) -> bool:
            newest = next(iter(answer["agreed"]), {"epoch": 0, "members": []})
            return newest["epoch"] >= outcome["epoch"] and newest["members"] == [*REPLICAS]

        await self.processes[LOGS[0]].until("/v1/catch_up", agreed, "one snapshot of both", 60)

    async def known(self, features: dict[str, tuple[str, ...]]) -> None:
        """Wait until the log has the supported features of each process."""

        def said() -> dict[str, tuple[str, ...]]:
            image = self.cluster.image
            rows = image.services.services.values()
            found = {s.service_id.partition("/")[2]: s.supported_features for s in rows}
            nodes = image.membership.nodes.values()
            return found | {n.node_id: n.supported_features for n in nodes}

        await until(lambda: said() == features, f"{features} to be declared, not {said()}")

    async def ask(
        self, log: str, command: dict[str, Any], request_id: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """One metadata-log's answer to a command: status and body; (0, {}) without a connection."""
        body = {"request_id": request_id or new_request_id(), "command": command}
        url = f"{self.processes[log].url}/v1/commands"
        try:
            async with self.cluster.http.post(url, json=body) as answer:
                return answer.status, await answer.json()
        except (aiohttp.ClientError, TimeoutError):
            return 0, {}

    async def one_state(self) -> dict[str, Any]:
        """The state, at an epoch at which every process shows the same hash."""
        newest = (await self.processes[LOGS[0]].get("/v1/state?level=linearizable"))["epoch"]
        for name, service in self.processes.items():
            reached = f"{name} to reach epoch {newest}"
            await service.until("/v1/position", lambda p: p["epoch"] >= newest, reached)
        shown = [await self.processes[log].get(f"/v1/state?epoch={newest}") for log in LOGS]
        assert shown[0]["hash"] == shown[1]["hash"]
        places = [await service.get("/v1/position") for service in self.processes.values()]
        hashes = {(place["epoch"], place["hash"]) for place in places}
        assert len(hashes) == len({epoch for epoch, _ in hashes}), places
        state: dict[str, Any] = shown[0]
        return state

    async def epochs(self, log: str) -> dict[str, int]:
        """Request id -> epoch, of the whole history as this metadata-log reads it."""
        found, begin = dict[str, int](), 1
        while True:
            page = await self.processes[log].get(f"/v1/epochs?from={begin}&limit=1000")
            if not page:
                return found
            found |= {row["request_id"]: row["epoch"] for row in page}
            begin = page[-1]["epoch"] + 1


class Commands:
    """One client that sets settings, each command until it has its outcome; ``epochs`` are the answers."""

    def __init__(self, builds: Builds) -> None:
        self.values: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self._builds = builds
        self._running = True

    async def run(self) -> None:
        number = 0
        while self._running:
            number += 1
            name, request_id = f"load-{number % SETTINGS}", new_request_id()
            command = {"type": "set_setting", "name": name, "value": str(number)}
            outcome = await self._outcome(command, request_id, number)
            assert outcome["applied"], outcome
            self.values[name] = str(number)
            self.epochs[request_id] = outcome["epoch"]
            await asyncio.sleep(PAUSE_S)

    async def _outcome(self, command: dict[str, Any], request_id: str, turn: int) -> dict[str, Any]:
        """Ask one metadata-log after the other, always under the same id."""
        while True:
            status, outcome = await self._builds.ask(LOGS[turn % len(LOGS)], command, request_id)
            if status not in AWAY:
                return outcome
            turn += 1
            await asyncio.sleep(PAUSE_S)

    async def go_on(self, commands: int) -> None:
        goal = len(self.epochs) + commands
        await until(lambda: len(self.epochs) >= goal, f"{commands} more commands", 60)

    def stop(self) -> None:
        self._running = False


@asynccontextmanager
async def commands(builds: Builds) -> AsyncIterator[Commands]:
    client = Commands(builds)
    task = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        client.stop()
        await task


@asynccontextmanager
async def builds_of(
    kafka: str, topics: str, redis_url: str, folder: Path, build: Path
) -> AsyncIterator[Builds]:
    """All processes of one build; three normal nodes and a keyspace at replication factor 3."""
    ports = [free_port() for _ in REPLICAS]
    of_all = {
        **environment(build),
        "STELE_CATCH_UP_URLS": ",".join(f"http://127.0.0.1:{port}" for port in ports),
        "STELE_REPLICAS_PATIENCE_S": "1",
    }
    async with following(kafka, topics, redis_url, folder, **of_all) as cluster:
        start, builds = cluster.start, Builds(cluster)
        logs = await asyncio.gather(*(start("metadata_log", name) for name in LOGS))
        cluster.log_url = logs[0].url
        cluster.coordinator, guard, balancer, *others = await asyncio.gather(
            start("coordinator", "coordinator-1", resend_s=0.5),
            start("session_guard", "session-guard-1"),
            start("tablet_balancer", "tablet-balancer-1"),
            *(
                start("catch_up", name, data_dir=folder / name, http_port=port, rack=name)
                for name, port in zip(REPLICAS, ports, strict=True)
            ),
            *map(cluster.start_node, FIRST_NODES),
        )
        await cluster.serve_keyspace(*FIRST_NODES)
        replicas, nodes = others[: len(REPLICAS)], others[len(REPLICAS) :]
        builds.processes = {
            LOGS[0]: logs[0],
            "coordinator-1": cluster.coordinator,
            REPLICAS[0]: replicas[0],
            "n1": nodes[0],
            "n2": nodes[1],
            REPLICAS[1]: replicas[1],
            "tablet-balancer-1": balancer,
            "session-guard-1": guard,
            "n3": nodes[2],
            LOGS[1]: logs[1],
        }
        yield builds


async def make_and_drop(builds: Builds, name: str) -> None:
    """A topology operation, driven by the coordinator and acknowledged by every node."""
    cluster = builds.cluster
    await cluster.command(type="create_keyspace", name=name, replication={"dc1": 2})
    await cluster.command(type="drop_keyspace", name=name)
    await until(lambda: cluster.image.schema.named(name) is None, f"{name} to be dropped", 60)
    await cluster.rest()
