"""One run's world: all processes, what happens to them, and the way to rest after the faults."""

import hashlib
from collections.abc import Callable
from typing import Final

from stele.agent.partitions import parted
from stele.coordinator.knowledge import Limits, Wait
from stele.domain import commands
from stele.domain.commands import AnyCommand, Envelope
from stele.domain.image import Image
from stele.domain.requests.ids import named
from stele.domain.ring.ranges import Range, contains
from stele.sim.balancer import Balancer
from stele.sim.clients import KEYSPACE, Admin, AttachedClient, KvClient, TableClient
from stele.sim.declared import LOOK_AGAIN_S, exclude_the_gone, is_unplugged
from stele.sim.driver import Driver
from stele.sim.founding import Founding
from stele.sim.kernel import Crashed, Kernel, us
from stele.sim.loads import TableLoad
from stele.sim.log import SimLog
from stele.sim.messages import Key, token_of_key
from stele.sim.network import FINE, Network
from stele.sim.node import Node
from stele.sim.process import Follower, Process
from stele.sim.scenario import Scenario
from stele.sim.tablet_checks import places
from stele.sim.violation import require
from stele.sim.watcher import Watcher
from stele.sim.witness import Witness
from stele.sim.writer import Writer

DC: Final = "dc1"
IDLE: Final = "idle"
"""Name of the topology's state when nothing is in transition."""
WATCHERS: Final = 2
KEPT_LINES: Final = 60
"""Newest lines of the trace that a report shows."""


