"""The shell around ``next_steps``: feeds it what comes from Kafka and sends what it says.

Nothing is kept but the log, so it may be killed at any moment: the next one claims the next term and
asks the same function.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from stele.coordinator import metrics
from stele.coordinator.desk import Desk
from stele.coordinator.election import Election
from stele.coordinator.knowledge import Memory, Observed, Steps
from stele.coordinator.progress import Rates, progress_of
from stele.coordinator.replicas import AskedReplicas
from stele.coordinator.settings import CoordinatorSettings
from stele.coordinator.steps import next_steps
from stele.domain.acks import AckTable
from stele.domain.archive.facts import Replica
from stele.domain.commands import ClaimCoordinator, Envelope, Outcome, Rejection, command_name
from stele.domain.commits.restricted import restricted_text, takes_from
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.names import COORDINATOR
from stele.domain.reports import ReportTable
from stele.domain.requests.not_taken import LATER, horizon_of
from stele.domain.topology.facts import CoordinatorChanged
from stele.log.codec import (
    DecodeError,
    decode_ack,
    decode_outcome,
    decode_report,
    encode_envelope,
    encode_order,
)
from stele.log.flows import FlowReader, FlowWriter, flow_topic
from stele.runtime.answers.coordinator import Progress, WaitKind
from stele.runtime.follow import Followed
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import wait_at_most
from stele.runtime.transport import Transport

TICK_S: Final = 0.5
"""Time passes without events too: patience runs out, and what was lost is sent again."""
GATHER_S: Final = 0.01
"""Events this close together are answered by one look; a hundred nodes' acks come in bursts."""
RECLAIM_S: Final = 3.0
"""Time between two claims. Two that both believe to be elected, which the group ends within seconds, must
not take the term from each other as fast as they can."""

log = get_logger(__name__)


class Claim(msgspec.Struct, frozen=True):
    """A claim under way; ``sent_at_s`` is when it was sent last."""

    envelope: Envelope
    term: int
    sent_at_s: float


