"""A cluster in memory and in virtual time around ``next_steps``, with hooks to lose any message.

Every command, order and report passes ``World.event`` before and after it takes effect, so a test can
enumerate all of these moments and inject a crash.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial

from stele.coordinator.model import ReplicaLiveness
from stele.coordinator.steps import Limits, Memory, Observed, Steps, next_steps
from stele.domain.balancer.load import NO_LOADS, Conditions, LoadTable
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    ClaimCoordinator,
    CreateKeyspace,
    CreateTable,
    Envelope,
    FoundCluster,
    Join,
    Leave,
    Rejection,
    Remove,
    Replace,
    command_name,
)
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Ack, Order, Report, ReportTable
from stele.domain.model.requests import RequestChanged
from stele.domain.model.transitions import Transition
from stele.domain.names import BALANCER, NodeState, OrderKind, ReportStatus
from stele.domain.observed_time import ObservedTime
from stele.domain.topology.barriers import AckTable
from stele.tablet_balancer.failures import Failures
from stele_simulator.invariants import rows_are_kept
from tests.coordinator.invariants import Applied, Invariants
from tests.coordinator.replicas import SimReplica, heard_by
from tests.domain.epochs import LOG_ID, History

TICK_S = 0.25
HEARTBEAT_S = 0.5
BALANCE_S = 1.0
RESTART_S = 3.0
RF = 2


class Crash(Exception):
    """The active coordinator dies here."""


@dataclass
class SimNode:
    """One node.

    ``fails`` counts the failures still to report. A ``mute`` node sends acks but does no work. A node that
    does not ``prepare`` has not separated its rows for any split.
    """

    node_id: str
    image: Image = EMPTY
    alive: bool = True
    applies: bool = True
    mute: bool = False
    prepares: bool = True
    fails: int = 0
    boot: int = 1
    sequence: int = 0
    holds: int | None = None
    beat_at_s: float = 0.0
    orders: list[Order] = field(default_factory=list)

    def ack(self, newest: Image) -> Ack:
        if self.applies:
            self.image = newest
        topology = self.image.topology
        self.sequence += 1
        return Ack(
            node_id=self.node_id,
            boot_id=f"{self.boot:04d}",
            sequence=self.sequence,
            epoch=self.image.epoch,
            version=topology.version,
            fence_version=topology.fence_version,
            oldest_version_in_use=self.holds or topology.version,
            host_id=f"host-{self.node_id}",
            prepared=self.image.requests.resizing() if self.prepares else (),
        )


class Brain:
    """A coordinator process. Its death loses all of its state."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.world = world
        self.memory = Memory()
        self.acks = AckTable()
        self.reports = ReportTable()
        self.refusals: dict[str, Rejection] = {}
        self.heard: dict[str, ReplicaLiveness] = {}
        self.reading = ObservedTime(world.limits.down_after_s)
        self.term = 0
        self.steps = Steps(self.memory)

    def claim(self) -> None:
        self.term = self.world.image.topology.coordinator.term + 1
        self.world.apply(ClaimCoordinator(self.name, self.term), f"claim-{self.term}")

    def hear(self, ack: Ack) -> None:
        self.acks = self.acks.with_ack(ack, self.world.now_s)
        self.reading = self.reading.confirmed(self.world.now_s)

    def look(self) -> Steps:
        world = self.world
        if world.image.topology.coordinator.term < self.term:
            self.claim()
        seen = Observed(
            world.image,
            self.acks,
            self.reports,
            self.term,
            world.now_s,
            {**self.refusals},
            wall_ms=world.history.at_ms,
            replicas=self.heard,
            reading=self.reading,
        )
        self.steps = next_steps(self.memory, seen, world.limits)
        self.memory = self.steps.memory
        for order in self.steps.orders:
            world.event(f"order {order.kind}", partial(world.deliver, order))
        for envelope in self.steps.commands:
            name = command_name(envelope.command)
            world.event(f"append {name}", partial(self._submit, envelope))
        return self.steps

    def _submit(self, envelope: Envelope) -> None:
        refusal = self.world.submit(envelope)
        if refusal is not None:
            self.refusals[envelope.request_id] = refusal