class World:
    """Everything in a run. Build it, ``run_until`` a time, ``heal`` it, and look at the witness."""

    def __init__(self, scenario: Scenario, *, keep_trace: bool = False) -> None:
        self.scenario = scenario
        self.kernel = Kernel(f"{scenario.profile}/{scenario.seed}")
        self.lines: list[str] = []
        self.digest = hashlib.sha256()
        self._keep = keep_trace
        self.network = Network(self.kernel, scenario.weather)
        self.nodes: dict[str, Node] = {}
        self.witness = Witness(
            self.trace, self.is_gone, self.nodes.values, lambda: self.kernel.now_s
        )
        self.log = SimLog(self.kernel, self.network, self.witness.durable)
        self.limits = Limits()
        self.clients_work = True
        self.faults = 0
        self.requests = 0
        self.gone = set[str]()
        self.declarations: dict[str, tuple[str, ...]] = {}
        """Request id -> the nodes that it declares dead."""
        self.unplugged: dict[str, str] = {}
        """Node -> the request that declares it dead: it is down until that is decided."""
        self.crowds = 0
        """Those that still ask without a pause."""
        self.traps: list[tuple[str, str, int, float]] = []
        self.writers: list[Writer] = [Writer(f"w{i + 1}", self) for i in range(scenario.writers)]
        self.drivers: list[Driver] = [Driver(f"c{i + 1}", self) for i in range(scenario.drivers)]
        self.clients = [KvClient(f"k{i + 1}", self) for i in range(scenario.clients)]
        self.watchers = [Watcher(f"watch{i + 1}", self) for i in range(WATCHERS)]
        self.admin = Admin("admin", self)
        self.balancers: list[Balancer] = []
        self.loads: dict[str, TableLoad] = {}
        """What tables hold and serve, by name."""
        self._timestamp = 0
        self._ambushes: list[tuple[str, Callable[[], None]]] = []
        self.witness.on_epoch = self._entered

    # --- beginning

    def found(self, joins: list[commands.Join], keyspaces: dict[str, dict[str, int]]) -> None:
        """Lay down the first epochs and start every process."""
        founding = Founding(f"{self.scenario.profile}/{self.scenario.seed}")
        founding.join_all(joins)
        for name, replication in keyspaces.items():
            founding.apply(commands.CreateKeyspace(name, replication))
        self.witness.commands.envelopes.update(founding.envelopes)
        self.witness.founding = True
        for offset, record in enumerate(founding.records):
            self.witness.durable(offset, record)
        self.witness.founding = False
        self.log.records = founding.records
        self.log.high = len(founding.records)
        for join in joins:
            self.add_node(join.node_id)
        for process in (
            *self.writers,
            *self.drivers,
            *self.clients,
            *self.watchers,
            self.admin,
        ):
            process.boot()

    def found_scenario(self) -> None:
        scenario = self.scenario
        joins = [
            self.join_of(f"n{i + 1}", f"r{i % scenario.racks + 1}", scenario.num_tokens)
            for i in range(scenario.nodes)
        ]
        self.found(joins, {KEYSPACE: {DC: min(scenario.rf, scenario.nodes)}})
        if scenario.tables:
            self.start_balancer()
            self.use_table("")

    def join_of(self, name: str, rack: str, num_tokens: int) -> commands.Join:
        """Its shards are the scenario's."""
        return join_command(name, rack, num_tokens, shards=self.scenario.shards.get(name, 1))

    def add_node(self, name: str, join: commands.Join | commands.Replace | None = None) -> None:
        """Start a node; with ``join`` it asks to become a member."""
        node = Node(name, self)
        node.join_command = join
        self.nodes[name] = node
        self.witness.data.stores[name] = node.read_cells
        self.witness.tablets.disks[name] = lambda: node.cells
        node.disk["cells"] = {}
        node.boot()

    def attach_client(self, node: str, written: str = KEYSPACE) -> AttachedClient:
        """A client that writes through this node alone, to a keyspace or a table."""
        client = AttachedClient(f"client of {node}", self)
        client.node_name, client.written = node, written
        client.boot()
        return client

    def use_table(self, name: str) -> None:
        """A client writes and reads in a table, or in all that there are."""
        client = TableClient(f"client in {name or 'tables'}", self)
        client.table = name
        client.boot()

    def start_balancer(self) -> None:
        balancer = Balancer(f"b{len(self.balancers) + 1}", self)
        self.balancers.append(balancer)
        balancer.boot()

    # --- what processes use

    def trace(self, text: str) -> None:
        line = f"{self.kernel.now_us / 1_000_000:11.6f} {text}"
        self.digest.update(line.encode())
        self.lines.append(line)
        if not self._keep and len(self.lines) > 2 * KEPT_LINES:
            del self.lines[:KEPT_LINES]

    def next_timestamp(self) -> int:
        self._timestamp += 1
        return self._timestamp

    def is_gone(self, name: str) -> bool:
        return name in self.gone

    def failpoint(self, process: Process, point: str) -> None:
        """Die here if a trap was laid. Raises Crashed."""
        for index, (who, where, skip, seconds) in enumerate(self.traps):
            if where == point and who in ("", process.name):
                if skip:
                    self.traps[index] = (who, where, skip - 1, seconds)
                    continue
                del self.traps[index]
                self.crash(process, seconds)
                raise Crashed

    def on_state(self, state: str, strike: Callable[[], None]) -> None:
        """Do something once, right after the topology has next entered ``state``."""
        self._ambushes.append((state, strike))

    def _entered(self, before: Image, after: Image) -> None:
        old, new = before.topology, after.topology
        if new.version == old.version or not self._ambushes:
            return
        states = states_of(after) - ({IDLE} if not old.transitions else set())
        entered = {str(t.state) for t in new.open() if t.entered_version == new.version} | (
            states & {IDLE}
        )
        due = [strike for where, strike in self._ambushes if where in entered]
        self._ambushes = [
            (where, strike) for where, strike in self._ambushes if where not in entered
        ]
        for strike in due:
            self.kernel.at(self.kernel.now_us, None, strike)

    # --- what can be done to it

    def processes(self) -> dict[str, Process]:
        """All that can be broken, by name."""
        nodes = self.nodes.values()
        found: tuple[Process, ...] = (*self.writers, *self.drivers, *nodes, *self.balancers)
        return {process.name: process for process in found}

    def crash(self, process: Process, seconds: float) -> None:
        """Kill; start again after ``seconds``."""
        self.faults += 1
        self.trace(f"crash {process.name} for {seconds:g} s")
        process.crash()
        self.kernel.at(self.kernel.now_us + us(seconds), None, self.restart, process)

    def restart(self, process: Process) -> None:
        if process.name in self.gone or process.alive:
            return
        if is_unplugged(self, process.name):
            later_us = self.kernel.now_us + us(LOOK_AGAIN_S)
            self.kernel.at(later_us, None, self.restart, process)
        else:
            self.trace(f"restart {process.name}")
            process.boot()

    def told_by_coordinator(self) -> list[Wait]:
        """What the coordinator of the newest term waits for."""
        active = [d for d in self.drivers if d.alive and d.holds_term]
        return [wait for driver in active for wait in driver.steps.waits]

    def request(self, command: AnyCommand, name: str = "") -> str:
        """Have the administrator ask for something; returns the request id."""
        self.requests += 1
        request_id = named(f"request {self.scenario.seed}/{name or self.requests}")
        envelope = Envelope(
            request_id=request_id, command=command, actor="admin", reason="simulated"
        )
        self.trace(f"ask {command!r}")
        self.admin.request(envelope)
        return request_id

    # --- the way to rest

    def heal(self) -> None:
        """End all faults, so that everything asked for must come to its end (I10). What is gone stays so."""
        self.trace("heal")
        self.traps = []
        self._ambushes = []
        self.network.mend_all()
        self.network.weather = FINE
        self.unplugged = {}
        for process in (*self.processes().values(), self.admin):
            self.restart(process)
        exclude_the_gone(self)

    def unfinished(self) -> list[str]:
        """What still keeps the run from being at rest."""
        image = self.witness.image
        found = [
            f"{r.kind} of {r.node_id or r.keyspace_id or r.table_id or ', '.join(r.dead_nodes)}"
            f" is {r.status}"
            for r in image.requests.unfinished()
        ]
        if image.commits.since_epoch:
            found.append("the log is not open to all")
        if not image.topology.settled():
            found.append(f"version {image.topology.version} is not fenced")
        found += [
            f"{n} needs cleanup"
            for n, node in image.membership.normal().items()
            if node.cleanup_since and n not in self.gone
        ]
        if self.crowds:
            found.append("a crowd still asks")
        if self.admin.waiting:
            found.append(f"{self.admin.waiting} commands have no answer")
        found += [f"{p.name} is behind" for p in self.followers() if p.image.epoch != image.epoch]
        found += [
            f"{w.name} has seen epoch {w.last}" for w in self.watchers if w.last < image.epoch
        ]
        found += [f"{w.name} has records in flight" for w in self.writers if w.pipeline.in_flight]
        return found

    def followers(self) -> list[Follower]:
        nodes = self.nodes.values()
        found: tuple[Follower, ...] = (*self.writers, *self.drivers, *nodes, *self.balancers)
        return [process for process in found if process.alive]

    def check_no_foreign_data(self) -> None:
        """A node that the image calls clean holds nothing of ranges that are not its own."""
        image = self.witness.image
        for name, state in image.membership.normal().items():
            if name in self.gone or state.cleanup_since:
                continue
            node = self.nodes[name]
            foreign = [
                key
                for key in sorted(node.cells)
                if (name, parted(key[0])[1]) not in _places_of(image, key)
            ]
            require(
                not foreign,
                "cleanup is complete",
                f"{name} is clean, so it holds only what it owns",
                f"it holds {foreign[:3]}",
            )