class Driver:
    """One instance's knowledge, and the loop that acts on it while it holds the newest term."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        followed: Followed,
        commands: FlowWriter,
        orders: FlowWriter,
        transport: Transport | None = None,
    ) -> None:
        self.election = Election(
            settings.brokers, settings.cluster, settings.instance_id, self.wake
        )
        self.term = 0
        """The term that this process claimed and got; 0 when it never did."""
        self.listening_since_s = time.monotonic()
        """Who was never heard since then is down."""
        self._instance_id = settings.instance_id
        self.limits = settings.limits()
        self._followed = followed
        self._commands = commands
        self._orders = orders
        self._acks = AckTable()
        self._reports = ReportTable()
        self._replicas = AskedReplicas(self._replicas_to_ask, transport)
        self.memory = Memory()
        self._claim: Claim | None = None
        self._horizon_ms = -1
        """What the id of the next claim must be newer than, where the last one was too old."""
        self._claimed_at_s = float("-inf")
        self._sent = set[str]()
        self._refusals: dict[str, Rejection] = {}
        self._steps = self._idle("the log")
        self.rates = Rates()
        self._entered: dict[str, tuple[str, float]] = {}
        self._wake = asyncio.Event()
        followed.follower.listen(self._on_epoch)

    @property
    def image(self) -> Image:
        return self._followed.follower.image

    @property
    def active(self) -> bool:
        """Elected, and the newest term in the log is the one that this process claimed."""
        return self.election.elected and self.term == self.image.topology.coordinator.term > 0

    @property
    def caught_up(self) -> bool:
        """Whether the log was read to its end since the start, and can be read on."""
        return self._followed.caught_up.is_set() and self._followed.follower.failure is None

    def progress(self) -> Progress:
        waits = self._steps.waits
        return progress_of(self.seen(), self.limits, self.rates, waits, active=self.active)

    def wake(self) -> None:
        self._wake.set()

    def on_ack(self, value: bytes) -> None:
        """Raises DecodeError."""
        ack = decode_ack(value)
        if ack.log_id != self.image.log_id:
            foreign_messages.labels("acks").inc()
            return
        self._acks = self._acks.with_ack(ack, time.monotonic())
        self.wake()

    def on_report(self, value: bytes) -> None:
        """Raises DecodeError."""
        report = decode_report(value)
        if report.log_id != self.image.log_id:
            foreign_messages.labels("reports").inc()
            return
        self._reports = self._reports.with_report(report, time.monotonic())
        self.wake()

    def on_outcome(self, value: bytes) -> None:
        """Note that a command of this process was refused, or never will be decided. Raises DecodeError.

        What may be taken later is sent again under the same id.
        """
        outcome: Outcome = decode_outcome(value)
        if outcome.rejection is None or outcome.rejection.code in LATER:
            return
        if self._claim is not None and self._claim.envelope.request_id == outcome.request_id:
            self._claim = None  # the next one has another id
            self._horizon_ms = horizon_of(outcome.rejection)
        if outcome.request_id in self._sent:
            self._refusals[outcome.request_id] = outcome.rejection
            log.warning(
                "a command was refused",
                request_id=outcome.request_id,
                code=outcome.rejection.code,
                why=outcome.rejection.message,
            )
            self.wake()

    def on_unreadable(self, error: DecodeError) -> None:
        metrics.unreadable.inc()
        log.warning("left out a record", error=str(error))

    async def run(self) -> None:
        """Act until cancelled. Who does not know the log yet could do nothing with an election."""
        await self._followed.caught_up.wait()
        self.election.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._replicas.run())
            tasks.create_task(self._look_on())

    async def _look_on(self) -> None:
        while True:
            self._look(time.monotonic())
            await wait_at_most(self._wake, TICK_S)
            await asyncio.sleep(GATHER_S)
            self._wake.clear()

    def _look(self, now_s: float) -> None:
        self.rates = self.rates.with_samples(self.image, self._reports, now_s)
        metrics.active.set(self.active)
        idle = self._why_idle()
        if idle:
            self._claim = None
            self._steps = self._idle(idle)
        elif self.active:
            self._act()
        else:
            self._claim_term(now_s)

    def _why_idle(self) -> str:
        """What keeps this instance from acting; empty when nothing does."""
        if not self.election.elected:
            return "the active coordinator to fail"
        if self._followed.follower.failure is not None:
            return "the log, which cannot be read any further"
        if not self._followed.caught_up.is_set():
            return "the log"
        return "" if self.image.cluster else "the cluster to be created"

    def seen(self) -> Observed:
        """What this process knows now."""
        return Observed(
            self.image,
            self._acks,
            self._reports,
            self.term,
            time.monotonic(),
            self._refusals,
            self._followed.follower.state_id_of,
            time.time_ns() // 1_000_000,
            self._replicas.heard,
        )

    def _replicas_to_ask(self) -> list[Replica]:
        """None on standby: only who acts must know."""
        replicas = self.image.archive.replicas
        return [replicas[name] for name in sorted(replicas)] if self.active else []

    def _act(self) -> None:
        self._steps = next_steps(self.memory, self.seen(), self.limits)
        # a look that takes long is no absence: what came meanwhile is heard before the next one
        self.memory = msgspec.structs.replace(self._steps.memory, looked_at_s=time.monotonic())
        self._forget_old_commands()
        for envelope in self._steps.commands:
            self._send(envelope)
        for order in self._steps.orders:
            log.info("order", order=msgspec.to_builtins(order))
            metrics.sent.labels(order.kind).inc()
            self._orders.send(order.node_id, encode_order(order))

    def _claim_term(self, now_s: float) -> None:
        """Claim the term after the newest, again with the same id until the log shows an answer."""
        term = self.image.topology.coordinator.term + 1
        claim, commits = self._claim, self.image.commits
        if not takes_from(commits, COORDINATOR):
            self._claim, self._steps = None, self._idle(f"the log: {restricted_text(commits)}")
            return
        if claim is not None and now_s - claim.sent_at_s < self.limits.resend_s:
            return
        if claim is None or claim.term != term:
            if now_s - self._claimed_at_s < RECLAIM_S:
                return
            self._claimed_at_s = now_s
            envelope = Envelope(
                request_id=new_request_id(self.image.state_id, self._horizon_ms),
                command=ClaimCoordinator(self._instance_id, term),
                actor=COORDINATOR,
                reason=f"elected: {self._instance_id}",
            )
        else:
            envelope = claim.envelope
        self._claim = Claim(envelope, term, now_s)
        self._steps = self._idle(f"term {term}")
        self._send(envelope)

    def _idle(self, why: str) -> Steps:
        """Waits of a coordinator that does not act, each since it was first met."""
        desk = Desk(self.memory, self.seen(), self.limits)
        desk.wait(WaitKind.STANDBY, why)
        steps = desk.steps()
        self.memory = steps.memory
        return steps

    def _forget_old_commands(self) -> None:
        """Only the present round's commands are asked about again."""
        present = {sent.request_id for sent in self.memory.commands.values()}
        self._sent &= present
        self._refusals = {i: why for i, why in self._refusals.items() if i in present}

    def _send(self, envelope: Envelope) -> None:
        self._sent.add(envelope.request_id)
        name = command_name(envelope.command)
        envelope = msgspec.structs.replace(envelope, log_id=self.image.log_id.hex())
        log.info("command", request_id=envelope.request_id, command=name)
        metrics.sent.labels(name).inc()
        self._commands.send(envelope.request_id, encode_envelope(envelope))

    def _on_epoch(self, image: Image, delta: Delta) -> None:
        claim = self._claim
        if claim is not None and delta.epoch.request_id == claim.envelope.request_id:
            self.term = claim.term
            self._claim = None
            log.info("elected", term=self.term, epoch=image.epoch)
        elif self._has_a_namesake(image, delta):
            self.election.displaced()
        metrics.term.set(image.topology.coordinator.term)
        if image.topology.version != delta.before.topology.version:
            self._measure(image)
        if self._followed.caught_up.is_set():
            for fact in metrics.relaxations(delta):
                log.warning("a barrier was relaxed", fact=msgspec.to_builtins(fact))
        self.wake()

    def _has_a_namesake(self, image: Image, delta: Delta) -> bool:
        """Whether another process has claimed under this name. What the log held at the start does not tell:
        a former process wrote it."""
        return (
            self._followed.caught_up.is_set()
            and delta.touches(CoordinatorChanged)
            and image.topology.coordinator.holder == self._instance_id
        )

    def _measure(self, image: Image) -> None:
        """How long each transition was in the state that it has left; reports of closed sessions go."""
        now_s, topology = time.monotonic(), image.topology
        for transition in topology.open():
            state, since_s = self._entered.get(transition.transition_id, ("", now_s))
            if state != transition.state:
                metrics.steps.labels(transition.state).inc()
                if state:
                    metrics.step_seconds.labels(state).observe(now_s - since_s)
                self._entered[transition.transition_id] = (transition.state, now_s)
        for transition_id in self._entered.keys() - {*topology.transitions}:
            state, since_s = self._entered.pop(transition_id)
            metrics.step_seconds.labels(state).observe(now_s - since_s)
        cleanups = (n.cleanup_session() for n in image.membership.nodes.values())
        self._reports = self._reports.only(topology.sessions() | {*cleanups})


@asynccontextmanager
async def driving(
    settings: CoordinatorSettings, followed: Followed, transport: Transport | None = None
) -> AsyncIterator[Driver]:
    """A driver with its readers, writers and election; ``run`` is the caller's to start. It asks the catch-up
    replicas over ``transport``.
    """

    def topic(flow: str) -> str:
        return flow_topic(settings.cluster, flow)

    brokers = settings.brokers
    commands = FlowWriter(brokers, topic("commands"))
    orders = FlowWriter(brokers, topic("orders"))
    driver = Driver(settings, followed, commands, orders, transport)
    acks = FlowReader(brokers, topic("acks"), driver.on_ack, driver.on_unreadable)
    reports = FlowReader(brokers, topic("reports"), driver.on_report, driver.on_unreadable)
    outcomes = FlowReader(brokers, topic("outcomes"), driver.on_outcome, driver.on_unreadable)
    try:
        await acks.start()
        await reports.start()
        await outcomes.start()
        yield driver
    finally:
        closing = (driver.election, acks, reports, outcomes, commands, orders)
        await asyncio.gather(*(each.close() for each in closing), return_exceptions=True)
