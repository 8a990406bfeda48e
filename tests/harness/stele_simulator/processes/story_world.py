"""A small world of whole processes in which stories are played: nodes with their tokens, an administrator, and
clients that write through one node, or anywhere.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from msgspec.structs import replace

from stele.domain import commands
from stele.domain.commands import AnyCommand, Envelope, Outcome
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.names import UNFINISHED, CommitMode, NodeState
from stele.domain.ring.partitioner import token_of
from stele.domain.rules.schema import all_off
from stele.log.codec import decode_epoch
from stele.runtime.answers.coordinator import WaitProgress
from stele_simulator.founding import Founding
from stele_simulator.invariants import rows_are_kept
from stele_simulator.kernel import us
from stele_simulator.messages import KvOp
from stele_simulator.network import FINE
from stele_simulator.processes.agreement import AgreementClient
from stele_simulator.processes.balancing import BalancerMachine
from stele_simulator.processes.callers import Caller
from stele_simulator.processes.changes import Consumer
from stele_simulator.processes.columns import ColumnClient
from stele_simulator.processes.convergence import check_observations, late_consumers, unread_rows
from stele_simulator.processes.data import OK, DataClient
from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.guards import GuardMachine
from stele_simulator.processes.interposed import Current
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.members import FOLDER, NodeMachine
from stele_simulator.processes.step_faults import IDLE, states_entered
from stele_simulator.processes.story_checks import check_acknowledged_rows
from stele_simulator.processes.world import World

DATA: Final = "data"
"""The keyspace that is there from the beginning."""
THINK_S: Final = 0.25
KEYS: Final = 24
CLIENTS: Final = 2
AGAIN_S: Final = 0.3
SLOW: Final = 10.0
SETTLED_S: Final = 30.0
"""Until whatever was asked by the name's data of before has ended."""
LOOK_AGAIN_S: Final = 1.0
LAST_WRITES_S: Final = 5.0
REST_LIMIT_S: Final = 600.0
"""Virtual seconds after the last fault in which the cluster must come to rest (I10)."""
BACKUPS: Final = f"{FOLDER}/backups/"
QUIET: Final = Disaster(
    seed=0,
    profile="story",
    weather=FINE,
    replicas=0,
    nodes=0,
    members=0,
    callers=0,
    clients=0,
    snapshot_epochs=1_000_000,
)


class StoryNode(NodeMachine):
    """A node with chosen tokens, in a given rack."""

    def __init__(self, name: str, world: World, join: commands.Join | commands.Replace) -> None:
        super().__init__(name, world)
        self._rack = join.rack
        self._shards = join.shards
        if isinstance(join, commands.Join):
            self.initial_tokens = ",".join(map(str, join.initial_tokens))
        else:
            self.replaces = join.replaced_id

    def _job_luck(self, random: Random) -> float:
        """Stories need streams that last, of a few rows: what its threads do takes up to 40 ms."""
        return SLOW * super()._job_luck(random)

    @property
    def rack(self) -> str:
        return self._rack

    @property
    def dc(self) -> str:
        return "dc1"

    @property
    def shards(self) -> int:
        return self._shards