def _places_of(image: Image, key: Key) -> set[tuple[str, int]]:
    """Whoever has the key, or is to have it, on which shard; nobody when its data is gone."""
    data, token = image.schema.of_data(parted(key[0])[0]), token_of_key(key)
    if data is None:
        return set()
    found = places(image.ring.placements[data.placement].row_for(token))
    plans = [t.plans.get(data.placement) for t in image.topology.open()]
    for row in (row for plan in plans if plan is not None for row in plan.rows):
        if contains(Range(row.start, row.end), token):
            found |= {*row.places_before().items(), *row.places_after().items()}
    return found


def states_of(image: Image) -> set[str]:
    """States of the open transitions; ``idle`` when there is none."""
    return {str(t.state) for t in image.topology.open()} or {IDLE}


def join_command(
    name: str, rack: str, num_tokens: int, tokens: tuple[int, ...] = (), shards: int = 1
) -> commands.Join:
    return commands.Join(
        node_id=name,
        cluster="sim",
        address=f"http://{name}",
        dc=DC,
        rack=rack,
        num_tokens=num_tokens,
        initial_tokens=tokens,
        host_id=f"host-{name}",
        shards=shards,
    )


def replace_command(name: str, dead: str, rack: str, shards: int = 1) -> commands.Replace:
    return commands.Replace(
        node_id=name,
        replaced_id=dead,
        cluster="sim",
        address=f"http://{name}",
        dc=DC,
        rack=rack,
        host_id=f"host-{name}",
        shards=shards,
    )
