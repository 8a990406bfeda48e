"""The agent: the part of a data store that makes it a member of a cluster.

    async with kafka_agent(brokers, directory, gate, follower, handlers) as agent: ...

The agent follows the log and counts the topology versions and sessions in use. It sends both in
acks, executes orders with the store's functions, and sends reports on them. It sends no acks and
executes no orders before the gate is open. It does not depend on how the store keeps its data.

The order of disk and network is part of the protocol (docs/design.md, rule 50):

- A version or a fence is on the disk before the first ack that contains it. After a restart the
  node therefore knows the epoch below which it may not serve (I6).
- The epoch that created data is on the disk before rows of that data are stored (``Creations``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec

from stele.agent.gate import Gate, acknowledged_at
from stele.agent.identity import Acknowledged, DataDirectory
from stele.agent.orders import OrderExecutor, OrderHandler
from stele.agent.stores import PreparedResizes, all_resizes
from stele.domain.evolve import Delta
from stele.domain.fencing import Hold, SessionGuard, SessionManager, VersionTracker
from stele.domain.image import Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.model.schema import KeyspaceChanged, TableChanged
from stele.domain.names import OrderKind
from stele.log.brokers import Brokers
from stele.log.codec import DecodeError, decode_order, encode_ack, encode_report
from stele.log.flows import FlowReader, FlowWriter, flow_topic, start_across_outage
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages

# Data that a node may store: the epoch that created it must be on the node's disk first.
#
# Rows outlive a lost end of the log. Without this rule a node could not distinguish rows of a table
# whose creation was lost from rows of a dropped table. It would delete both. ScyllaDB's group 0
# gives the same guarantee: a node persists the schema that a write depends on before it applies the
# write.


NOTHING: Final = Acknowledged()


class Creations:
    """The data ids of one node whose creation was read but is not on the disk yet.

    Data in the first ``image`` was created at its epoch or before. That epoch counts as the
    creation of all of it.
    """

    def __init__(self, directory: DataDirectory, image: Image) -> None:
        self.newest = acknowledged_at(image) if any(image.schema.all_data()) else NOTHING
        """The newest epoch that created data.

        Stored data depends on this epoch and on no later one.
        """
        self._directory = directory
        self._of_first_image = self.newest.epoch
        self._pending = dict[str, int]()
        """Epoch of creation by data id, for data created after the first image."""
        self._changed = asyncio.Event()

    @property
    def are_synced(self) -> bool:
        """Return whether the disk has the newest creation. Safe to call from any thread."""
        return self.newest.epoch <= self._directory.identity.acknowledged.epoch

    def is_synced(self, data_id: str) -> bool:
        """Return whether rows of this data may be stored."""
        created = self._pending.get(data_id, self._of_first_image)
        return created <= self._directory.identity.acknowledged.epoch

    async def wait(self, data_ids: Collection[str]) -> None:
        """Wait until rows of all this data may be stored."""
        while not all(map(self.is_synced, data_ids)):
            await self._changed.wait()

    async def wait_for_all(self) -> None:
        """Wait until rows of all data in the log, as far as it was read, may be stored."""
        while not self.are_synced:
            await self._changed.wait()

    def follow(self, image: Image, delta: Delta) -> None:
        """Record data that this epoch created. A truncation creates data too, under a new id."""
        for fact in delta.facts():
            match fact:
                case KeyspaceChanged(keyspace=owner) | TableChanged(table=owner):
                    data_id = owner.data_id
                case _:
                    continue
            if image.schema.of_data(data_id) and not delta.before.schema.of_data(data_id):
                self._pending[data_id] = image.epoch
                self.newest = acknowledged_at(image)

    def on_synced(self) -> None:
        """Forget creations that are on the disk now, and wake waiters."""
        on_disk = self._directory.identity.acknowledged.epoch
        self._pending = {each: epoch for each, epoch in self._pending.items() if epoch > on_disk}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


HEARTBEAT_S: Final = 0.5
ACK_SPACING_S: Final = 0.005
"""Minimum time between two acks that changes cause, in seconds.

