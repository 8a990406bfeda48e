"""A cluster of production processes, its broker, and what happens to them."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from stele.domain import commands
from stele.domain.commands import CreateKeyspace, CreateTable, SetSetting
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import EMPTY
from stele.domain.model.requests import GENERATIONS
from stele.log.archive.segments import SegmentLimits
from stele.log.errors import AnchorLostError, LostWinnersError
from stele.runtime.announce import Build
from stele.runtime.catch_up import CatchUp
from stele_simulator.founding import Founding
from stele_simulator.kernel import Clock, Kernel, us
from stele_simulator.network import FINE, Network
from stele_simulator.processes.agreement import AgreementClient, AgreementWitness
from stele_simulator.processes.backups import BackupWitness
from stele_simulator.processes.balancing import BalancerMachine
from stele_simulator.processes.broker import Kafka, LogTopic
from stele_simulator.processes.callers import Caller, Freezer, Mover
from stele_simulator.processes.changes import ChangeWitness, Consumer
from stele_simulator.processes.columns import ColumnClient, ColumnWitness, columned
from stele_simulator.processes.data import (
    COLUMNS_TABLES,
    KEYSPACE,
    KEYSPACE_TRUNCATED,
    OTHER_TABLE,
    TABLE,
    TABLE_TRUNCATED,
    TABLETS,
    DataClient,
    Rows,
)
from stele_simulator.processes.delayed_fetches import DelayedFetches
from stele_simulator.processes.delayed_requests import DelayedRequests
from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.expired_ids import ExpiredIdClient
from stele_simulator.processes.guards import GuardMachine, WorkerMachine
from stele_simulator.processes.interposed import Current
from stele_simulator.processes.large_records import LargeCaller
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.members import (
    CLUSTER,
    EPOCHS_TOPIC,
    CoordinatorMachine,
    EmbeddedMachine,
    LogMachine,
    NodeMachine,
    ReplicaMachine,
)
from stele_simulator.processes.older_disk_copies import OlderCopies
from stele_simulator.processes.read_availability import ReadAvailability
from stele_simulator.processes.redis import Server
from stele_simulator.processes.release_checks import ReleaseWitness
from stele_simulator.processes.releases import NEWER, OLDER
from stele_simulator.processes.request_holds import HoldWitness
from stele_simulator.processes.requester import RequesterMachine
from stele_simulator.processes.rival_coordinators import Rivals
from stele_simulator.processes.rolling import Roller
from stele_simulator.processes.router_clients import RouterMachine
from stele_simulator.processes.silences import Silences
from stele_simulator.processes.stale_leaders import StaleLeaders
from stele_simulator.processes.step_faults import StepFaults
from stele_simulator.processes.stores import StoreWitness
from stele_simulator.processes.streams import StreamWitness
from stele_simulator.processes.swapped_disks import Swaps
from stele_simulator.processes.tablet_rows import TabletRows
from stele_simulator.processes.truncation_checks import TruncatedClient, TruncationWitness
from stele_simulator.processes.watches import Watch
from stele_simulator.processes.web import Web, WebTransport
from stele_simulator.processes.witness import Witness
from stele_simulator.violation import Violation

KEPT_LINES: Final = 60
KNOWN_S: Final = 20.0
"""So long after a recovery all that run know of it, and a pause is over."""
DEAD_AFTER_S: Final = 20
"""A member of the archive that was silent for so long is replaced."""
NOTHING_LOST: Final = "winners are missed where they are lost"
CORES_RAISE: Final = "the cores raise nothing"


class World:
    """Everything in a run. Make and run it inside ``interposed``."""

    def __init__(self, scenario: Disaster, current: Current, *, keep_trace: bool = False) -> None:
        self.scenario = scenario
        self.kernel = Kernel(f"{scenario.profile}/{scenario.seed}")
        self.clock = Clock(self.kernel)
        self.chance = self.kernel.random("world")
        self.lines: list[str] = []
        self.digest = hashlib.sha256()
        self._keep = keep_trace
        self._current = current
        current.default = current.who = self
        self.network = Network(self.kernel, scenario.weather)
        self.web = Web(self)
        self.witness = Witness(self)
        self.releases = ReleaseWitness(self)
        self.web.on_served = self.witness.recoveries.serves
        self.topic = LogTopic(
            self.kernel, self.network, EPOCHS_TOPIC, self._topic_id(), self.witness.durable
        )
        self.segment_limits = SegmentLimits(epochs=scenario.segment_epochs)
        self.logs = [LogMachine(f"w{i + 1}", self) for i in range(scenario.logs)]
        self.replicas = [ReplicaMachine(f"cu{i + 1}", self) for i in range(scenario.replicas)]
        self.kafka = Kafka(
            self.kernel, self.network, self.topic, self.witness.sent, self.witness.landed
        )
        self.coordinators = [
            CoordinatorMachine(f"c{i + 1}", self) for i in range(scenario.coordinators)
        ]
        kind = NodeMachine if scenario.clients else EmbeddedMachine
        self.nodes = [kind(f"n{i + 1}", self) for i in range(scenario.nodes)]
        self.balancers = [BalancerMachine("b1", self)] if scenario.tablets else []
        self.redis = Server(self)
        self.guards = [GuardMachine(f"g{i + 1}", self) for i in range(scenario.guards)]
        self.workers = [WorkerMachine(f"p{i + 1}", self) for i in range(scenario.guards)]
        self.routers = [RouterMachine(f"u{i + 1}", self) for i in range(scenario.routers)]
        self.requesters = [RequesterMachine("q1", self)] if scenario.requests else []
        self.replica_urls = tuple(each.url for each in self.replicas)
        self.machines: dict[str, Machine] = {
            each.name: each
            for each in (
                *self.logs,
                *self.replicas,
                *self.coordinators,
                *self.nodes,
                *self.guards,
                *self.balancers,
            )
        }
        self.web.machines = self.machines
        self.callers_work = True
        self.rows = Rows()
        self.stores = StoreWitness(self)
        self.tablet_rows, self.streams = TabletRows(self), StreamWitness(self)
        self.holds = HoldWitness(self)
        self.truncations, self.columns = TruncationWitness(self), ColumnWitness(self)
        self.agreement, self.changes = AgreementWitness(self), ChangeWitness(self)
        self.consumers = [
            Consumer(f"consumer{i + 1}", self, table)
            for i, table in enumerate(COLUMNS_TABLES if scenario.columns else ())
        ]
        self.agreement_clients = [AgreementClient("agreement", self)] * scenario.columns
        self.column_clients = [
            ColumnClient(f"columns{i + 1}", self, table)
            for i, table in enumerate(2 * COLUMNS_TABLES if scenario.columns else ())
        ]
        self.backups, self.read_availability = BackupWitness(self), ReadAvailability(self)
        self._make_callers(scenario)
        self.step_faults, self.delayed_requests, self.rivals = (
            StepFaults(self),
            DelayedRequests(self),
            Rivals(self),
        )
        self.swaps, self.stale_leaders = Swaps(self), StaleLeaders(self)
        self.older_disk_copies, self.silences = OlderCopies(self), Silences(self)
        self.topic.stale_leaders = self.stale_leaders
        self.delayed_fetches, self.expired_ids = (
            DelayedFetches("deafness", self),
            ExpiredIdClient("latecomer", self),
        )
        self.web.late_us = self.delayed_requests.delay_us
        self.faults = self._ages_ending = 0
        self.checks = 0
        """Number of facts that were compared with a rule."""
        self._broken: Violation | None = None

    def _make_callers(self, scenario: Disaster) -> None:
        """Make the clients that are not processes of production."""
        self.callers: list[Caller] = [
            *(Caller(f"k{i + 1}", self) for i in range(scenario.callers)),
            *(LargeCaller("large", self) for _ in range(scenario.records.are_small)),
        ]
        self.mover, self.freezer = Mover("mover", self), Freezer("freezer", self)
        self.roller = Roller("roller", self)
        self.admins: list[Caller] = [self.mover, self.freezer, self.roller]
        """Clients that change and restrict the cluster by the scenario. Stories have none."""
        self.watches = [Watch(f"v{i + 1}", self) for i in range(scenario.watches)]
        self.clients = [DataClient(f"d{i + 1}", self) for i in range(scenario.clients)]
        self.truncated_clients = [TruncatedClient("t1", self)] if scenario.truncated else []

    # -- beginning

    def found(self) -> None:
        """Lay down the first epochs by the production rules, and start everything."""
        features = (SCHEMA_OBJECTS,) if self.scenario.columns else ()
        seed = f"{self.scenario.profile}/{self.scenario.seed}"
        founding = Founding(seed, self.topic.topic_id, features)
        members = self.nodes[: self.scenario.members]
        founding.join_all(
            self.join_of(node.name, node.identity().host_id, node.dc, node.rack, node.shards)
            for node in members
        )
        founding.apply(SetSetting("snapshot_epochs", str(self.scenario.snapshot_epochs)))
        founding.apply(SetSetting("truncate_behind", str(self.scenario.truncate_behind)))
        founding.apply(SetSetting("archive_dead_after_s", str(DEAD_AFTER_S)))
        if self.scenario.memory.is_short:
            founding.apply(SetSetting(GENERATIONS.name, str(self.scenario.memory.limit)))
        if self.clients or self.routers:
            founding.apply(CreateKeyspace(KEYSPACE, self.scenario.replication))
        if self.scenario.tablets:
            wide = CreateKeyspace(
                TABLETS,
                self.scenario.replication,
                tablets=True,
                initial_tablets=self.scenario.tablets,
            )
            founding.apply(wide)
            founding.apply(CreateTable(TABLE))
        if self.scenario.colocated:
            founding.apply(CreateTable(OTHER_TABLE, colocated_with=TABLE))
        if self.scenario.columns:
            founding.apply(commands.AlterSchema(tuple(columned(COLUMNS_TABLES))))
        if self.scenario.truncated:
            founding.apply(CreateTable(TABLE_TRUNCATED))
            founding.apply(CreateKeyspace(KEYSPACE_TRUNCATED, self.scenario.replication))
        self.begin(founding)

    def begin(self, founding: Founding) -> None:
        """With these epochs in the topic everything starts."""
        self.topic.lay_down(founding.records)
        self.truncations.changed(EMPTY, self.witness.image)
        for machine in (*self.victims.values(), *self.workers, *self.requesters):
            machine.boot()
        for caller in (*self.callers, *self.admins):
            caller.start()
        for asker in (*self.agreement_clients, *self.consumers):
            asker.start()
        if self.scenario.memory.is_short:
            self.expired_ids.start()
        for client in (*self.clients, *self.truncated_clients, *self.column_clients):
            client.start()
        for watch in self.watches:
            watch.start()

    def join_of(self, name: str, host_id: str, dc: str, rack: str, shards: int) -> commands.Join:
        return commands.Join(
            node_id=name,
            cluster=CLUSTER,
            address=f"http://{name}",
            dc=dc,
            rack=rack,
            num_tokens=1,
            shards=shards,
            host_id=host_id,
            supported_features=tuple(sorted(self.first_build.features)),
            release_version=self.first_build.release,
        )

    # -- what processes use

    @property
    def first_build(self) -> Build:
        """Return the build of a process that starts for the first time."""
        return OLDER if self.releases.is_on else NEWER

    def catch_up(self, machine: Machine) -> CatchUp:
        """Return the replicas of the archive as this process asks them, without itself."""
        urls = [url for url in self.replica_urls if url != machine.url]
        return CatchUp(urls, WebTransport(machine), machine.build.features)

    def runs(self, machine: Machine | None) -> None:
        """Time and chance are this machine's until it says None."""
        self._current.who = machine or self

    def note(self, level: str, text: str, values: dict[str, object]) -> None:
        self.trace(f"{level}: {text} {values}"[:400])

    def trace(self, text: str) -> None:
        line = f"{self.kernel.now_us / 1_000_000:11.6f} {text}"
        self.digest.update(line.encode())
        self.lines.append(line)
        if not self._keep and len(self.lines) > 2 * KEPT_LINES:
            del self.lines[:KEPT_LINES]

    def broken(self, machine: Machine, error: BaseException) -> None:
        """A process met what no world explains: the run ends by it."""
        if isinstance(error, Violation):
            self._broken = self._broken or error
        elif self._broken is None:
            where, trace = [], error.__traceback__
            while trace is not None:
                where.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
                trace = trace.tb_next
            found = f"{machine.name}: {error!r} in {' > '.join(where[-5:])}"
            self._broken = Violation(CORES_RAISE, "no process breaks", found)

    def demand(self, holds: bool, invariant: str, expected: str, found: str) -> None:
        """Count a check. Raises Violation, which ends the run although a process may swallow it."""
        self.checks += 1
        if not holds:
            self._broken = self._broken or Violation(invariant, expected, found)
            raise self._broken

    @contextmanager
    def checking(self, invariant: str = "") -> Iterator[None]:
        """Let a Violation inside the block end the run, as an invariant of this name if one is given."""
        try:
            yield
        except Violation as violation:
            name = invariant or violation.invariant
            self.demand(False, name, violation.expected, violation.found)

    def run_until(self, time_us: int) -> None:
        """Raises Violation."""
        while self.kernel.now_us < time_us:
            self.kernel.run_until(min(time_us, self.kernel.now_us + 100_000))
            if self._broken is not None:
                raise self._broken
            self._nobody_misses_anything()

    def _nobody_misses_anything(self) -> None:
        """Check reports of lost winners: an outdated end alone is no proof."""
        if self.topic.faulted_us >= 0:
            return
        for machine in self.machines.values():
            self.demand(
                not isinstance(machine.failure, AnchorLostError | LostWinnersError),
                NOTHING_LOST,
                f"{machine.name} reads on, since the topic has lost nothing",
                f"it has stopped: {machine.failure}",
            )

    # -- what happens to it

    def holder(self) -> Machine | None:
        """Return the coordinator that holds the newest term."""
        return self.machines.get(self.witness.image.topology.coordinator.holder)

    @property
    def victims(self) -> dict[str, Machine]:
        """Return the targets of faults."""
        return {**self.machines, **{each.name: each for each in self.routers}}

    def lose_topic(self, *, silent: bool) -> list[bytes]:
        """Recreate the topic without records, and return the old ones."""
        had = [*self.topic.records]
        self.topic.make_anew(self._topic_id(), silent=silent)
        self.witness.hurt(0, anew=True)
        self.trace(f"the topic is lost, silently: {silent}")
        return had

    def cut(self, key: int, pairs: Iterable[tuple[str, str]], seconds: float) -> None:
        """Cut the connections from the first to the second process of each pair for this time."""
        cut, until_us = frozenset(pairs), self.kernel.now_us + us(seconds)
        for name in sorted({name for pair in cut for name in pair}):
            self.read_availability.cuts(name, until_us)
        self.network.cut(key, cut)
        self.kernel.at(until_us, None, self.network.mend, key)

    def ages_end(self) -> None:
        """Begin a new age: epochs were lost, or nodes removed by force, so rows of a quorum may be lost, too.
        This holds until no process uses the lost epochs. Later writes may be lost by the next such loss.
        """
        if self.clients or self.routers:
            self.rows.age += 2 if self._ages_ending else 1
            self._ages_ending += 1
            self.kernel.at(self.kernel.now_us + us(KNOWN_S), None, self._age_begins)

    def _age_begins(self) -> None:
        self._ages_ending -= 1
        self.rows.age += not self._ages_ending

    def roll_back(self, share: float, *, silent: bool) -> list[bytes]:
        """Only a share of what it holds is left; what it had."""
        topic = self.topic
        had = [*topic.records]
        left = int((topic.high - topic.begin) * share)
        topic.roll_back(topic.begin + left, silent=silent)
        self.witness.hurt(left, anew=False)
        self.trace(f"the topic goes back to offset {topic.high}, silently: {silent}")
        return had

    def heal(self) -> None:
        """No fault from now on: all machines are on, and reach each other."""
        self.network.mend_all()
        self.network.weather = FINE
        self.step_faults.leave()
        self.rivals.leave()
        self.delayed_requests.end()
        self.stale_leaders.end()
        self.swaps.end()
        self.older_disk_copies.end()
        for machine in self.victims.values():
            machine.paused_until_us = min(machine.paused_until_us, self.kernel.now_us)
            machine.is_off = False
            machine.slow_until_us = 0
            machine.disk.trap = -1
            machine.disk.full = False
            machine.boot()

    def end(self) -> None:
        """End all processes."""
        for machine in (*self.victims.values(), *self.workers, *self.requesters):
            machine.is_off = True
            machine.crash()

    def _topic_id(self) -> str:
        return f"topic-{self.chance.getrandbits(64):016x}"
