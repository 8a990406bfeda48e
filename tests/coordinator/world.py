"""A cluster in memory and in virtual time around ``next_steps``, with hooks to lose whatever is sent.

Every command, order and report passes ``World.event`` before and after it takes effect, so a test can
enumerate all of these moments and let somebody crash there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stele.coordinator.steps import Limits, Memory, Observed, Steps, next_steps
from stele.domain.acks import AckTable
from stele.domain.commands import (
    AnyCommand,
    ClaimCoordinator,
    CreateKeyspace,
    Envelope,
    FoundCluster,
    Join,
    Rejection,
    command_name,
)
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.names import NodeState, OrderKind, ReportStatus
from stele.domain.reports import ReportTable
from tests.coordinator import invariants

LOG_ID = bytes(15) + b"\x07"
TICK_S = 0.25
HEARTBEAT_S = 0.5
RESTART_S = 3.0
RF = 2


class Crash(Exception):
    """Whoever acts dies here."""


@dataclass
class SimNode:
    """One node. ``fails`` counts the failures still to report; ``mute`` is heard but does no work."""

    node_id: str
    image: Image = EMPTY
    alive: bool = True
    applies: bool = True
    mute: bool = False
    fails: int = 0
    boot: int = 1
    sequence: int = 0
    holds: int | None = None
    beat_at_s: float = 0.0
    orders: list[Order] = field(default_factory=list)

    def ack(self, newest: Image) -> Ack:
        if self.applies:
            self.image = newest
        topology = self.image.topology.topology
        self.sequence += 1
        return Ack(
            node_id=self.node_id,
            boot_id=f"{self.boot:04d}",
            sequence=self.sequence,
            epoch=self.image.epoch,
            version=topology.version,
            fence_version=topology.fence_version,
            oldest_version_in_use=self.holds or topology.version,
        )


class Brain:
    """A coordinator process: all that it knows is lost with it."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.memory = Memory()
        self.acks = AckTable()
        self.reports = ReportTable()
        self.term = 0
        self.steps = Steps(self.memory)

    def claim(self) -> None:
        self.term = self.world.image.topology.coordinator.term + 1
        self.world.apply(ClaimCoordinator(self.name, self.term), f"claim-{self.term}")

    def look(self) -> Steps:
        world = self.world
        if world.image.topology.coordinator.term < self.term:
            self.claim()
        seen = Observed(world.image, self.acks, self.reports, self.term, world.now_s)
        self.steps = next_steps(self.memory, seen, world.limits)
        self.memory = self.steps.memory
        for order in self.steps.orders:
            world.event(f"order {order.kind}", lambda order=order: world.deliver(order))
        for envelope in self.steps.commands:
            name = command_name(envelope.command)
            world.event(f"append {name}", lambda envelope=envelope: world.submit(envelope))
        return self.steps


