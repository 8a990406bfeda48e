"""A log of one writer in memory, for tests of the pure core: commands in, epochs and images out."""

import random
from itertools import count

from stele.coordinator.steps import Limits, Memory, Observed, Steps, next_steps
from stele.domain.acks import AckTable
from stele.domain.cluster.facts import FoundCluster
from stele.domain.commands import (
    AnyCommand,
    Envelope,
    Noop,
    Rejection,
    command_digest,
    command_name,
)
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.names import NodeState, ReportStatus
from stele.domain.reports import ReportTable
from stele.domain.requests.decisions import refusal
from stele.domain.requests.ids import named
from stele.domain.schema.facts import CreateKeyspace
from stele.domain.topology.commands import ClaimCoordinator
from stele.domain.topology.operations.commands import Join
from stele.log.state_ids import next_state_id

LOG_ID = next_state_id(bytes(16), 1_700_000_000_000, 7)


class History:
    """Every epoch and every image since the beginning."""

    def __init__(self, log_id: bytes = LOG_ID) -> None:
        self.log_id = log_id
        self.epochs: list[Epoch] = []
        self.images: list[Image] = [EMPTY]
        self._chance = random.Random(7)
        self._ids = count(1)

    @property
    def image(self) -> Image:
        return self.images[-1]

    def apply(self, command: AnyCommand, request_id: str = "") -> Rejection | None:
        request_id = request_id or named(f"request-{next(self._ids)}")
        return self.submit(
            Envelope(request_id=request_id, command=command, actor="ada", reason="why")
        )

    def submit(self, envelope: Envelope) -> Rejection | None:
        decision = decide(self.image, envelope, 1_700_000_000_000)
        if isinstance(decision, Rejection):
            return decision
        self._add(envelope, decision)
        return None

    def refuse(self, envelope: Envelope, rejection: Rejection) -> None:
        """A barrier that records a refusal."""
        fact = refusal(envelope, command_digest(envelope.command), rejection)
        self._add(Envelope(request_id="", command=Noop(), actor="log", reason="why"), (fact,))

    def _add(self, envelope: Envelope, facts: tuple[AnyFact, ...]) -> None:
        image = self.image
        entropy = self._chance.getrandbits(74)
        epoch = Epoch(
            prev_state_id=image.state_id,
            state_id=next_state_id(image.state_id, 1_700_000_000_000, entropy),
            log_id=self.log_id,
            witness_state_id=image.state_id,
            epoch=image.epoch + 1,
            witness_epoch=image.epoch,
            command_digest=command_digest(envelope.command) if envelope.request_id else bytes(16),
            request_id=envelope.request_id,
            command=command_name(envelope.command),
            facts=facts,
            actor=envelope.actor,
            reason=envelope.reason,
        )
        self.epochs.append(epoch)
        self.images.append(evolve(image, epoch))


class Driver:
    """A coordinator and nodes that answer at once, in virtual time."""

    def __init__(self, history: History, term: int = 1) -> None:
        self.history = history
        self.memory = Memory()
        self.acks = AckTable()
        self.reports = ReportTable()
        self.now_s = 0.0
        self.term = term
        self.silent: set[str] = set()
        self.failing: set[str] = set()
        self.orders: list[Order] = []
        self._sequence = count(1)

    def step(self) -> Steps:
        self.now_s += 0.1
        self._hear_nodes()
        steps = next_steps(
            self.memory,
            Observed(self.history.image, self.acks, self.reports, self.term, self.now_s),
            Limits(),
        )
        self.memory = steps.memory
        for order in steps.orders:
            self._carry_out(order)
        for envelope in steps.commands:
            self.history.submit(envelope)
        return steps

    def run(self, limit: int = 2000) -> Steps:
        """Until there is nothing to do any more. Fails when that takes too many steps."""
        for _ in range(limit):
            steps = self.step()
            if steps.waiting_for == "requests":
                return steps
        raise AssertionError(f"still waiting for {steps.waiting_for}: {steps.blockers}")

    def _hear_nodes(self) -> None:
        image, topology = self.history.image, self.history.image.topology
        for node_id, node in sorted(image.membership.nodes.items()):
            if node.state is NodeState.LEFT or node_id in self.silent:
                continue
            ack = Ack(
                node_id=node_id,
                boot_id="1",
                sequence=next(self._sequence),
                epoch=image.epoch,
                version=topology.version,
                fence_version=topology.fence_version,
                oldest_version_in_use=topology.version,
            )
            self.acks = self.acks.with_ack(ack, self.now_s)

    def _carry_out(self, order: Order) -> None:
        self.orders.append(order)
        if order.node_id in self.silent:
            return
        failed = order.node_id in self.failing
        report = Report(
            node_id=order.node_id,
            term=order.term,
            index=order.index,
            kind=order.kind,
            session=order.session,
            request_id=order.request_id,
            status=ReportStatus.FAILED if failed else ReportStatus.SUCCESS,
            error="disk full" if failed else "",
        )
        self.reports = self.reports.with_report(report, self.now_s)


def join(index: int, rack: str = "") -> Join:
    rack = rack or f"r{index}"
    return Join(
        node_id=f"n{index}", cluster="demo", address=f"http://n{index}", dc="dc1", rack=rack
    )


def three_nodes() -> tuple[History, Driver]:
    """A cluster of n1, n2, n3 in three racks with keyspace ``library`` at replication factor 3."""
    history = History()
    history.apply(FoundCluster("demo/1", LOG_ID.hex()))
    history.apply(ClaimCoordinator("c1", 1))
    for index in (1, 2, 3):
        history.apply(join(index))
    driver = Driver(history)
    driver.run()
    assert history.apply(CreateKeyspace("library", {"dc1": 3})) is None
    return history, driver
