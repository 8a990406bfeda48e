"""A cluster for tests of one service. The other processes run in the event loop of the test.

``LogWriter`` is the metadata-log: it takes commands from Kafka and over ``submit``. ``FakeNode`` is a node
that acknowledges every epoch and carries out every order, unless the test disables it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stele.domain.commands import AnyCommand, Envelope, FoundCluster, Join, Outcome
from stele.domain.image import Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.model.requests import named
from stele.domain.names import TAKES_PART, ReportStatus
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.request_memory import decisions_of
from stele.log.brokers import Brokers
from stele.log.codec import (
    DecodeError,
    decode_envelope,
    decode_epoch,
    decode_order,
    encode_ack,
    encode_outcome,
    encode_report,
)
from stele.log.flows import FlowReader, FlowWriter, flow_topic
from stele.log.fold import Fold
from stele.log.kafka import KafkaLog
from stele.log.pipeline import CommitPipeline
from stele.log.port import Record
from stele.log.record_builder import Ids, Pending, next_state_id
from stele.runtime.request_ids import new_request_id

TIMEOUT_S = 240.0
HEARTBEAT_S = 0.2


def _unreadable(error: DecodeError) -> None:
    raise AssertionError(f"a record that cannot be read: {error}")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class LogWriter:
    """The writer of the metadata-log, in the test process."""

    def __init__(self, bootstrap: str, cluster: str) -> None:
        self.cluster = cluster
        self.rejected: list[Outcome] = []
        self._log = KafkaLog(Brokers(bootstrap), flow_topic(cluster, "epochs"))
        ids = Ids(
            next_state_id=lambda previous: next_state_id(previous, now_ms(), secrets.randbits(74)),
            now_ms=now_ms,
        )
        self._won: dict[int, bytes] = {}
        self.pipeline = CommitPipeline(Fold(), ids, asyncio.get_running_loop())
        self._commands = FlowReader(
            Brokers(bootstrap), flow_topic(cluster, "commands"), self._on_command, _unreadable
        )
        self._outcomes = FlowWriter(Brokers(bootstrap), flow_topic(cluster, "outcomes"))

    @property
    def image(self) -> Image:
        return self.pipeline.fold.image

    async def start(self) -> None:
        self._log.follow(0, self._on_records, lambda error: None)
        await self._commands.start()
        cluster_id = f"{self.cluster}/{uuid.uuid4()}"
        await self.submit(FoundCluster(cluster_id))

    async def close(self) -> None:
        await self._commands.close()
        await self._outcomes.close()
        await self._log.close()

    async def submit(self, command: AnyCommand, request_id: str = "") -> Outcome:
        envelope = Envelope(
            request_id=request_id or new_request_id(), command=command, actor="test"
        )
        pending = self.pipeline.submit(envelope)
        self._flush()
        return await asyncio.wait_for(pending, TIMEOUT_S)

    def _on_command(self, value: bytes) -> None:
        self.pipeline.submit(decode_envelope(value)).add_done_callback(self._on_outcome)
        self._flush()

    def _on_outcome(self, pending: Pending) -> None:
        outcome = pending.result()
        self._outcomes.send(outcome.request_id, encode_outcome(outcome))
        if not outcome.applied:
            self.rejected.append(outcome)

    def _on_records(self, records: list[Record]) -> None:
        for offset, value in records:
            self.pipeline.on_record(offset, value)
            self._won.setdefault(self.image.epoch, value)
        self._flush()

    def _flush(self) -> None:
        self.pipeline.flush()
        while ready := self.pipeline.take_ready():
            for value in ready.records:
                self._log.append(value)
            for epoch in ready.recalls:
                self.pipeline.recalled(epoch, decisions_of(decode_epoch(self._won[epoch])))
            if ready.deciding is not None:
                self.pipeline.decided(ready.deciding, ready.deciding.decide())
            self.pipeline.flush()


class FakeNode:
    """One node. ``applies`` and ``streams`` can be disabled. ``orders`` has the received orders."""

    def __init__(self, bootstrap: str, writer: LogWriter, node_id: str) -> None:
        self.node_id = node_id
        self.alive = True
        self.applies = True
        self.streams = True
        self.old_version: int | None = None
        self.orders: list[Order] = []
        self._writer = writer
        self._epoch = 0
        self._sequence = 0
        self._boot_id = f"{time.time_ns():020d}"
        cluster = writer.cluster
        self._acks = FlowWriter(Brokers(bootstrap), flow_topic(cluster, "acks"))
        self._reports = FlowWriter(Brokers(bootstrap), flow_topic(cluster, "reports"))
        self._reader = FlowReader(
            Brokers(bootstrap), flow_topic(cluster, "orders"), self._on_order, _unreadable
        )
        self._image = writer.image
        self.acked_epoch = 0
        """Epoch of the newest acknowledgement."""

    async def start(self) -> None:
        await self._reader.start()
        self._task = asyncio.create_task(self._beat())

    async def close(self) -> None:
        self._task.cancel()
        for each in (self._reader, self._acks, self._reports):
            await each.close()

    async def join(self, num_tokens: int = 4) -> Outcome:
        return await self._writer.submit(
            Join(
                node_id=self.node_id,
                cluster=self._writer.cluster,
                address=f"http://{self.node_id}",
                dc="dc1",
                rack="r1",
                num_tokens=num_tokens,
                host_id=f"host-{self.node_id}",
                supported_features=tuple(sorted(KNOWN_FEATURES)),
            ),
            request_id=named(f"join-{self.node_id}"),
        )

    @property
    def taking_part(self) -> bool:
        node = self._writer.image.node(self.node_id)
        return node is not None and node.state in TAKES_PART

    async def _beat(self) -> None:
        while True:
            if self.alive:
                self._ack()
            end = time.monotonic() + HEARTBEAT_S
            while time.monotonic() < end:
                await asyncio.sleep(0.01)
                if self.alive and self.applies and self._writer.image is not self._image:
                    break

    def _ack(self) -> None:
        if self.applies:
            self._image = self._writer.image
        topology, self.acked_epoch = self._image.topology, self._image.epoch
        self._sequence += 1
        ack = Ack(
            node_id=self.node_id,
            boot_id=self._boot_id,
            sequence=self._sequence,
            epoch=self._image.epoch,
            version=topology.version,
            fence_version=topology.fence_version,
            oldest_version_in_use=self.old_version or topology.version,
            host_id=f"host-{self.node_id}",
            log_id=self._image.log_id,
            state_id=self._image.state_id,
            prepared=self._image.requests.resizing(),
        )
        self._acks.send(self.node_id, encode_ack(ack))

    def _on_order(self, value: bytes) -> None:
        order = decode_order(value)
        if order.node_id != self.node_id or not self.alive:
            return
        self.orders.append(order)
        self.report(order, ReportStatus.RUNNING, 50)
        if self.streams:
            self.report(order, ReportStatus.SUCCESS, 100)

    def report(self, order: Order, status: ReportStatus, bytes_done: int, error: str = "") -> None:
        report = Report(
            node_id=order.node_id,
            term=order.term,
            index=order.index,
            kind=order.kind,
            session=order.session,
            request_id=order.request_id,
            status=status,
            bytes_done=bytes_done,
            bytes_total=100,
            keys_done=bytes_done // 10,
            error=error,
            log_id=order.log_id,
        )
        self._reports.send(self.node_id, encode_report(report))


@asynccontextmanager
async def log_writer(bootstrap: str, cluster: str) -> AsyncIterator[LogWriter]:
    writer = LogWriter(bootstrap, cluster)
    try:
        await writer.start()
        yield writer
    finally:
        await writer.close()


@asynccontextmanager
async def fake_nodes(
    bootstrap: str, writer: LogWriter, names: str
) -> AsyncIterator[dict[str, FakeNode]]:
    """Yield a started FakeNode for each of the names, which are separated by blanks."""
    nodes = {name: FakeNode(bootstrap, writer, name) for name in names.split()}
    try:
        for node in nodes.values():
            await node.start()
        yield nodes
    finally:
        for node in nodes.values():
            await node.close()


def settle(image: Image) -> bool:
    """Return whether no operation, request or cleanup is open, and the newest version is fenced."""
    return (
        not image.topology.transitions
        and not image.requests.unfinished()
        and image.topology.settled()
        and not any(node.cleanup_since for node in image.membership.nodes.values())
    )
