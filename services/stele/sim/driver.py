"""The coordinator's process: the production ``next_steps`` with its inputs, and an election by silence.

The holder of the newest term says that it lives. Whoever has not heard it for a while claims the next
term; the log lets one win. Nothing rests on this election: two that both believe in themselves are safe.
"""

from typing import Final

from stele.coordinator.steps import Memory, Observed, Steps, next_steps
from stele.domain.acks import AckTable
from stele.domain.commands import ClaimCoordinator, Envelope, Outcome, Rejection
from stele.domain.facts import Epoch
from stele.domain.messages import Ack, Report
from stele.domain.names import COORDINATOR, OrderKind
from stele.domain.reports import ReportTable
from stele.domain.requests.ids import named
from stele.domain.requests.not_taken import LATER
from stele.sim.kernel import SECOND, us
from stele.sim.process import Follower
from stele.sim.writer import Caller

TICK_S: Final = 0.25
ALIVE_S: Final = 1.0
SILENCE_S: Final = 3.0
"""Shortest silence after which a rival claims; up to twice as long, by chance."""


class Driver(Caller, Follower):
    """One instance of the coordinator service."""

    def start(self) -> None:
        self.follow_log()
        self.memory = Memory()
        self.steps = Steps(self.memory)
        self.refusals: dict[str, Rejection] = {}
        self.acks = AckTable()
        self.reports = ReportTable()
        self.term = -1
        self._heard_us = self.world.kernel.now_us - us(SILENCE_S)
        self._patience_s = SILENCE_S * (1 + self.random())
        self._claiming = False
        self._woken = False
        self.after(TICK_S * self.random(), self._tick)
        self.after(ALIVE_S, self._say_alive)

    def on_epoch(self, epoch: Epoch | None) -> None:
        if epoch is not None and not self._woken:
            self._woken = True
            self.after(0.01, self._step)

    @property
    def holds_term(self) -> bool:
        return self.term == self.image.topology.coordinator.term

    def on_ack(self, ack: Ack) -> None:
        self.acks = self.acks.with_ack(ack, self.clock.monotonic_s())

    def on_report(self, report: Report) -> None:
        self.reports = self.reports.with_report(report, self.clock.monotonic_s())

    def on_alive(self, term: int) -> None:
        if term >= self.image.topology.coordinator.term:
            self._heard_us = self.world.kernel.now_us

    def _say_alive(self) -> None:
        if self.holds_term:
            for rival in self.world.drivers:
                self.world.network.send(self, rival, rival.on_alive, self.term)
        self.after(ALIVE_S, self._say_alive)

    def _tick(self) -> None:
        silent_s = (self.world.kernel.now_us - self._heard_us) / SECOND
        if not self.holds_term and silent_s > self._patience_s and not self._claiming:
            self.spawn(self._claim())
        self._step()
        self.after(TICK_S, self._tick)

    async def _claim(self) -> None:
        """Claim the term after the newest one known; a refusal means that somebody else did."""
        self._claiming = True
        await self.catch_up()
        term = self.image.topology.coordinator.term + 1
        name = f"{self.name}/{self.incarnation}/{term}/{self.world.kernel.now_us}"
        envelope = Envelope(
            request_id=named(f"claim {name}"),
            command=ClaimCoordinator(holder=self.name, term=term),
            actor=COORDINATOR,
        )
        outcome: Outcome | None = await self.submit(envelope, attempts=5)
        if outcome is not None and outcome.applied:
            self.term, self.memory = term, Memory()
        self._heard_us = self.world.kernel.now_us
        self._claiming = False

    def _step(self) -> None:
        self._woken = False
        if not self.holds_term:
            return
        steps = self.steps = next_steps(self.memory, self.observed(), self.world.limits)
        self.memory = steps.memory
        present = {sent.request_id for sent in self.memory.commands.values()}
        self.refusals = {i: why for i, why in self.refusals.items() if i in present}
        for envelope in steps.commands:
            self.submit_once(envelope).then(self._note_refusal)
            self.world.failpoint(self, "after_command")
        for order in steps.orders:
            node = self.world.nodes.get(order.node_id)
            if node is not None:
                self.world.network.send(self, node, node.on_order, order)
            self.world.failpoint(self, f"after_{OrderKind(order.kind)}")

    def _note_refusal(self, outcome: Outcome | None) -> None:
        """A refusal of its own command is what the coordinator plans anew from."""
        rejection = None if outcome is None else outcome.rejection
        if outcome is not None and rejection is not None and rejection.code not in LATER:
            self.refusals[outcome.request_id] = rejection

    def observed(self) -> Observed:
        cleanups = (n.cleanup_session() for n in self.image.membership.nodes.values())
        self.reports = self.reports.only(self.image.topology.sessions() | {*cleanups})
        return Observed(
            image=self.image,
            acks=self.acks,
            reports=self.reports,
            term=self.term,
            now_s=self.clock.monotonic_s(),
            refusals=self.refusals,
            wall_ms=self.clock.wall_ms(),
        )