class Admin(Caller):
    """Sends requests, and repeats them under the same id until their outcome is known."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.waiting = 0
        self.outcomes: list[Outcome] = []

    def request(self, command: AnyCommand) -> str:
        envelope = self.envelope(command, reason="it is told so")
        self.waiting += 1
        self.spawn(self._see_through(envelope))
        return envelope.request_id

    async def _see_through(self, envelope: Envelope) -> None:
        outcome = await self.submit(envelope)
        while outcome is None:
            await self.sleep(AGAIN_S)
            outcome = await self.submit(envelope)
        self.waiting -= 1
        self.outcomes.append(outcome)
        refused = outcome.rejection.code if outcome.rejection else ""
        self.world.trace(f"{envelope.request_id[:8]} {refused or f'applied {outcome.epoch}'}")


class StoryClient(DataClient):
    """Writes, and reads where it may ask any node. ``node_name`` is the only one that it knows; empty: all."""

    def __init__(self, name: str, world: "StoryWorld", written: str, node_name: str = "") -> None:
        super().__init__(name, world)
        self.story_world = world
        self.written = written
        """A keyspace or a table; empty: whatever tables there are."""
        self.node_name = node_name
        self.tries = 0
        self.acknowledged = 0

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(THINK_S * 2 * self.chance.random())
            names = (
                [self.written]
                if self.written
                else sorted(self.world.witness.image.schema.table_ids)
            )
            if not names:
                continue
            name = self.chance.choice(names)
            self.story_world.written.add(name)
            key = f"{name}/key{self.chance.randrange(KEYS)}"
            if self.node_name or self.chance.random() < 0.5:
                self.tries += 1
                self.acknowledged += await self._write(key)
            else:
                await self._read(key)

    async def _call(self, node: str, key: str, body: bytes | None) -> tuple[int, bytes]:
        """Make one request, and check that truncated data is never read, whatever its id."""
        began_us, truncations = self.world.kernel.now_us, self.world.truncations
        status, content = await super()._call(node, key, body)
        if status == OK and body is not None:
            truncations.written(body)
        elif status == OK and key.rpartition("/")[0] not in self.story_world.restored:
            truncations.read(key.rpartition("/")[0], content, began_us)
        return status, content

    def _node(self) -> str:
        return self.node_name or super()._node()

    def _begun(self, key: str, value: str | None) -> KvOp:
        """Return the beginning of the data that has the name now."""
        name, _, rest = key.rpartition("/")
        return super()._begun(f"{self.story_world.data_id(name)}/{rest}", value)

    def _counts(self, pending: KvOp) -> bool:
        return not self.story_world.is_new_or_gone(pending.key.partition("/")[0])


class StoryWorld(World):
    """Everything in a story. Make and run it inside ``interposed``."""

    def __init__(self, seed: int, current: Current, *, keep_trace: bool = False) -> None:
        super().__init__(replace(QUIET, seed=seed), current, keep_trace=keep_trace)
        self.admins = []
        self.admin = Admin("admin", self)
        self.gone = set[str]()
        self.written = set[str]()
        """Keyspaces and tables that clients write to."""
        self.restored = set[str]()
        """Tables to which a snapshot was brought back, with what was truncated since."""
        self.declarations: dict[str, tuple[str, ...]] = {}
        """Request id -> the nodes that it declares dead."""
        self._ambushes: list[tuple[str, Callable[[], None]]] = []
        self._data_since_us: dict[str, int] = {}
        """By the id of data: since when it is there."""
        self.witness.on_step = self._stepped
        self.web.machines = {**self.machines}

    # -- beginning

    def found_with(
        self,
        joins: list[commands.Join],
        keyspaces: Mapping[str, dict[str, int]],
        features: tuple[str, ...] = (),
    ) -> None:
        """The first epochs, and every process."""
        seed = f"{self.scenario.profile}/{self.scenario.seed}"
        founding = Founding(seed, self.topic.topic_id, features)
        nodes = [self._node(join.node_id, join) for join in joins]
        founding.join_all(
            replace(
                self.join_of(node.name, node.identity().host_id, node.dc, node.rack, join.shards),
                num_tokens=len(join.initial_tokens),
                initial_tokens=join.initial_tokens,
            )
            for node, join in zip(nodes, joins, strict=True)
        )
        for name, replication in keyspaces.items():
            founding.apply(commands.CreateKeyspace(name, replication))
        self.begin(founding)
        for number in range(CLIENTS):
            StoryClient(f"d{number + 1}", self, DATA).start()

    def begin_older(self) -> None:
        """Start processes with the older release."""
        self.releases.is_on = True
        for machine in self.machines.values():
            machine.installed = self.first_build

    def add_node(self, name: str, join: commands.Join | commands.Replace) -> None:
        """It starts, and asks to become a member."""
        self._node(name, join).boot()

    def _node(self, name: str, join: commands.Join | commands.Replace) -> StoryNode:
        node = StoryNode(name, self, join)
        self.nodes.append(node)
        self.machines[name] = self.web.machines[name] = node
        return node

    def node(self, name: str) -> NodeMachine:
        return next(node for node in self.nodes if node.name == name)

    def attach_client(self, node: str, written: str = DATA) -> StoryClient:
        """A client that writes through this node alone, to a keyspace or a table."""
        client = StoryClient(f"client of {node}", self, written, node)
        client.start()
        return client

    def use_table(self, name: str) -> None:
        """A client writes and reads in a table, or in all that there are."""
        StoryClient(f"client in {name or 'tables'}", self, name).start()

    def use_columns(self, table: str, node: str = "") -> None:
        """A client writes and reads single columns of a table, at one node or at any."""
        name = f"columns{len(self.column_clients) + 1}"
        self.column_clients.append(ColumnClient(name, self, table, node))
        self.column_clients[-1].start()

    def follow_changes(self, table: str) -> None:
        """A consumer follows the changes of a captured table until the story is at rest."""
        self.consumers.append(Consumer(f"consumer{len(self.consumers) + 1}", self, table))
        self.consumers[-1].start()

    def start_guard(self) -> None:
        """Start a session guard, and a client that asks for agreement."""
        guard = GuardMachine(f"g{len(self.guards) + 1}", self)
        self.guards.append(guard)
        self.machines[guard.name] = self.web.machines[guard.name] = guard
        guard.boot()
        self.agreement_clients.append(AgreementClient(f"asks {guard.name}", self))
        self.agreement_clients[-1].start()

    def start_balancer(self) -> None:
        balancer = BalancerMachine(f"b{len(self.balancers) + 1}", self)
        self.balancers.append(balancer)
        self.machines[balancer.name] = balancer
        balancer.boot()

    # -- requests and answers

    def request(self, command: AnyCommand) -> str:
        self.trace(f"ask {command!r}"[:300])
        return self.admin.request(command)

    def give_up(self) -> None:
        """Rows may be lost from now on, until all is at rest."""
        self.rows.age += 1 - self.rows.age % 2

    def declare(self, command: commands.Remove | commands.Exclude, dead: str) -> str:
        """Where another one is out of sight, this one is down until it is decided."""
        request_id = self.request(command)
        others = self._out_of_sight() - {dead}
        self.declarations[request_id] = (dead,)
        node = self.node(dead)
        if others and node.alive:
            node.is_off = True
            node.crash()
            self._again(request_id, node)
        return request_id

    def _again(self, request_id: str, node: NodeMachine) -> None:
        if self._is_open(request_id):
            later_us = self.kernel.now_us + us(LOOK_AGAIN_S)
            self.kernel.at(later_us, None, self._again, request_id, node)
        elif node.name not in self.gone:
            node.is_off = False
            node.boot()

    def _is_open(self, request_id: str) -> bool:
        request = self.witness.image.request(request_id)
        if request is not None:
            return request.status in UNFINISHED
        return all(each.request_id != request_id for each in self.admin.outcomes)

    def _out_of_sight(self) -> set[str]:
        declared = {
            name
            for request_id, dead in self.declarations.items()
            if self._is_open(request_id)
            for name in dead
        }
        found = {*self.gone, *declared, *self.witness.image.membership.excluded()}
        return {name for name in found if not self.is_out(name)}

    def _has_quorum(self, name: str, key: str) -> bool:
        """Return whether most of the key's replicas are alive."""
        data, image = self.witness.image.schema.serving(name), self.witness.image
        if data is None:
            return False
        reads = image.ring.placements[data.placement].row_for(token_of(key.encode())).reads
        there = [
            each
            for each in reads
            if each not in self.gone and each not in image.membership.excluded()
        ]
        return 2 * len(there) > len(reads)

    def data_id(self, name: str) -> str:
        """Return the id of the data that has the name now; empty if there is none."""
        data = self.witness.image.schema.serving(name)
        return "" if data is None else data.data_id

    def is_new_or_gone(self, data_id: str) -> bool:
        """Return whether some node may still use this name for other data."""
        data = self.witness.image.schema.of_data(data_id)
        is_served = data is not None and self.data_id(data.name) == data_id
        since_us = self._data_since_us.get(data_id, 0)
        return not is_served or self.kernel.now_us - since_us < us(SETTLED_S)

    def is_out(self, name: str) -> bool:
        """It is no member, or not any more."""
        row = self.witness.image.node(name)
        return row is None or row.state is NodeState.LEFT

    def told_by_coordinator(self) -> list[WaitProgress]:
        """Return the waits of the coordinator with the newest term."""
        active = [c.driver for c in self.coordinators if c.driver is not None and c.driver.active]
        return [wait for driver in active for wait in driver.progress().waits]

    def epochs(self) -> list[tuple[Epoch, Image]]:
        """Return the epochs of the present history, each with its image."""
        found = list[tuple[Epoch, Image]]()
        for state_id, number in sorted(self.witness.line(self.witness.head).items(), key=_number):
            image = self.witness.image_at(state_id)
            assert image is not None and number == image.epoch
            found.append((decode_epoch(self.witness.records[state_id].value), image))
        return found

    def backup_files(self, name: str) -> list[str]:
        return sorted(path for path in self.node(name).disk.files if path.startswith(BACKUPS))

    # -- what happens to it

    def victim(self, who: str) -> Machine:
        holder = self.holder() if who == "coordinator" else None
        return holder or self.machines["w1" if who == "writer" else who]

    def strike(self, what: str, who: str, seconds: float) -> None:
        machine = self.victim(who)
        self.faults += 1
        self.trace(f"{what} {machine.name} for {seconds:g} s")
        if what == "wipe":
            self.gone.add(machine.name)
            machine.is_off = True
            machine.crash(power=True)
            machine.disk.wipe()
            self.stores.wiped(machine.name)
        elif what == "crash":
            machine.crash()
            machine.start_later(seconds)
        else:
            machine.pause(seconds)

    def on_state(self, state: str, strike: Callable[[], None]) -> None:
        """Do something once, right after a transition has next entered ``state``."""
        self._ambushes.append((state, strike))

    def _stepped(self, before: Image, after: Image) -> None:
        if after.ring is not before.ring or after.topology is not before.topology:
            check_acknowledged_rows(self, after)
        self._entered(before, after)

    def _entered(self, before: Image, after: Image) -> None:
        if before.schema is not after.schema:
            for name in (*after.schema.ids, *after.schema.table_ids):
                data = after.schema.serving(name)
                if data is not None:
                    self._data_since_us.setdefault(data.data_id, self.kernel.now_us)
        if not self._ambushes:
            return
        entered = {state for state, _ in states_entered(before, after)}
        if after.topology.transitions:
            entered.discard(IDLE)
        due = [strike for state, strike in self._ambushes if state in entered]
        self._ambushes = [each for each in self._ambushes if each[0] not in entered]
        for strike in due:
            self.kernel.at(self.kernel.now_us, None, strike)

    # -- convergence at the end

    def converge(self) -> None:
        """Raises Violation."""
        self._ambushes = []
        self._forget_who_is_out()
        self.heal()
        excluded = self.witness.image.membership.excluded()
        for name in sorted(self.gone):
            if not self.is_out(name) and name not in excluded:
                self.request(commands.Exclude((name,), force=True))
        self.run_until(self.kernel.now_us + us(LAST_WRITES_S))
        self.callers_work = False
        deadline_us = self.kernel.now_us + us(REST_LIMIT_S)
        while (left := self.unfinished()) and self.kernel.now_us < deadline_us:
            self._open_all()
            self._forget_who_is_out()
            self.run_until(self.kernel.now_us + us(1.0))
        self.demand(not left, "I10", f"all comes to its end within {REST_LIMIT_S:g} s", left)
        self.stores.check_clean(self.witness.image)
        self.rows.age += self.rows.age % 2
        self._read_all()
        self.witness.promises.check()

    def _forget_who_is_out(self) -> None:
        """Nodes that have left, or will never be members, end; disks that are gone stay so."""
        for node in [*self.nodes]:
            row = self.witness.image.node(node.name)
            refused = node.is_refused and (row is None or row.state is NodeState.LEFT)
            if (
                node.name in self.gone
                or refused
                or (row is not None and row.state is NodeState.LEFT)
            ):
                self.trace(f"{node.name} is out")
                self.machines.pop(node.name, None)
                node.is_off = True
                node.crash()

    def _open_all(self) -> None:
        image = self.witness.image
        if self.admin.waiting:
            return
        if image.commits.since_epoch:
            self.request(commands.RestrictCommits(mode=CommitMode.OPEN))
        for off in all_off(image.schema):
            self.request(commands.SwitchBalancingOn(off.name))

    def unfinished(self) -> str:
        """Return the reason why it is not at rest; empty if it is."""
        return next(filter(None, (self._undecided(), self._unclean(), self._unwell())), "")

    def _undecided(self) -> str:
        image = self.witness.image
        for request in image.requests.unfinished():
            waits = self.told_by_coordinator()
            return f"{request.kind} {request.request_id} is {request.status}; {waits}"
        if self.admin.waiting:
            return f"{self.admin.waiting} commands have no answer"
        if image.commits.since_epoch:
            return "the log is not open to all"
        return ""

    def _unclean(self) -> str:
        image = self.witness.image
        if image.topology.transitions or not image.topology.settled():
            return f"version {image.topology.version} is not fenced"
        normal = image.membership.normal().items()
        dirty = [name for name, row in normal if row.cleanup_since and name not in self.gone]
        return f"{dirty} need cleanup" if dirty and not rows_are_kept(image) else ""

    def _unwell(self) -> str:
        for machine in self.machines.values():
            if machine.image is None or machine.failure is not None or not machine.alive:
                return f"{machine.name} does not run ({machine.ended_by or machine.failure})"
            if machine.image.state_id != self.witness.head:
                return f"{machine.name} is behind"
        return ""

    def _read_all(self) -> None:
        """Read every existing key from a quorum, and check that all observations are possible."""
        keys = {
            f"{name}/key{number}"
            for name in self.written
            if self.data_id(name)
            for number in range(KEYS)
            if self._has_quorum(name, f"key{number}")
        }
        reader = StoryClient("reader", self, DATA)
        reader.spawn(reader.read_all(keys))
        rows = unread_rows(self)
        deadline_us = self.kernel.now_us + us(REST_LIMIT_S)
        while (keys or any(rows)) and self.kernel.now_us < deadline_us:
            self.run_until(self.kernel.now_us + us(0.1))
        self.demand(
            not keys, "I10", "a quorum answers for every key", f"nobody does for {sorted(keys)}"
        )
        self.demand(not any(rows), "I10", "a quorum answers for every row", f"not for {rows}")
        self.columns.check()
        while (late := late_consumers(self)) and self.kernel.now_us < deadline_us:
            self.run_until(self.kernel.now_us + us(0.5))
        self.demand(not late, "I10", "consumers read all changes", late)
        check_observations(self)


def _number(item: tuple[bytes, int]) -> int:
    return item[1]
