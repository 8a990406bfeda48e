"""The whole of Stele on one machine: brokers, Redis and a table of services.

    with Stack(Path(".stele")) as stack:
        print(stack.url("metadata-log"))

`stack.json` in the directory lists all addresses for other processes (`stele status`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from stele.log.brokers import Brokers
from stele.runtime.kafka import ensure_topics
from stele.runtime.settings import KafkaSettings, variable_of
from stele_harness.stack import folders
from stele_harness.stack.broker import BrokerCluster
from stele_harness.stack.ports import LOOPBACK, Front, KeptPorts, no_front
from stele_harness.stack.process import Program
from stele_harness.stack.redis import RedisServer
from stele_harness.stack.servers import Server, Servers
from stele_harness.stack.supervisor import (
    EXIT_BAD_CONFIGURATION,
    ChildFailed,
    ProcessState,
    Supervisor,
)

STACK_FILE = "stack.json"
PORTS_FILE = "ports.json"
SERVICE_STOP_DEADLINE_S = 15.0  # longer than runtime.service.STOP_DEADLINE_S
SERVICES_READY_DEADLINE_S = 300.0  # nine Python processes on two cores; Spark needs the most
# While the stack starts: a service may start before the one that it needs, three times.
START_RESTARTS = 3
CHOSEN_FILE = "chosen.json"  # variables that a node was added with
HOW_TO_KAFKA = frozenset(map(variable_of, KafkaSettings.__struct_fields__))
"""Variables that a stack's processes do not need: its brokers use neither TLS nor SASL."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
RACKS = ("r1", "r2", "r3")
DATACENTER = "dc1"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A row of the table: `count` processes of `python -m <module>`.

    `env` may hold `{number}` (1..count), `{directory}` (the process's own data directory) and
    `{url}` (its address for other processes).
    """

    name: str
    module: str
    env: Mapping[str, str] = field(default_factory=dict)
    count: int = 1

    def instances(self) -> tuple[str, ...]:
        """Return the name itself when there is one process, else name-1, name-2, ..."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))


SERVICES: tuple[ServiceSpec, ...] = (
    ServiceSpec("metadata-log", "stele.metadata_log", {"STELE_FOUND": "auto"}),
    ServiceSpec("session-guard", "stele.session_guard"),
    ServiceSpec(
        "catch-up", "stele.catch_up", {"STELE_DATA_DIR": "{directory}", "STELE_ADDRESS": "{url}"}
    ),
    ServiceSpec("coordinator", "stele.coordinator"),
    ServiceSpec("tablet-balancer", "stele.tablet_balancer"),
    ServiceSpec("placements", "stele.placements", {"STELE_DATA_DIR": "{directory}"}),
    ServiceSpec("console", "stele.console", {"STELE_CONSOLE_COMMANDS": "true"}),
)

CDC_CONNECTOR: Final = ServiceSpec("cdc-connector", "stele.cdc_connector")
"""Publishes change logs. It is started on request only."""


def node_specs(count: int) -> tuple[ServiceSpec, ...]:
    """Return the specs of nodes n1..n<count> of dc1, in racks r1, r2, r3 in turn."""
    return tuple(
        ServiceSpec(
            f"n{number}",
            "stele.node",
            {
                "STELE_NODE_ID": f"n{number}",
                "STELE_DC": DATACENTER,
                "STELE_RACK": RACKS[(number - 1) % len(RACKS)],
                "STELE_DATA_DIR": "{directory}",
                "STELE_ADDRESS": "{url}",
            },
        )
        for number in range(1, count + 1)
    )


class Stack:
    """Starts everything in order, keeps it running, stops it in reverse order."""

    def __init__(
        self,
        directory: Path,
        *,
        cluster: str = "stele",
        brokers: int = 1,
        nodes: int = 3,
        services: Sequence[ServiceSpec] = SERVICES,
        env: Mapping[str, str] | None = None,
        front: Front = no_front,
        ready_s: float = SERVICES_READY_DEADLINE_S,
    ) -> None:
        self.directory = directory.resolve()
        self.cluster = cluster
        self._ready_s = ready_s
        self._given = KeptPorts(self.directory / PORTS_FILE)
        give = self._given.give
        self.kafka = BrokerCluster(
            self.directory / "kafka", count=brokers, front=front, port_of=give
        )
        self.redis = RedisServer(self.directory / "redis", port=give("redis"), front=front)
        self.servers = Servers([*self.kafka.brokers, self.redis])
        self.supervisor = Supervisor(on_change=self.write_stack_file)
        self._specs = (*services, *(self.node_spec(number) for number in range(1, nodes + 1)))
        self._env = dict(env or {})
        self._file_lock = threading.Lock()
        self._front = front
        self._ports: dict[str, int] = {}
        self._public: dict[str, int] = {}
        self._with_more = set[str]()
        """Nodes that run with variables for a single start."""
        for spec in self._specs:
            self._give_ports(spec)

    def start(self) -> None:
        """Return when every service has announced its address.

        Stops everything again on failure.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.start_servers()
            self.start_services(self._wanted())
        except BaseException:
            self.stop()
            raise

    def _wanted(self) -> list[ServiceSpec]:
        """Return all specs except the nodes that must stay down: killed on purpose, or no longer
        members.
        """
        return [spec for spec in self._specs if not self.why_down(spec.name)]

    def why_down(self, name: str) -> str:
        """Return why a node is not started with the others; empty if it is."""
        return folders.stays_down(self._folder() / name)

    def was_removed(self, name: str) -> bool:
        """Return whether it was a node that was removed, so that only its name remains."""
        return folders.was_removed(self._folder() / name)

    def start_servers(self) -> None:
        """Start brokers and Redis at once, then create the project's topics."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            pending = [pool.submit(_start_and_wait, s) for s in (self.kafka, self.redis)]
        for outcome in pending:
            outcome.result()
        ensure_topics(Brokers(self.kafka.bootstrap), self.cluster, self.kafka.replication_factor)

    def start_services(self, specs: Iterable[ServiceSpec]) -> None:
        """Start more services (a node that joins later) and wait for their announcements.

        An earlier node whose configuration is rejected does not stop the others. Its log has the
        reason. Such a node may have lost its directory, so all nodes of an existing stack count.
        """
        started: list[str] = []
        earlier = folders.earlier(self._folder())
        if self._folder().exists():
            earlier |= {spec.name for spec in self._specs if folders.is_node(spec.name)}
        for spec in specs:
            self._give_ports(spec)
            for number, name in enumerate(spec.instances(), start=1):
                self.supervisor.start(self._command(spec, name, number))
                started.append(name)
        for name in started:
            try:
                self.supervisor.wait_url(name, self._ready_s, START_RESTARTS)
            except ChildFailed:
                refused = self.supervisor.status_of(name).exit_code == EXIT_BAD_CONFIGURATION
                if name not in earlier or not refused:
                    raise
        self._given.save()
        self.write_stack_file()

    def choose(self, spec: ServiceSpec, chosen: Mapping[str, str]) -> ServiceSpec:
        """Store variables of a node.

        Every later stack over the directory starts it with them too.
        """
        folder = self._folder() / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CHOSEN_FILE).write_text(json.dumps(dict(chosen)))
        return self._as_chosen(spec)

    def node_spec(self, number: int) -> ServiceSpec:
        """Return the spec of node n<number>, with the variables that it was added with."""
        return self._as_chosen(node_specs(number)[-1])

    def _as_chosen(self, spec: ServiceSpec) -> ServiceSpec:
        file = self._folder() / spec.name / CHOSEN_FILE
        chosen = json.loads(file.read_text()) if file.exists() else {}
        return replace(spec, env={**spec.env, **chosen})

    def _folder(self) -> Path:
        return self.directory / "services"

    def add_node(self, number: int) -> str:
        """Start node n<number>. Return its name."""
        spec = node_specs(number)[-1]
        self.start_services([spec])
        return spec.name

    def url(self, name: str) -> str:
        """Return the address of an instance, which does not change at a restart."""
        return f"http://{LOOPBACK}:{self._public[name]}"

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Inject a fault: send a signal to the instance. It is restarted when it dies."""
        self.supervisor.kill(name, number)

    def kill_for_good(self, name: str) -> None:
        """Kill an instance as if its machine were lost.

        It is not restarted; a node not by later stacks either.
        """
        self.supervisor.kill_for_good(name)
        if name in self.node_names():
            folders.keep_down(self._folder() / name, "it was killed on purpose")
        self.write_stack_file()

    def stop_one(self, name: str) -> None:
        """Stop an instance in order, until `start_one` or the next stack. Raises KeyError."""
        self.supervisor.stop(name, SERVICE_STOP_DEADLINE_S)
        self.write_stack_file()

    def start_one(self, name: str, more: Mapping[str, str] = _NOTHING) -> str:
        """Start an instance that was stopped, killed or given up. Return its address.

        With ``more``, a node that does not run gets these variables until it is started without
        them, or with others. Raises KeyError, ChildFailed.
        """
        known = {status.name: status.state for status in self.supervisor.status()}
        if name not in known and name not in folders.earlier(self._folder()):
            raise KeyError(name)
        folders.let_up(self._folder() / name)
        anew = bool(more) or name in self._with_more
        if anew and name in known:
            self.supervisor.kill_for_good(name)
            self.supervisor.forget(name)
        if anew or name not in known:
            if more:
                self._with_more.add(name)
            else:
                self._with_more.discard(name)
            spec = self.node_spec(int(name[1:]))
            self.start_services([replace(spec, env={**spec.env, **more})])
        elif known[name] in (ProcessState.STOPPED, ProcessState.GIVEN_UP):
            self.supervisor.restart(name)
            self.supervisor.wait_url(name, self._ready_s, START_RESTARTS)
        return self.url(name)

    def remove(self, name: str, why: str) -> None:
        """Stop a node permanently and delete its data; its name stays taken."""
        if name in self.node_names():
            self.supervisor.kill_for_good(name)
            self.supervisor.forget(name)
        folders.clear(self._folder() / name, why)
        self.write_stack_file()

    def look_after_servers(self) -> None:
        """Restart brokers and Redis that ended without a request.

        The owner of the stack calls it periodically.
        """
        if self.servers.look():
            self.write_stack_file()

    def keep_down(self, name: str, why: str) -> None:
        """Prevent later stacks from starting a node."""
        folders.keep_down(self._folder() / name, why)

    def node_names(self) -> list[str]:
        """Return the data nodes that were started."""
        names = (status.name for status in self.supervisor.status())
        return sorted(name for name in names if folders.is_node(name))

    def stop(self) -> None:
        """Stop services last to first, then Redis, then the brokers."""
        self.supervisor.stop_all(SERVICE_STOP_DEADLINE_S)
        self.redis.stop()
        self.kafka.stop()
        (self.directory / STACK_FILE).unlink(missing_ok=True)

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """Return STELE_* variables that lead any process to this stack."""
        by_service = {
            spec.name: ",".join(self.url(name) for name in spec.instances())
            for spec in self._specs
            if spec.module != "stele.node"
        }
        urls = {f"STELE_{n.upper().replace('-', '_')}_URLS": u for n, u in by_service.items()}
        return {
            "STELE_CLUSTER": self.cluster,
            "STELE_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            "STELE_KAFKA_REPLICATION_FACTOR": str(self.kafka.replication_factor),
            "STELE_REDIS_URL": self.redis.url,
            **urls,
        }

    def _give_ports(self, spec: ServiceSpec) -> None:
        for name in spec.instances():
            if name not in self._ports:
                self._ports[name] = self._given.give(name)
                self._public[name] = self._front(name, self._ports[name])

    def _command(self, spec: ServiceSpec, name: str, number: int) -> Program:
        data = self._folder() / name
        data.mkdir(parents=True, exist_ok=True)
        own = {
            k: v.format(number=number, directory=data, url=self.url(name))
            for k, v in spec.env.items()
        }
        env = {
            **{k: v for k, v in os.environ.items() if k not in HOW_TO_KAFKA},
            **self.environment(),
            "STELE_DEVELOPMENT": "true",  # all of its brokers have their disks on one machine
            "STELE_INSTANCE_ID": name,
            "STELE_HTTP_HOST": LOOPBACK,
            "STELE_HTTP_PORT": str(self._ports[name]),
            "PYTHONUNBUFFERED": "1",
            **own,
            **self._env,
        }
        return Program(
            name=name,
            argv=[sys.executable, "-m", spec.module],
            stdout=data / "stdout.log",
            stderr=data / "stderr.log",
            env=env,
        )

    def write_stack_file(self) -> None:
        """Write the addresses of this stack and the state of its processes for other processes."""
        brokers = [
            {"name": b.name, "address": b.bootstrap, **self._how_it_stands(b)}
            for b in self.kafka.brokers
        ]
        children = [
            {
                "name": child.name,
                "url": self.url(child.name),
                "pid": child.pid,
                "state": child.state,
                "restarts": child.restarts,
                "exit_code": child.exit_code,
            }
            for child in self.supervisor.status()
        ]
        content = {
            "pid": os.getpid(),
            "environment": self.environment(),
            "brokers": brokers,
            "redis": {"url": self.redis.url, **self._how_it_stands(self.redis)},
            "services": children,
        }
        path = self.directory / STACK_FILE
        temporary = path.with_name(f"{STACK_FILE}.new")
        with self._file_lock:  # the supervisor's thread writes too
            temporary.write_text(json.dumps(content, indent=2) + "\n")
            temporary.replace(path)

    def _how_it_stands(self, server: Server) -> dict[str, object]:
        servers, name = self.servers, server.name
        return {
            "pid": server.pid,
            "state": servers.state(name),
            "restarts": servers.restarts(name),
        }


def _start_and_wait(server: BrokerCluster | RedisServer) -> None:
    server.start()
    server.wait_ready()
