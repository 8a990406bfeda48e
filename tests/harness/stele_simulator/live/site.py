"""The real stack with a proxy before every server: its processes by name, and what can be done to them."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

from stele.log.brokers import Brokers
from stele_harness.stack.broker import Broker
from stele_harness.stack.folders import is_node
from stele_harness.stack.stack import ServiceSpec, Stack, node_specs
from stele_harness.stack.supervisor import ProcessState
from stele_simulator.live.faults import Role
from stele_simulator.live.peers import Peers
from stele_simulator.live.tcp_proxies import TcpProxies

SERVICES: Final = (
    ServiceSpec("metadata-log", "stele.metadata_log", {"STELE_FOUND": "auto"}, count=2),
    ServiceSpec("coordinator", "stele.coordinator", count=2),
    ServiceSpec("session-guard", "stele.session_guard"),
    ServiceSpec("catch-up", "stele.catch_up", {"STELE_DATA_DIR": "{directory}"}),
    ServiceSpec("tablet-balancer", "stele.tablet_balancer"),
)
"""All that decide or gate something, twice where two may believe in themselves. Spark only reads along."""
CLUSTER: Final = "live"
BROKERS: Final = 3
NODES: Final = 3
READY_S: Final = 600.0
"""Limit for the start of a process. It starts behind proxies, beside other work, and under faults."""
ANSWER_TIMEOUT_S: Final = 12.0
"""A metadata-log answers within 10 s, with 'unknown' if need be."""


class Site:
    """Make it inside the event loop: the proxies run there, the stack is driven from threads."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.proxies = TcpProxies(Peers(self._names).name_of, seed)
        self.stack = Stack(
            directory,
            cluster=CLUSTER,
            brokers=BROKERS,
            nodes=NODES,
            services=SERVICES,
            front=self.proxies.front,
            ready_s=READY_S,
        )
        self._made = NODES

    async def start(self) -> None:
        await asyncio.to_thread(self.stack.start)

    async def stop(self) -> None:
        await self.wake_all()
        await asyncio.to_thread(self.stack.stop)
        await self.proxies.close()

    @property
    def kafka(self) -> Brokers:
        return Brokers(self.stack.kafka.bootstrap)

    @property
    def brokers(self) -> dict[str, Broker]:
        return {broker.address.name: broker for broker in self.stack.kafka.brokers}

    def names(self, role: Role) -> list[str]:
        """Processes of a role that are meant to run."""
        if role is Role.BROKER:
            return list(self.brokers)
        if role is Role.REDIS:
            return ["redis"]
        children = [
            status.name
            for status in self.stack.supervisor.status()
            if status.state is not ProcessState.STOPPED
        ]
        if role is Role.NODE:
            return [name for name in children if is_node(name)]
        if role is Role.EVERYBODY:
            return children
        return [name for name in children if name.startswith(role)]

    def url(self, name: str) -> str:
        return self.stack.url(name)

    async def add_node(self) -> str:
        """Start the next node, which asks to join by itself; its name."""
        self._made += 1
        return await asyncio.to_thread(self.stack.add_node, self._made)

    async def replace_node(self, dead: str, rack: str) -> str:
        """Start the next node, which asks to take the place of a dead one; its name."""
        self._made += 1
        spec = node_specs(self._made)[-1]
        env = {**spec.env, "STELE_REPLACE_NODE": dead, "STELE_RACK": rack}
        await asyncio.to_thread(self.stack.start_services, [replace(spec, env=env)])
        return spec.name

    async def kill_for_good(self, name: str) -> None:
        """Remove a node's machine: the node never starts again."""
        await asyncio.to_thread(self.stack.kill_for_good, name)

    async def stop_node(self, name: str) -> None:
        """End the process of a node that has left."""
        self.signal(name, signal.SIGCONT)
        await asyncio.to_thread(self.stack.supervisor.stop, name)

    def signal(self, name: str, number: signal.Signals) -> None:
        if name in self.brokers:
            self.brokers[name].signal(number)
        elif name == "redis":
            self.stack.redis.signal(number)
        else:
            self.stack.kill(name, number)

    def kill(self, name: str) -> None:
        """SIGKILL. Services and nodes are restarted by the supervisor, the others by ``revive``."""
        if name in self.brokers:
            self.proxies.refuse(name)
            self.brokers[name].kill()
        elif name == "redis":
            self.proxies.refuse(name)
            self.stack.redis.kill()
        else:
            self.stack.kill(name)

    async def revive(self, name: str) -> None:
        """Start a broker or Redis again when it was killed."""
        if name in self.brokers:
            if not self.brokers[name].is_running():
                await asyncio.to_thread(self.brokers[name].start)
        elif name == "redis" and not self.stack.redis.is_running():
            await asyncio.to_thread(self.stack.redis.start)
        await self.proxies.accept(name)

    async def wake_all(self) -> None:
        """No process is paused and no connection disturbed any more."""
        self.proxies.heal()
        for name in (*self.names(Role.BROKER), "redis", *self.names(Role.EVERYBODY)):
            self.signal(name, signal.SIGCONT)

    def _names(self) -> dict[int, str]:
        """Process ids of the stack as they are now."""
        children = self.stack.supervisor.status()
        found = {status.pid: status.name for status in children}
        found |= {broker.pid: name for name, broker in self.brokers.items()}
        found[self.stack.redis.pid] = "redis"
        return {pid: name for pid, name in found.items() if pid is not None}
