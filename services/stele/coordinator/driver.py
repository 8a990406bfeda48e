"""The shell around ``next_steps``: it passes in messages from Kafka and sends the result.

It keeps no state but the log, so the process may be killed at any moment. The next coordinator
claims the next term and calls the same function (docs/design.md, rules 15 and 23).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from stele.coordinator import metrics
from stele.coordinator.election import Election
from stele.coordinator.model import Memory, Observed, Steps
from stele.coordinator.probes import ReplicaProbes
from stele.coordinator.progress import StreamRates, progress_of
from stele.coordinator.settings import CoordinatorSettings
from stele.coordinator.steps import next_steps, standby
from stele.domain.commands import ClaimCoordinator, Envelope, Outcome, Rejection, command_name
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.messages import ReportTable
from stele.domain.model.archive import Replica
from stele.domain.model.transitions import CoordinatorChanged
from stele.domain.names import COORDINATOR
from stele.domain.not_taken import LATER, horizon_of, restricted_text, takes_from
from stele.domain.observed_time import ObservedTime
from stele.domain.topology.barriers import AckTable
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.codec import DecodeError, decode_ack, decode_report, encode_order
from stele.log.commander import Commander
from stele.log.flows import FlowReader, FlowWriter, flow_topic, start_across_outage
from stele.runtime.answers.coordinator import Progress
from stele.runtime.follow import Followed
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import wait_at_most
from stele.runtime.transport import Transport

TICK_S: Final = 0.5
"""Longest time between two calls of ``next_steps``, in seconds. Patience ends and lost messages are
sent again without any event.
"""
GATHER_S: Final = 0.01
"""Seconds in which events are gathered for one call. Acks of a hundred nodes come in bursts."""
RECLAIM_S: Final = 3.0
"""Seconds between two claims. For a few seconds the group may elect two instances; they must not
take the term from each other as fast as they can.
"""

log = get_logger(__name__)


class TermClaim(msgspec.Struct, frozen=True):
    """A claim under way; ``sent_at_s`` is the time of the last send."""

    envelope: Envelope
    term: int
    sent_at_s: float


class Driver:
    """The state of one instance, and the loop that acts while it holds the newest term."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        followed: Followed,
        commander: Commander,
        orders: FlowWriter,
        transport: Transport | None = None,
    ) -> None:
        self.election = Election(
            settings.brokers, settings.cluster, settings.instance_id, self.wake
        )
        self.term = 0
        """The term that this process claimed and received; 0 before its first one."""
        self.listening_since_s = time.monotonic()
        """Monotonic seconds. A node without an ack since then is down."""
        self._instance_id = settings.instance_id
        self.limits = settings.limits()
        self._reading = ObservedTime(self.limits.down_after_s)
        """Times at which acks were read while this process acts. Each ack confirms them."""
        self._has_acted = False
        self._followed = followed
        self._commander = commander
        self._orders = orders
        self._acks = AckTable()
        self._reports = ReportTable()
        self._probes = ReplicaProbes(self._replicas_to_ask, transport)
        self.memory = Memory()
        self._claim: TermClaim | None = None
        self._horizon_ms = -1
        """The id of the next claim must be newer than this time, because the last id was too old.
        """
        self._claimed_at_s = float("-inf")
        self._sent: dict[str, asyncio.Future[Outcome]] = {}
        self._refusals: dict[str, Rejection] = {}
        self._steps = self._idle("the log")
        self.rates = StreamRates()
        self._entered: dict[str, tuple[str, float]] = {}
        self._wake = asyncio.Event()
        followed.follower.listen(self._on_epoch)

    @property
    def image(self) -> Image:
        return self._followed.follower.image

    @property
    def active(self) -> bool:
        """True if this instance is elected and claimed the newest term in the log."""
        return self.election.elected and self.term == self.image.topology.coordinator.term > 0

    @property
    def caught_up(self) -> bool:
        """True if the log was read to its end since the start and reading has not failed."""
        return self._followed.caught_up.is_set() and self._followed.follower.failure is None

    def progress(self) -> Progress:
        waits = self._steps.waits
        return progress_of(self.seen(), self.limits, self.rates, waits, active=self.active)

    def wake(self) -> None:
        self._wake.set()

    def on_ack(self, value: bytes) -> None:
        """Record a node's ack; ignore acks of another log. Raises DecodeError."""
        ack = decode_ack(value)
        # An ack of another log must not count for a barrier of this one (rule 13).
        if ack.log_id != self.image.log_id:
            foreign_messages.labels("acks").inc()
            return
        now_s = time.monotonic()
        self._acks = self._acks.with_ack(ack, now_s)
        self._reading = self._reading.confirmed(now_s)
        self.wake()

    def on_report(self, value: bytes) -> None:
        """Record a node's report; ignore reports of another log. Raises DecodeError."""
        report = decode_report(value)
        if report.log_id != self.image.log_id:
            foreign_messages.labels("reports").inc()
            return
        self._reports = self._reports.with_report(report, time.monotonic())
        self.wake()

    def _on_outcome(self, sent: asyncio.Future[Outcome]) -> None:
        """Record that a command of this process was refused or will never be decided.

        A command that may be taken later is sent again under the same id.
        """
        if sent.cancelled():
            return
        outcome = sent.result()
        if outcome.rejection is None or outcome.rejection.code in LATER:
            return
        if self._claim is not None and self._claim.envelope.request_id == outcome.request_id:
            # The refused id is final (rule 4), so a repeat under it could not succeed.
            self._claim = None  # the next claim gets another id
            self._horizon_ms = horizon_of(outcome.rejection)
        self._refusals[outcome.request_id] = outcome.rejection
        log.warning(
            "a command was refused",
            request_id=outcome.request_id,
            code=outcome.rejection.code,
            why=outcome.rejection.message,
        )
        self.wake()

    async def run(self) -> None:
        """Act until cancelled.

        The instance takes part in the election only after it has read the log, because it could not
        act before.
        """
        await self._followed.caught_up.wait()
        self.election.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probes.run())
            tasks.create_task(self._run_steps())

    async def _run_steps(self) -> None:
        while True:
            steps = await self._steps_with_joins()
            self._step(time.monotonic(), steps)
            await wait_at_most(self._wake, TICK_S)
            # Cleared after the pause, so that events within it need no second look.
            await asyncio.sleep(GATHER_S)
            self._wake.clear()

    async def _steps_with_joins(self) -> Steps | None:
        """Return the steps of a look at which joins are pending; None at all other looks.

        They are computed in a thread, because the choice of tokens may take a second. The log and
        the nodes judge them by version and term, so they may rest on an image of a second ago.
        """
        self._note_activity()
        asked = any(OPERATIONS[r.kind].grouped for r in self.image.requests.pending())
        if not self.active or not asked:
            return None
        seen = self.seen()
        replicas, refusals = (
            {**seen.replicas},
            {**seen.refusals},
        )  # the loop changes these meanwhile
        seen = msgspec.structs.replace(seen, replicas=replicas, refusals=refusals)
        steps = await asyncio.to_thread(next_steps, self.memory, seen, self.limits)
        return steps if self.term == seen.term else None

    def _note_activity(self) -> None:
        """Give each node its full time after this instance became the leader."""
        if self.active and not self._has_acted:
            self._reading = ObservedTime(self.limits.down_after_s)
        self._has_acted = self.active

    def _step(self, now_s: float, steps: Steps | None = None) -> None:
        """Act by the steps of this look, which are computed here if they are not given."""
        self.rates = self.rates.with_samples(self.image, self._reports, now_s)
        metrics.active.set(self.active)
        idle = self._why_idle()
        self._note_activity()
        if idle:
            self._claim = None
            self._steps = self._idle(idle)
        elif self.active:
            self._act(steps or next_steps(self.memory, self.seen(), self.limits))
        else:
            self._claim_term(now_s)

    def _why_idle(self) -> str:
        """Return the reason why this instance does not act; empty if it may act."""
        if not self.election.elected:
            return "the active coordinator to fail"
        if self._followed.follower.failure is not None:
            return "the log, which cannot be read any further"
        if not self._followed.caught_up.is_set():
            return "the log"
        return "" if self.image.cluster else "the cluster to be created"

    def seen(self) -> Observed:
        """Return all that this process has observed so far."""
        return Observed(
            self.image,
            self._acks,
            self._reports,
            self.term,
            time.monotonic(),
            self._refusals,
            self._followed.follower.state_id_of,
            time.time_ns() // 1_000_000,
            self._probes.liveness,
            self._reading,
        )

    def _replicas_to_ask(self) -> list[Replica]:
        """Return the catch-up replicas to probe; none on standby, because only an active instance
        needs them.
        """
        replicas = self.image.archive.replicas
        return [replicas[name] for name in sorted(replicas)] if self.active else []

    def _act(self, steps: Steps) -> None:
        self._steps, self.memory = steps, steps.memory
        self._forget_old_commands()
        for envelope in self._steps.commands:
            self._send(envelope)
        for order in self._steps.orders:
            log.info("order", order=msgspec.to_builtins(order))
            metrics.sent.labels(order.kind).inc()
            self._orders.send(order.node_id, encode_order(order))

    def _claim_term(self, now_s: float) -> None:
        """Claim the term after the newest one.

        The claim is sent again under the same id until the log shows its outcome.
        """
        term = self.image.topology.coordinator.term + 1
        claim, commits = self._claim, self.image.commits
        if not takes_from(commits, COORDINATOR):
            self._claim, self._steps = None, self._idle(f"the log: {restricted_text(commits)}")
            return
        if claim is not None and now_s - claim.sent_at_s < self.limits.resend_s:
            return
        if claim is None or claim.term != term:
            # Rival instances must not exchange the term at every tick.
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
        self._claim = TermClaim(envelope, term, now_s)
        self._steps = self._idle(f"term {term}")
        self._send(envelope)

    def _idle(self, why: str) -> Steps:
        """Return the waits of a coordinator that does not act, each with its start."""
        steps = standby(self.memory, self.seen(), self.limits, why)
        self.memory = steps.memory
        return steps

    def _forget_old_commands(self) -> None:
        """Forget refusals and ids of earlier rounds; only commands of this round are sent again."""
        present = {sent.request_id for sent in self.memory.commands.values()}
        for request_id in self._sent.keys() - present:
            self._sent.pop(request_id).cancel()
        self._refusals = {i: why for i, why in self._refusals.items() if i in present}

    def _send(self, envelope: Envelope) -> None:
        before = self._sent.get(envelope.request_id)
        if before is not None:
            before.cancel()  # otherwise one refusal of a repeated command would be noted twice
        name = command_name(envelope.command)
        envelope = msgspec.structs.replace(envelope, log_id=self.image.log_id.hex())
        log.info("command", request_id=envelope.request_id, command=name)
        metrics.sent.labels(name).inc()
        outcome = self._sent[envelope.request_id] = self._commander.send(envelope)
        outcome.add_done_callback(self._on_outcome)

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
        # During the first read of the log old relaxations are not news.
        if self._followed.caught_up.is_set():
            for fact in metrics.relaxations(delta):
                log.warning("a barrier was relaxed", fact=msgspec.to_builtins(fact))
        self.wake()

    def _has_a_namesake(self, image: Image, delta: Delta) -> bool:
        """Return whether another process has claimed a term under this instance's name.

        Claims read before the end of the log was reached do not count: an earlier process of this
        name wrote them.
        """
        return (
            self._followed.caught_up.is_set()
            and delta.touches(CoordinatorChanged)
            and image.topology.coordinator.holder == self._instance_id
        )

    def _measure(self, image: Image) -> None:
        """Observe the time that each transition spent in the state that it left. Drop reports of
        closed sessions.
        """
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


def note_unreadable(error: DecodeError) -> None:
    metrics.unreadable.inc()
    log.warning("left out a record", error=str(error))


@asynccontextmanager
async def driving(
    settings: CoordinatorSettings, followed: Followed, transport: Transport | None = None
) -> AsyncIterator[Driver]:
    """Yield a driver with its readers, writers and election.

    The caller starts ``run``. The driver asks the catch-up replicas over ``transport``.
    """

    def topic(flow: str) -> str:
        return flow_topic(settings.cluster, flow)

    brokers = settings.brokers
    commander = Commander(brokers, settings.cluster, on_unreadable=note_unreadable)
    orders = FlowWriter(brokers, topic("orders"))
    driver = Driver(settings, followed, commander, orders, transport)
    acks = FlowReader(brokers, topic("acks"), driver.on_ack, note_unreadable)
    reports = FlowReader(brokers, topic("reports"), driver.on_report, note_unreadable)
    try:
        await start_across_outage(acks, reports, commander)
        yield driver
    finally:
        closing = (driver.election, acks, reports, commander, orders)
        await asyncio.gather(*(each.close() for each in closing), return_exceptions=True)