A burst of epochs is acknowledged once.
"""
NOT_BEGUN: Final = -1

log = get_logger(__name__)


class Flows(msgspec.Struct, frozen=True):
    """The functions that send acks and reports.

    Either message may be lost; the agent repeats both.
    """

    send_ack: Callable[[Ack], None]
    send_report: Callable[[Report], None]


class Agent:
    """The agent of one node.

    Create it in a running event loop, and call ``close`` in the same loop.
    """

    def __init__(
        self,
        directory: DataDirectory,
        gate: Gate,
        follower: LogFollower,
        flows: Flows,
        handlers: Callable[[Agent], Mapping[OrderKind, OrderHandler]],
        heartbeat_s: float = HEARTBEAT_S,
        prepared_resizes: PreparedResizes = all_resizes,
    ) -> None:
        self.node_id = directory.identity.node_id
        self.follower = follower
        self._directory = directory
        self._gate = gate
        self._syncing: asyncio.Task[None] | None = None
        self._life = uuid.uuid4().hex
        self._flows = flows
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._versions = VersionTracker(self._on_drained)
        self._versions.follow(follower.image)
        self._sessions = SessionManager()
        self._sessions.follow(follower.image.topology)
        self._creations = Creations(directory, follower.image)
        self._sequence = NOT_BEGUN
        """The sequence number of the newest ack.

        It continues from the number on the disk, over all starts.
        """
        self._ack_is_delayed = False
        """True while an ack is delayed until the disk has what it promises."""
        self._acked: tuple[object, ...] = ()
        self._acked_at_s = 0.0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = heartbeat_s
        self._prepared_resizes = prepared_resizes
        follower.listen(self._on_epoch)
        self._orders = OrderExecutor(
            self.node_id, follower, handlers(self), flows.send_report, self._wait_until_all_synced
        )
        self._heartbeats = self._loop.create_task(self._beat(), name="heartbeats")

    async def close(self) -> None:
        """Stop work and heartbeats, and wait until the last write to the disk has ended."""
        # Work ends first: its last reports still need the flows, which the caller closes after
        # this.
        await self._orders.close()
        self._heartbeats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._heartbeats
        if self._syncing is not None:
            # A thread cannot be cancelled: the write to node.json must end before the directory is
            # unlocked.
            await asyncio.wait([self._syncing])
        if self._ack_timer is not None:
            self._ack_timer.cancel()

    @property
    def boot_id(self) -> str:
        """The id of this start.

        As text it sorts after the ids of earlier starts (``domain.topology.barriers`` compares it).
        """
        return self._directory.identity.boot_id(self._life)

    @property
    def host_id(self) -> str:
        return self._directory.identity.host_id

    @property
    def image(self) -> Image:
        return self.follower.image

    def offer(self, order: Order) -> None:
        """Accept an order from the topic.

        Before the gate is open orders are dropped; the coordinator repeats them.
        """
        # An order before the gate is open would act on a log that may not be this node's.
        if self._gate.is_open:
            self._orders.offer(order)

    def hold(self, version: int, data_id: str, token: int) -> Hold:
        """Hold ``version`` for a request that chooses its replicas by it, until ``release``.

        The caller releases it after the last answer. Until then acks report the version as in use.
        """
        return self._versions.hold(version, data_id, token)

    def release(self, hold: Hold) -> None:
        self._versions.release(hold)

    async def wait_drained(self, version: int, timeout_s: float) -> None:
        """Wait until no request of this node holds a version below ``version``.

        Raises TimeoutError.
        """
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
        """Enter a session for the work of a topology operation.

        Check the guard before each effect.

        Raises SessionClosedError.
        """
        # Acks report the session from here on. The barrier after its closing waits for the release.
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

    def unknown_data(self) -> Collection[str]:
        """Return the ids of data whose rows are kept although the log has no such data."""
        return self._directory.identity.unknown_data

    def may_store(self, data_id: str) -> bool:
        """Return whether the epoch that created this data is on the disk.

        No row is stored before that.
        """
        return self._creations.is_synced(data_id)

    async def wait_until_synced(self, data_ids: Collection[str], timeout_s: float) -> None:
        """Wait until ``may_store`` is true for all these ids. Raises TimeoutError."""
        self._ack_soon()
        async with asyncio.timeout(timeout_s):
            await self._creations.wait(data_ids)

    async def _wait_until_all_synced(self, timeout_s: float) -> None:
        """Wait until the creations of all data are on the disk. Raises TimeoutError."""
        if self._creations.are_synced:
            return
        self._ack_soon()
        try:
            async with asyncio.timeout(timeout_s):
                await self._creations.wait_for_all()
        except TimeoutError:
            text = f"{self.node_id} could not sync the epoch that its data depends on in {timeout_s:g} s"
            raise TimeoutError(text) from None

    def _on_drained(self) -> None:
        # Each change has its own event, so that no waiter misses one and none must be cleared.
        drained, self._drained = self._drained, asyncio.Event()
        drained.set()
        self._ack_soon()

    def on_order(self, value: bytes) -> None:
        """Decode and accept an order; count those of other logs as foreign. Raises DecodeError."""
        order = decode_order(value)
        if order.log_id == self.image.log_id:
            self.offer(order)
        else:
            foreign_messages.labels("orders").inc()

    def _on_epoch(self, image: Image, delta: Delta) -> None:
        self._creations.follow(image, delta)
        self._versions.follow(image)
        self._sessions.follow(image.topology)
        self._ack_soon()

    def _ack_soon(self) -> None:
        if self._ack_timer is None:
            wait_s = self._acked_at_s + ACK_SPACING_S - self._loop.time()
            self._ack_timer = self._loop.call_later(max(0.0, wait_s), self._ack_if_changed)

    def _ack_if_changed(self) -> None:
        self._ack_timer = None
        if self._in_use() != self._acked or not self._creations.are_synced:
            self._ack()

    def _in_use(self) -> tuple[object, ...]:
        return self.image.epoch, self.oldest_version_in_use(), self._sessions.in_use()

    def may_acknowledge(self) -> bool:
        """Return whether acks may be sent.

        The gate must be open, and the reader must have no open suspicion about its log (rule 11).
        """
        return self._gate.is_open and not self.follower.is_suspended

    def _ack(self) -> None:
        """Send an ack, after its promises are on the disk."""
        if not self.may_acknowledge():
            return
        if self._sequence == NOT_BEGUN:
            self._sequence = self._directory.heartbeats.counted
        # Disk before network (rule 50): an ack is a promise that must survive a crash.
        if self._is_synced(self.image) and self._ahead() > 0:
            self._send_ack(self.image)
        else:
            self._ack_is_delayed = True
        # One write at a time: ``_sync`` continues with the newest image when it ends.
        if self._syncing is None and (self._ack_is_delayed or self._needs_heartbeats()):
            self._syncing = self._loop.create_task(self._sync(self.image))

    def _ahead(self) -> int:
        """Return how many acks may be sent before the number on the disk must be raised.

        The number on the disk is never behind the acks. A directory with a smaller number is
        therefore an older copy.
        """
        return self._directory.heartbeats.counted - self._sequence

    def _needs_heartbeats(self) -> bool:
        return self._directory.heartbeats.is_short(self._sequence)

    def _is_synced(self, image: Image) -> bool:
        """Return whether the disk has the promises of this image, and the creations of all data.

        Other processes rely on an acknowledged version, fence and exclusion. Stored data depends on
        its creation. A node may restart without any other epoch.
        """
        return self._has_promises(image) and self._creations.are_synced

    def _has_promises(self, image: Image) -> bool:
        known, topology = self._directory.identity.acknowledged, image.topology
        return (
            topology.version <= known.version
            and topology.fence_version <= known.fence_version
            and image.membership.last_exclusion() <= known.epoch
        )

    def _unsynced_record(self, image: Image) -> Acknowledged | None:
        """Return the record that the disk lacks, or None.

        If only a creation is missing, the record is of the creation's own epoch. The node then
        depends on no later epoch.
        """
        if not self._has_promises(image):
            return acknowledged_at(image)
        return None if self._creations.are_synced else self._creations.newest

    def _send_ack(self, image: Image) -> None:
        """Acknowledge ``image``, with the versions and sessions that are in use now.

        ``image`` is the newest image, or the one that was newest when the write to the disk began.
        """
        topology, sessions = image.topology, self._sessions.in_use()
        oldest = min(self._versions.oldest_in_use(topology.version), topology.version)
        self._acked, self._acked_at_s = (image.epoch, oldest, sessions), self._loop.time()
        self._sequence, self._ack_is_delayed = self._sequence + 1, False
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
                prepared=self._prepared_resizes(image),
            )
        )

    async def _sync(self, image: Image) -> None:
        """Put the promises of ``image`` on the disk, then acknowledge it.

        It is acknowledged even if a newer version has come.

        Otherwise a disk that is slower than the rounds would keep the node silent as long as rounds
        continue.
        """
        try:
            await asyncio.to_thread(self._put_on_disk, self._unsynced_record(image), self._sequence)
        except OSError as error:  # the next heartbeat retries
            if self._ack_is_delayed:
                log.warning("no acks: what they tell cannot be put on the disk", why=str(error))
            return
        finally:
            self._syncing = None
        self._creations.on_synced()
        is_behind = not self._is_synced(self.image)
        if is_behind and self._ahead() > 0 and self.may_acknowledge():
            self._send_ack(image)
        if is_behind or self._ack_is_delayed:
            self._ack()

    def _put_on_disk(self, lacking: Acknowledged | None, sequence: int) -> None:
        """Write the record and raise the heartbeat number. Runs in a thread. Raises OSError."""
        if lacking is not None:
            self._directory.save(acknowledged=lacking)
        if self._needs_heartbeats():
            self._directory.heartbeats.get_ahead_of(sequence)

    async def _beat(self) -> None:
        while True:
            if self.follower.failure is None:  # a node that cannot read further must not look alive
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
    prepared_resizes: PreparedResizes = all_resizes,
) -> AsyncIterator[Agent]:
    """Run an agent on the cluster's topics inside the block. The topics must exist.

    ``handlers`` returns the store's functions for orders, made for this agent.
    ``prepared_resizes`` is called before each ack.
    """
    cluster = directory.identity.cluster
    acks = FlowWriter(brokers, flow_topic(cluster, "acks"))
    reports = FlowWriter(brokers, flow_topic(cluster, "reports"))
    flows = Flows(
        send_ack=lambda ack: acks.send(ack.node_id, encode_ack(ack)),
        send_report=lambda report: reports.send(report.node_id, encode_report(report)),
    )
    agent = Agent(directory, gate, follower, flows, handlers, heartbeat_s, prepared_resizes)
    orders = FlowReader(
        brokers,
        flow_topic(cluster, "orders"),
        agent.on_order,
        _unreadable_order,
    )
    try:
        await start_across_outage(orders)
        yield agent
    finally:
        # The reader closes first, so that no order arrives at a closed agent.
        await orders.close()
        await agent.close()
        await acks.close()
        await reports.close()


def _unreadable_order(error: DecodeError) -> None:
    log.warning("order unreadable", why=str(error))
