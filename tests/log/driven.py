"""A cluster whose coordinator and nodes work at once, in virtual time, through one commit pipeline."""

from __future__ import annotations

import time
from itertools import count

from stele.coordinator.steps import Limits, Memory, Observed, next_steps
from stele.domain.commands import AnyCommand, ClaimCoordinator, Envelope, Rejection
from stele.domain.image import Image
from stele.domain.messages import Order, Report, ReportTable
from stele.domain.model.requests import named
from stele.domain.names import NodeState, ReportStatus
from stele.domain.topology.barriers import AckTable
from tests.domain.ack_of import ack_of
from tests.log.memory import MemoryPartition
from tests.log.test_pipeline import NOW_MS, Writer


class Driven:
    """``writer`` has a log or an image that holds a cluster."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.slowest_s = 0.0
        """The most processor time that a command took to be decided and encoded."""
        self._memory = Memory()
        self._acks = AckTable()
        self._reports = ReportTable()
        self._now_s = 0.0
        self._sequence = count(1)
        self.ask(ClaimCoordinator("c1", 1))

    @property
    def partition(self) -> MemoryPartition:
        return self.writer.partition

    @property
    def image(self) -> Image:
        return self.writer.pipeline.fold.image

    def ask(self, command: AnyCommand) -> None:
        name = f"ask-{self.image.epoch}"
        assert self.submit(Envelope(request_id=named(name), command=command)) is None

    def submit(self, envelope: Envelope) -> Rejection | None:
        began_s = time.process_time()
        self.writer.submit(envelope)
        self.slowest_s = max(self.slowest_s, time.process_time() - began_s)
        self.writer.settle()
        return self.writer.answers[envelope.request_id][0].rejection

    def run(self, limit: int = 200) -> None:
        """Run until no work is left. Fails after ``limit`` steps."""
        for _ in range(limit):
            self._now_s += 0.1
            self._hear_nodes()
            seen = Observed(self.image, self._acks, self._reports, 1, self._now_s, wall_ms=NOW_MS)
            steps = next_steps(self._memory, seen, Limits())
            self._memory = steps.memory
            for order in steps.orders:
                self._carry_out(order)
            for envelope in steps.commands:
                self.submit(envelope)
            if not steps.waits:
                return
        raise AssertionError(f"still waiting for {steps.waits}")

    def _hear_nodes(self) -> None:
        image = self.image
        for node_id, node in sorted(image.membership.nodes.items()):
            if node.state is NodeState.LEFT:
                continue
            ack = ack_of(image, node_id, sequence=next(self._sequence))
            self._acks = self._acks.with_ack(ack, self._now_s)

    def _carry_out(self, order: Order) -> None:
        report = Report(
            node_id=order.node_id,
            term=order.term,
            index=order.index,
            kind=order.kind,
            session=order.session,
            request_id=order.request_id,
            status=ReportStatus.SUCCESS,
        )
        self._reports = self._reports.with_report(report, self._now_s)