class World:
    def __init__(self) -> None:
        self.limits = Limits()
        self.now_s = 0.0
        self.images = [EMPTY]
        self.epochs: list[Epoch] = []
        self.rejections: list[Rejection] = []
        self.nodes: dict[str, SimNode] = {}
        self.brain = Brain(self, "c1")
        self.zombies: list[Brain] = []
        self.log_down_until_s = 0.0
        self.on_event: Callable[[str, str], None] = lambda _what, _when: None
        self.events: list[str] = []
        self._waiting_reports: list[Report] = []

    @property
    def image(self) -> Image:
        return self.images[-1]

    @property
    def version(self) -> int:
        return self.image.topology.topology.version

    def apply(self, command: AnyCommand, request_id: str = "") -> Rejection | None:
        request_id = request_id or f"request-{len(self.epochs)}-{command_name(command)}"
        return self.submit(Envelope(request_id=request_id, command=command, actor="ada"))

    def submit(self, envelope: Envelope) -> Rejection | None:
        """As the metadata log does: once for each request id, nothing while it is down."""
        image = self.image
        if self.now_s < self.log_down_until_s:
            return None
        if image.decided is not None and image.decided.candidates(envelope.request_id):
            return None
        decision = decide(image, envelope, round(self.now_s * 1000))
        if isinstance(decision, Rejection):
            self.rejections.append(decision)
            return decision
        epoch = Epoch(
            prev_state_id=image.state_id,
            state_id=(image.epoch + 1).to_bytes(16, "big"),
            log_id=LOG_ID,
            epoch=image.epoch + 1,
            request_id=envelope.request_id,
            command=command_name(envelope.command),
            facts=decision,
        )
        after = evolve(image, epoch)
        applied = {n: (node.image, node.holds) for n, node in self.nodes.items()}
        invariants.check_step(self.images, after, epoch.command, applied)
        self.epochs.append(epoch)
        self.images.append(after)
        return None

    def event(self, what: str, take_effect: Callable[[], object]) -> None:
        """Something happens that may be lost: ``on_event`` may raise Crash before or after it."""
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

    def report(self, order: Order) -> None:
        """A report of success that was long on its way."""
        self._waiting_reports.append(report_of(order, ReportStatus.SUCCESS))

    def add(self, names: str) -> None:
        """Start nodes, which ask to join; the rack of ``a1`` is ``a``."""
        for name in names.split():
            self.nodes[name] = SimNode(name)
            joining = Join(
                node_id=name,
                cluster="demo",
                address=f"http://{name}",
                dc="dc1",
                rack=name[0],
                num_tokens=2,
            )
            assert self.apply(joining, f"join-{name}") is None

    def tick(self) -> Steps:
        """A quarter of a second: heartbeats, reports, one look of each coordinator."""
        self.now_s += TICK_S
        for node in self.nodes.values():
            if node.alive and self.now_s >= node.beat_at_s:
                node.beat_at_s = self.now_s + HEARTBEAT_S
                ack = node.ack(self.image)
                for brain in (self.brain, *self.zombies):
                    brain.acks = brain.acks.with_ack(ack, self.now_s)
        waiting, self._waiting_reports = self._waiting_reports, []
        try:
            for report in waiting:
                self.event("report", lambda report=report: self._hear(report))
            for zombie in self.zombies:
                self._look_as_zombie(zombie)
            return self.brain.look()
        except Crash:
            return Steps(self.brain.memory, waiting_for="a restart")

    def _look_as_zombie(self, zombie: Brain) -> None:
        hook, self.on_event = self.on_event, lambda _what, _when: None
        try:
            zombie.look()
        finally:
            self.on_event = hook

    def _hear(self, report: Report) -> None:
        for brain in (self.brain, *self.zombies):
            brain.reports = brain.reports.with_report(report, self.now_s)

    def run(self, seconds: float) -> Steps:
        steps = self.tick()
        end = self.now_s + seconds - TICK_S
        while self.now_s < end:
            steps = self.tick()
        return steps

    def until(self, condition: Callable[[], object], what: str, limit_s: float = 300) -> float:
        """Virtual seconds that it took."""
        began_s = self.now_s
        while not condition():
            assert self.now_s - began_s < limit_s, f"not in {limit_s} s: {what}; {self.brain.steps}"
            self.tick()
        return self.now_s - began_s

    def settled(self) -> bool:
        topology = self.image.topology
        return (
            topology.operation is None
            and not self.image.requests.unfinished()
            and topology.topology.fence_version == topology.topology.version
            and all(n.cleanup == "clean" for n in self.image.membership.nodes.values())
        )

    def settle(self, limit_s: float = 300) -> float:
        return self.until(self.settled, "everything done", limit_s)

    def replace_brain(self, name: str = "", *, zombie: bool = False) -> None:
        """The coordinator is gone, or believes itself to act still; another claims the next term."""
        if zombie:
            self.zombies.append(self.brain)
        self.brain = Brain(self, name or f"c{self.image.topology.coordinator.term + 1}")
        self.brain.term = self.image.topology.coordinator.term + 1

    def state(self, node_id: str) -> NodeState:
        node = self.image.node(node_id)
        assert node is not None
        return node.state

    def orders(self, node_id: str, kind: OrderKind = OrderKind.STREAM) -> list[Order]:
        return [order for order in self.nodes[node_id].orders if order.kind is kind]


def report_of(order: Order, status: ReportStatus, bytes_done: int = 0) -> Report:
    return Report(
        node_id=order.node_id,
        term=order.term,
        index=order.index,
        kind=order.kind,
        version=order.version,
        session=order.session,
        request_id=order.request_id,
        status=status,
        bytes_done=bytes_done,
        bytes_total=100,
        error="disk full" if status is ReportStatus.FAILED else "",
    )


def empty_cluster() -> World:
    world = World()
    world.apply(FoundCluster("demo/1", LOG_ID.hex()))
    world.brain.claim()
    return world


def three_nodes(rf: int = RF) -> World:
    """Nodes in three racks, all normal, with the keyspace ``library``."""
    world = empty_cluster()
    world.add("a1 b1 c1")
    world.settle()
    assert world.apply(CreateKeyspace("library", {"dc1": rf})) is None
    return world
