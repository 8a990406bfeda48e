"""The agent: what a data store embeds to be a member of a cluster. It knows nothing of how data is kept.

    async with kafka_agent(brokers, directory, gate, follower, handlers) as agent: ...

It follows the log, counts the topology versions and sessions that are in use, tells both to the session
guard (acks), carries orders out with the store's functions, and reports on them. It does neither before the
gate is open. A version or a fence is on the disk before the ack that tells it for the first time, so that a
restart knows below which epoch this node may not serve (I6).
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Final

import msgspec

from stele.agent.gate import Gate, noted
from stele.agent.identity import DataDirectory
from stele.agent.orders import OrderExecutor, OrderHandler
from stele.domain.evolve import Delta
from stele.domain.fencing import Hold, VersionTracker
from stele.domain.image import Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.names import OrderKind
from stele.domain.sessions import SessionGuard, SessionManager
from stele.log.brokers import Brokers
from stele.log.codec import DecodeError, decode_order, encode_ack, encode_report
from stele.log.flows import FlowReader, FlowWriter, flow_topic
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages

HEARTBEAT_S: Final = 0.5
ACK_SPACING_S: Final = 0.005
"""A burst of epochs is acknowledged once, this long after the last ack at the earliest."""
NOT_BEGUN: Final = -1

log = get_logger(__name__)


class Flows(msgspec.Struct, frozen=True):
    """Where acks and reports go; both may get lost and are said again."""

    send_ack: Callable[[Ack], None]
    send_report: Callable[[Report], None]


class Agent:
    """One node's agent. Make it inside the event loop; ``close`` it there."""

    def __init__(
        self,
        directory: DataDirectory,
        gate: Gate,
        follower: LogFollower,
        flows: Flows,
        handlers: Callable[["Agent"], Mapping[OrderKind, OrderHandler]],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.node_id = directory.identity.node_id
        self.follower = follower
        self._directory = directory
        self._gate = gate
        self._noting: asyncio.Task[None] | None = None
        self._life = uuid.uuid4().hex
        self._flows = flows
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._versions = VersionTracker(self._on_drained)
        self._versions.follow(follower.image)
        self._sessions = SessionManager()
        self._sessions.follow(follower.image.topology)
        self._sequence = NOT_BEGUN
        """Of the newest ack; it goes on from what was counted before this start."""
        self._owes = False
        """An ack waits for the disk."""
        self._acked: tuple[object, ...] = ()
        self._acked_at_s = 0.0
        self._soon: asyncio.TimerHandle | None = None
        self._heartbeat_s = heartbeat_s
        follower.listen(self._on_epoch)
        self._orders = OrderExecutor(self.node_id, follower, handlers(self), flows.send_report)
        self._heartbeats = self._loop.create_task(self._beat(), name="heartbeats")

    async def close(self) -> None:
        await self._orders.close()
        self._heartbeats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._heartbeats
        if self._noting is not None:
            await asyncio.wait([self._noting])
        if self._soon is not None:
            self._soon.cancel()

    @property
    def boot_id(self) -> str:
        """Sorts after those of earlier starts, as text (``domain.acks`` compares it)."""
        return self._directory.identity.boot_id(self._life)

    @property
    def host_id(self) -> str:
        return self._directory.identity.host_id

    @property
    def image(self) -> Image:
        return self.follower.image

    def offer(self, order: Order) -> None:
        """Take an order of the flow. The coordinator repeats those that come before the gate is open."""
        if self._gate.is_open:
            self._orders.offer(order)

    def hold(self, version: int, data_id: str, token: int) -> Hold:
        """A request chooses its replicas by this version: hold it until its last answer."""
        return self._versions.hold(version, data_id, token)

    def release(self, hold: Hold) -> None:
        self._versions.release(hold)

    async def wait_drained(self, version: int, timeout_s: float) -> None:
        """Until no request of this node holds a version below ``version``. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.oldest_version_in_use() < version:
                    await self._drained.wait()
        except TimeoutError:
            oldest = self.oldest_version_in_use()
            text = f"{self.node_id} has requests of version {oldest}, older than {version}"
            raise TimeoutError(text) from None

    def oldest_version_in_use(self) -> int:
        return self._versions.oldest_in_use(self.image.topology.version)

    @contextlib.contextmanager
    def enter(self, session: str) -> Iterator[SessionGuard]:
        """Work for a topology operation: check the guard before each effect.

        Raises SessionClosedError.
        """
        guard = self._sessions.enter(session)
        try:
            self._ack_soon()
            yield guard
        finally:
            guard.release()
            self._ack_soon()

    def session_is_open(self, session: str) -> bool:
        return self._sessions.is_open(session)

    def sessions_in_use(self) -> tuple[str, ...]:
        return self._sessions.in_use()

    def _on_drained(self) -> None:
        drained, self._drained = self._drained, asyncio.Event()
        drained.set()
        self._ack_soon()

    def on_order(self, value: bytes) -> None:
        """Raises DecodeError."""
        order = decode_order(value)
        if order.log_id == self.image.log_id:
            self.offer(order)
        else:
            foreign_messages.labels("orders").inc()

    def _on_epoch(self, image: Image, _: Delta) -> None:
        self._versions.follow(image)
        self._sessions.follow(image.topology)
        self._ack_soon()

    def _ack_soon(self) -> None:
        if self._soon is None:
            wait_s = self._acked_at_s + ACK_SPACING_S - self._loop.time()
            self._soon = self._loop.call_later(max(0.0, wait_s), self._ack_if_changed)

    def _ack_if_changed(self) -> None:
        self._soon = None
        if self._in_use() != self._acked:
            self._ack()

    def _in_use(self) -> tuple[object, ...]:
        return self.image.epoch, self.oldest_version_in_use(), self._sessions.in_use()

    def may_speak(self) -> bool:
        """Not while it is in doubt whether this is the log that was read."""
        return self._gate.is_open and not self.follower.in_doubt

    def _ack(self) -> None:
        """Send an ack; first note on the disk what it tells for the first time."""
        if not self.may_speak():
            return
        if self._sequence == NOT_BEGUN:
            self._sequence = self._directory.heartbeats.counted
        if self._is_noted(self.image) and self._ahead() > 0:
            self._send_ack(self.image)
        else:
            self._owes = True
        if self._noting is None and (self._owes or self._is_short()):
            self._noting = self._loop.create_task(self._note(self.image))

    def _ahead(self) -> int:
        """How many acks may be sent before the number on the disk is raised again: while it is never behind
        them, it shows an older copy of the directory.
        """
        return self._directory.heartbeats.counted - self._sequence

    def _is_short(self) -> bool:
        return self._directory.heartbeats.is_short(self._sequence)

    def _is_noted(self, image: Image) -> bool:
        """Whether the disk has what others count on once it is acknowledged: version, fence and exclusions.

        Of any other epoch nobody does, so a node may come back without it.
        """
        known, topology = self._directory.identity.acknowledged, image.topology
        return (
            topology.version <= known.version
            and topology.fence_version <= known.fence_version
            and image.membership.last_exclusion() <= known.epoch
        )

    def _send_ack(self, image: Image) -> None:
        """Tell that the image, the newest or one shortly before it, is applied, and what is in use now."""
        topology, sessions = image.topology, self._sessions.in_use()
        oldest = min(self._versions.oldest_in_use(topology.version), topology.version)
        self._acked, self._acked_at_s = (image.epoch, oldest, sessions), self._loop.time()
        self._sequence, self._owes = self._sequence + 1, False
        self._flows.send_ack(
            Ack(
                node_id=self.node_id,
                boot_id=self.boot_id,
                sequence=self._sequence,
                epoch=image.epoch,
                version=topology.version,
                fence_version=topology.fence_version,
                oldest_version_in_use=oldest,
                sessions_in_use=sessions,
                at_ms=time.time_ns() // 1_000_000,
                log_id=image.log_id,
                state_id=image.state_id,
                host_id=self.host_id,
                prepared=image.requests.resizing(),  # rows are found by token: each cut is there
            )
        )

    async def _note(self, image: Image) -> None:
        """What was noted is told, though there may be a newer version by then: else a disk that is slower than
        the rounds would keep the node silent for as long as they go on.
        """
        try:
            await asyncio.to_thread(self._put_on_disk, image, self._sequence)
        except OSError as error:  # tried again with the next heartbeat
            if self._owes:
                log.warning("no acks: what they tell cannot be put on the disk", why=str(error))
            return
        finally:
            self._noting = None
        is_behind = not self._is_noted(self.image)
        if is_behind and self._ahead() > 0 and self.may_speak():
            self._send_ack(image)
        if is_behind or self._owes:
            self._ack()

    def _put_on_disk(self, image: Image, sequence: int) -> None:
        """Raises OSError."""
        if not self._is_noted(image):
            self._directory.save(acknowledged=noted(image))
        if self._is_short():
            self._directory.heartbeats.get_ahead_of(sequence)

    async def _beat(self) -> None:
        while True:
            if self.follower.failure is None:  # a node that cannot read on must not look alive
                self._ack()
            await asyncio.sleep(self._heartbeat_s)


@contextlib.asynccontextmanager
async def kafka_agent(
    brokers: Brokers,
    directory: DataDirectory,
    gate: Gate,
    follower: LogFollower,
    handlers: Callable[[Agent], Mapping[OrderKind, OrderHandler]],
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncIterator[Agent]:
    """An agent on the cluster's topics, which must exist, inside the block.

    ``handlers`` gives the store's functions for orders, made for this agent.
    """
    cluster = directory.identity.cluster
    acks = FlowWriter(brokers, flow_topic(cluster, "acks"))
    reports = FlowWriter(brokers, flow_topic(cluster, "reports"))
    flows = Flows(
        send_ack=lambda ack: acks.send(ack.node_id, encode_ack(ack)),
        send_report=lambda report: reports.send(report.node_id, encode_report(report)),
    )
    agent = Agent(directory, gate, follower, flows, handlers, heartbeat_s)
    orders = FlowReader(
        brokers,
        flow_topic(cluster, "orders"),
        agent.on_order,
        _unreadable_order,
    )
    try:
        await orders.start()
        yield agent
    finally:
        await orders.close()
        await agent.close()
        await acks.close()
        await reports.close()


def _unreadable_order(error: DecodeError) -> None:
    log.warning("order unreadable", why=str(error))