class World:
    """Nodes, one active coordinator, others that assume to be active, and the log between them.

    ``refuse`` may answer a command in place of the metadata log.
    """

    def __init__(self) -> None:
        self.limits = Limits()
        self.now_s = 0.0
        self.invariants = Invariants()
        self.history = History(self._judge)
        self.nodes: dict[str, SimNode] = {}
        self.replicas: dict[str, SimReplica] = {}
        """Replicas of the archive."""
        self.brain = Brain(self, "c1")
        self.zombies: list[Brain] = []
        self.log_down_until_s = 0.0
        self.refuse: Callable[[Envelope], Rejection | None] = lambda _envelope: None
        self.on_event: Callable[[str, str], None] = lambda _what, _when: None
        self.events: list[str] = []
        self.balances = False
        self.failures = Failures()
        """Failures of a balancer's moves, if there is one."""
        self.loads: Callable[[Image], LoadTable] = lambda _image: NO_LOADS
        """Loads that the nodes of an image report to the balancer."""
        self._waiting_reports: list[Report] = []
        self._last_id = 0

    @property
    def image(self) -> Image:
        return self.history.image

    @property
    def images(self) -> list[Image]:
        return self.history.images

    @property
    def epochs(self) -> list[Epoch]:
        return self.history.epochs

    @property
    def version(self) -> int:
        return self.image.topology.version

    @property
    def now_ms(self) -> int:
        """Return the time of the balancer's clock."""
        return self.history.at_ms + round(1000 * self.now_s)

    def _judge(self, before: Image, after: Image, epoch: Epoch) -> None:
        applied: Applied = {n: (node.image, node.holds) for n, node in self.nodes.items()}
        self.invariants.check_step(before, after, epoch, applied)
        for fact in epoch.facts:
            if isinstance(fact, RequestChanged) and fact.request.actor == BALANCER:
                self.failures.note(fact.request, self.now_s, before.membership.excluded())

    def apply(self, command: AnyCommand, request_id: str = "") -> Rejection | None:
        request_id = request_id or self._next_id(command)
        return self.submit(Envelope(request_id=request_id, command=command, actor="ada"))

    def submit(self, envelope: Envelope) -> Rejection | None:
        """Submit like the metadata log: one outcome for each request id, none while the log is down."""
        if self.now_s < self.log_down_until_s:
            return None
        return self.refuse(envelope) or self.history.submit(envelope)

    def event(self, what: str, take_effect: Callable[[], object]) -> None:
        """Take an effect that may be lost: ``on_event`` may raise Crash before or after it."""
        self.events.append(what)
        self.on_event(what, "before")
        take_effect()
        self.on_event(what, "after")

    def deliver(self, order: Order) -> None:
        node = self.nodes[order.node_id]
        if not node.alive:
            return
        node.orders.append(order)
        if node.mute:
            return
        failed = node.fails > 0
        node.fails -= 1 if failed else 0
        self._waiting_reports.append(
            report_of(order, ReportStatus.FAILED if failed else ReportStatus.SUCCESS)
        )

    def crash(self, name: str) -> None:
        """Kill a node. Its unsent messages are lost, and its next process starts a new boot."""
        node = self.nodes[name]
        node.alive, node.boot, node.sequence = False, node.boot + 1, 0
        self._waiting_reports = [r for r in self._waiting_reports if r.node_id != name]

    def report(self, order: Order) -> None:
        """Deliver a report of success that was delayed."""
        self._waiting_reports.append(report_of(order, ReportStatus.SUCCESS))

    def add(
        self, names: str, dc: str = "dc1", rack: str = "", num_tokens: int = 2, shards: int = 1
    ) -> None:
        """Start nodes that request to join. The default rack of ``a1`` is ``a``."""
        for name in names.split():
            self.nodes[name] = SimNode(name)
            joining = Join(
                node_id=name,
                cluster="demo",
                address=f"http://{name}",
                dc=dc,
                rack=rack or name[0],
                num_tokens=num_tokens,
                host_id=f"host-{name}",
                shards=shards,
            )
            assert self.apply(joining, f"join-{name}") is None

    def join_at(self, places: str) -> None:
        """Start nodes at places such as ``dc1/r1/a1``, and run until they have joined."""
        for place in places.split():
            dc, rack, name = place.split("/")
            self.add(name, dc=dc, rack=rack)
        self.run()

    def create_table(
        self,
        replication: dict[str, int],
        tablets: int,
        racks: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Create ``music.songs`` in a keyspace with tablets."""
        keyspace = CreateKeyspace(
            "music",
            replication,
            tablets=True,
            initial_tablets=tablets,
            racks=racks or {},
        )
        assert self.apply(keyspace) is None
        assert self.apply(CreateTable("music.songs")) is None

    def add_replicas(self, names: str, dc: str = "dc1", rack: str = "") -> None:
        """Start catch-up replicas, which announce themselves. Each has its own rack by default."""
        for name in names.split():
            self.replicas[name] = SimReplica(name, dc, rack or name)
            self.replicas[name].look(self)

    def replace(
        self,
        name: str,
        dead: str,
        *,
        force: bool = False,
        rack: str = "",
        zero_token: bool = False,
        shards: int = 1,
    ) -> Rejection | None:
        """Start a node that requests to replace a dead one."""
        row = self.image.node(dead) or self.image.membership.nodes["a1"]
        self.nodes[name] = SimNode(name)
        asked = Replace(
            node_id=name,
            replaced_id=dead,
            cluster="demo",
            address=row.address,
            dc=row.dc,
            rack=rack or row.rack,
            force=force,
            zero_token=zero_token,
            host_id=f"host-{name}",
            shards=shards,
        )
        return self.apply(asked, f"replace-{name}")

    def tick(self) -> Steps:
        """Advance by a quarter of a second: heartbeats, reports, one look of each coordinator."""
        self.now_s += TICK_S
        self._start_nodes()
        if self.balances and self.now_s % BALANCE_S == 0:
            self.run_balancer()
        for node in self.nodes.values():
            if node.alive and self.now_s >= node.beat_at_s:
                node.beat_at_s = self.now_s + HEARTBEAT_S
                ack = node.ack(self.image)
                for brain in (self.brain, *self.zombies):
                    brain.hear(ack)
        for replica in self.replicas.values():
            replica.look(self)
        for brain in (self.brain, *self.zombies):
            brain.heard = heard_by(brain)
        waiting, self._waiting_reports = self._waiting_reports, []
        try:
            for report in waiting:
                self.event("report", partial(self._hear, report))
            for zombie in self.zombies:
                self._look_as_zombie(zombie)
            return self.brain.look()
        except Crash:
            return Steps(self.brain.memory)

    def run_balancer(self) -> None:
        """Submit the proposals of the balancer, with its cancels of impossible drains."""
        members = self.image.membership.taking_part()
        down = {name for name in members if name in self.nodes and not self.nodes[name].alive}
        conditions = Conditions(
            down,
            self.failures.avoided(self.now_s) & members.keys(),
            self.loads(self.image),
            self.now_ms,
            self.failures.paused(self.now_s),
            self.failures.failing(self.now_s) & members.keys(),
        )
        for command, why in proposal(self.image, conditions).commands():
            name = self._next_id(command)
            envelope = Envelope(request_id=name, command=command, actor=BALANCER, reason=why)
            self.submit(envelope)

    def _next_id(self, command: AnyCommand) -> str:
        self._last_id += 1
        return f"{command_name(command)}-{self._last_id}"

    def _start_nodes(self) -> None:
        """Start nodes that requested to join without ``add``."""
        for node_id, node in self.image.membership.nodes.items():
            if node_id not in self.nodes and node.state is not NodeState.LEFT:
                self.nodes[node_id] = SimNode(node_id)

    def _look_as_zombie(self, zombie: Brain) -> None:
        hook, self.on_event = self.on_event, lambda _what, _when: None
        try:
            zombie.look()
        finally:
            self.on_event = hook

    def _hear(self, report: Report) -> None:
        for brain in (self.brain, *self.zombies):
            brain.reports = brain.reports.with_report(report, self.now_s)

    def pass_s(self, seconds: float) -> Steps:
        """Let time pass. Return the steps of the last look."""
        steps = self.tick()
        end = self.now_s + seconds - TICK_S
        while self.now_s < end:
            steps = self.tick()
        return steps

    def until(self, condition: Callable[[], object], what: str, limit_s: float = 300) -> float:
        """Run until the condition holds. Return the virtual seconds that it took."""
        began_s = self.now_s
        while not condition():
            assert self.now_s - began_s < limit_s, f"not in {limit_s} s: {what}; {self.brain.steps}"
            self.tick()
        return self.now_s - began_s

    def fenced(self) -> bool:
        return self.image.topology.settled()

    def at_rest(self) -> bool:
        """Return whether nothing is open, requested, unfenced, unpublished or possible to clean up."""
        image = self.image
        return (
            not image.topology.transitions
            and not image.requests.unfinished()
            and image.topology.settled()
            and not image.cdc.unpublished()
            and (
                rows_are_kept(image)
                or not any(
                    node.cleanup_since and self.nodes[name].alive
                    for name, node in image.membership.normal().items()
                )
            )
        )

    def run(self, limit_s: float = 300) -> float:
        """Run until everything is done. Return the virtual seconds that it took."""
        return self.until(self.at_rest, "everything done", limit_s)

    def replace_brain(self, name: str = "", *, zombie: bool = False) -> None:
        """Replace the coordinator by one with the next term. A ``zombie`` believes it is active."""
        if zombie:
            self.zombies.append(self.brain)
        self.brain = Brain(self, name or f"c{self.image.topology.coordinator.term + 1}")
        self.brain.term = self.image.topology.coordinator.term + 1

    def state(self, node_id: str) -> NodeState:
        node = self.image.node(node_id)
        assert node is not None
        return node.state

    def transition(self, request_id: str) -> Transition:
        """Return the open transition of a request."""
        found = self.image.topology.of_request(request_id)
        assert found is not None, f"{request_id} is not under way"
        return found

    def orders(self, node_id: str, kind: OrderKind = OrderKind.STREAM) -> list[Order]:
        return [order for order in self.nodes[node_id].orders if order.kind is kind]


def copy_of(world: World) -> World:
    """Return a copy of the world that continues separately. Immutable parts are shared."""
    history = world.history
    frozen = (*history.images, *history.epochs, world.limits)
    return deepcopy(world, {id(each): each for each in frozen})


def again(begin: Callable[[], tuple[World, str]]) -> Callable[[], tuple[World, str]]:
    """Return a function that starts like ``begin``, which runs only once."""
    first = cache(begin)

    def copied() -> tuple[World, str]:
        world, request_id = first()
        return copy_of(world), request_id

    return copied


def report_of(order: Order, status: ReportStatus, bytes_done: int = 0) -> Report:
    return Report(
        node_id=order.node_id,
        term=order.term,
        index=order.index,
        kind=order.kind,
        session=order.session,
        request_id=order.request_id,
        status=status,
        bytes_done=bytes_done,
        bytes_total=100,
        error="disk full" if status is ReportStatus.FAILED else "",
        manifest="f" * 64 if order.kind is OrderKind.SNAPSHOT else "",
    )


def empty_cluster() -> World:
    world = World()
    assert world.apply(FoundCluster("demo/1", LOG_ID.hex())) is None
    world.brain.claim()
    return world


def three_nodes(rf: int = RF) -> World:
    """Return nodes in three racks, all normal, with the keyspace ``library``."""
    world = empty_cluster()
    world.add("a1 b1 c1")
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": rf})) is None
    return world


def nodes_that_left() -> World:
    """Return a world: ``d1`` left, ``e1`` was removed, ``g1`` replaced ``f1``, and ``h1`` was cancelled."""
    world = three_nodes()
    world.add("d1 e1 f1")
    world.run()
    assert world.apply(Leave("d1")) is None
    world.run()
    world.crash("e1")
    world.pass_s(7)
    assert world.apply(Remove(node_id="e1")) is None
    world.run()
    world.crash("f1")
    world.pass_s(7)
    assert world.replace("g1", "f1") is None
    world.run()
    world.add("h1")
    assert world.apply(Cancel(world.image.membership.nodes["h1"].request_id)) is None
    world.run()
    return world
