"""The state of one session-guard: the image, the newest ack of each node, liveness and blockers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec
from immutables import Map

from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.observed_time import NEVER, ObservedTime
from stele.domain.topology.barriers import AckTable, StateIdOf, barrier, unknown, why_not_applied
from stele.log.codec import DecodeError, decode_ack
from stele.log.follower import LogFollower
from stele.runtime.answers.session_guard import (
    BarrierView,
    BlockerView,
    Liveness,
    MemberSchema,
    NodeLiveness,
    SchemaAgreement,
)
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.session_guard import metrics
from stele.session_guard.check import Permissions

# Liveness of nodes: an ack within the timeout, with hysteresis.
#
# Pure; seconds of one monotonic clock. Silence counts only as far as the acks were *read*. A guard
# that was paused, cut off, or removed from its consumer group has received no acks, which proves
# nothing about the nodes. After such a gap each node gets a full timeout of reading before it is
# declared down. Until then it is unknown.


STEADY_PART: Final = 0.5
"""A node that was down is up after acks without a gap for this part of the timeout."""
READING_GAP_S: Final = 2.5
"""Longest gap in reading, in seconds.

A fetch confirms it; a quiet partition answers one every 1.5 s.
"""


class LastSeen(msgspec.Struct, frozen=True):
    """When a node's last ack came, since when without a gap, and whether the node was declared
    down.
    """

    last_s: float
    steady_since_s: float
    down: bool = False


class LivenessTracker(msgspec.Struct, frozen=True):
    """Liveness of each node.

    Call ``seen`` for each ack and ``read_until`` for each confirmation.
    """

    timeout_s: float
    reading: ObservedTime = ObservedTime(READING_GAP_S)
    """Times for which all acks that were sent are included here."""
    by_node: Map[str, LastSeen] = Map()

    def seen(self, node_id: str, now_s: float) -> LivenessTracker:
        known = self.by_node.get(node_id)
        if known is None:
            return self._with(node_id, LastSeen(now_s, now_s))
        gap = known.down and now_s - known.last_s > self.timeout_s
        since_s = now_s if gap else known.steady_since_s
        down = known.down and now_s - since_s < STEADY_PART * self.timeout_s
        return self._with(node_id, LastSeen(now_s, since_s, down))

    def read_until(self, at_s: float, began_s: float = NEVER) -> LivenessTracker:
        """Record that every ack from ``began_s``, the reader's start, to ``at_s`` was passed to
        ``seen``.

        Nodes that were silent for too long are declared down.
        """
        if at_s <= self.reading.until_s:
            return self
        reading, by_node = self.reading.confirmed(at_s, began_s), self.by_node
        for node_id, known in self.by_node.items():
            if not known.down and reading.elapsed_s(known.last_s, at_s) > self.timeout_s:
                by_node = by_node.set(node_id, msgspec.structs.replace(known, down=True))
        return LivenessTracker(self.timeout_s, reading, by_node)

    def liveness(self, node_id: str, now_s: float) -> Liveness:
        known = self.by_node.get(node_id)
        if known is None:
            observed_s = self.reading.elapsed_s(NEVER, self.reading.until_s)
            return Liveness.DOWN if observed_s > self.timeout_s else Liveness.UNKNOWN
        if known.down:
            return Liveness.DOWN
        return Liveness.UP if now_s - known.last_s <= self.timeout_s else Liveness.UNKNOWN

    def is_returning(self, node_id: str, now_s: float) -> bool:
        """Return whether a node that was down sends heartbeats again, but not yet steadily."""
        known = self.by_node.get(node_id)
        return known is not None and known.down and now_s - known.last_s <= self.timeout_s

    def _with(self, node_id: str, last_seen: LastSeen) -> LivenessTracker:
        return msgspec.structs.replace(self, by_node=self.by_node.set(node_id, last_seen))


def liveness_of_all(
    image: Image, acks: AckTable, tracker: LivenessTracker, now_s: float
) -> list[NodeLiveness]:
    """Return the liveness of all nodes that have not left, by id."""
    nodes = image.membership.nodes
    here = [n for n in sorted(nodes) if nodes[n].state is not NodeState.LEFT]
    return [_one(image, acks, tracker, node_id, now_s) for node_id in here]


def _one(
    image: Image, acks: AckTable, tracker: LivenessTracker, node_id: str, now_s: float
) -> NodeLiveness:
    liveness, seen = tracker.liveness(node_id, now_s), acks.by_node.get(node_id)
    if seen is None:
        return NodeLiveness(node_id, liveness)
    return NodeLiveness(
        node_id=node_id,
        liveness=liveness,
        epoch=seen.ack.epoch,
        lag=max(0, image.epoch - seen.ack.epoch),
        version=seen.ack.version,
        silent_for_s=now_s - seen.at_s,
        returning=tracker.is_returning(node_id, now_s),
    )


def schema_agreement(
    image: Image,
    acks: AckTable,
    tracker: LivenessTracker,
    now_s: float,
    epoch: int = 0,
    state_id_of: StateIdOf = unknown,
) -> SchemaAgreement:
    """Return which members have applied ``epoch``; 0 is the epoch of the schema's version.

    Members that are down do not count. Those whose liveness is unknown do, because they may serve
    requests.
    """
    version = image.schema.version
    wanted, members = epoch or version.epoch, list[MemberSchema]()
    for node_id, node in image.membership.taking_part().items():
        why = why_not_applied(acks, node, wanted, state_id_of)
        seen = acks.by_node.get(node_id)
        acked = 0 if seen is None else seen.ack.epoch
        liveness = tracker.liveness(node_id, now_s)
        members.append(MemberSchema(node_id, liveness, acked, not why, why))
    behind = tuple(
        each.node_id for each in members if each.why and each.liveness is not Liveness.DOWN
    )
    return SchemaAgreement(
        epoch=wanted,
        schema_version=version,
        # An image before ``wanted`` may lack a member that joined in between.
        agreed=image.epoch >= wanted and not behind,
        behind=behind,
        members=tuple(members),
    )


# Barriers for operators: each blocker's name, reason, and how long it has blocked. Pure.


Target = tuple[int, int]
"""Epoch and version that a barrier waits for."""


class Blocking(msgspec.Struct, frozen=True):
    """Times since which each node has blocked the barrier of the newest step, in seconds."""

    target: Target = (0, 0)
    since_s: Map[str, float] = Map()

    def now(self, target: Target, nodes: Iterable[str], now_s: float) -> Blocking:
        """Return the memory with ``nodes`` as present blockers.

        Nodes that blocked this target before keep their time.
        """
        before = self.since_s if target == self.target else Map[str, float]()
        return Blocking(target, Map({node: before.get(node, now_s) for node in nodes}))


def current_target(image: Image) -> Target:
    """Return the target of the newest step."""
    topology = image.topology
    return topology.since_epoch, topology.version


def view(
    image: Image,
    acks: AckTable,
    blocking: Blocking,
    target: Target,
    now_s: float,
    state_id_of: StateIdOf = unknown,
) -> tuple[BarrierView, Blocking]:
    """Return the state of the barrier, and the memory of the blockers of the newest step.

    Blockers of any other target have no ``blocking_for_s``.
    """
    epoch, version = target
    standing = barrier(image, acks, epoch, version, now_s, state_id_of)
    since_s = Map[str, float]()
    if target == current_target(image):
        blocking = blocking.now(target, (b.node_id for b in standing.blockers), now_s)
        since_s = blocking.since_s
    blockers = tuple(
        BlockerView(
            b.node_id,
            b.why,
            None if b.silent_for_s == float("inf") else b.silent_for_s,
            now_s - since_s[b.node_id] if b.node_id in since_s else None,
        )
        for b in standing.blockers
    )
    seen = BarrierView(
        standing.complete,
        standing.satisfied,
        blockers,
        epoch,
        version,
        standing.level,
        tuple(sorted(standing.missing)),
    )
    return seen, blocking


log = get_logger(__name__)


class Guard:
    """The fold of acks over the image. It does no input or output."""

    def __init__(self, follower: LogFollower, heartbeat_timeout_s: float) -> None:
        self._follower = follower
        self._acks = AckTable()
        self._tracker = LivenessTracker(heartbeat_timeout_s)
        self._blocking = Blocking()

    @property
    def image(self) -> Image:
        return self._follower.image

    def permissions(self) -> Permissions:
        image = self.image
        topology = image.topology
        return Permissions(
            log_id=image.founding.log_id_hex,
            epoch=image.epoch,
            version=topology.version,
            fence_version=topology.fence_version,
            sessions=open_sessions(image),
        )

    def on_ack(self, value: bytes, age_s: float = 0.0) -> None:
        """Fold one record. Records that cannot be decoded are counted and skipped.

        ``age_s`` is positive for a record from before this process's start. Its ack shows what the
        node has applied, but not whether the node is up.
        """
        try:
            ack = decode_ack(value)
        except DecodeError as error:
            metrics.unreadable.inc()
            log.warning("left out a record", error=str(error))
            return
        if ack.log_id != self.image.log_id:
            foreign_messages.labels("acks").inc()
            return
        metrics.acks.inc()
        now_s = time.monotonic()
        self._acks = self._acks.with_ack(ack, now_s - age_s)
        if age_s == 0:
            self._tracker = self._tracker.seen(ack.node_id, now_s)

    def on_read_until(self, at_s: float, began_s: float) -> None:
        """Record that every ack sent between ``began_s`` and ``at_s`` was passed to ``on_ack``."""
        self._tracker = self._tracker.read_until(at_s, began_s)

    def barrier(self, target: Target | None = None) -> BarrierView:
        """Return the state of a barrier; without a target, of the newest step's."""
        standing, self._blocking = view(
            self.image,
            self._acks,
            self._blocking,
            target or current_target(self.image),
            time.monotonic(),
            self._follower.state_id_of,
        )
        return standing

    def nodes(self) -> list[NodeLiveness]:
        return liveness_of_all(self.image, self._acks, self._tracker, time.monotonic())

    def schema_agreement(self, epoch: int = 0) -> SchemaAgreement:
        """Return which members have applied an epoch; without one, the schema's version."""
        return schema_agreement(
            self.image,
            self._acks,
            self._tracker,
            time.monotonic(),
            epoch,
            self._follower.state_id_of,
        )

    def look(self) -> None:
        """Note the present blockers, so that later answers include how long they block.

        Update the metrics.
        """
        metrics.blockers.set(len(self.barrier().blockers))
        nodes = self.nodes()
        for liveness in Liveness:
            metrics.nodes.labels(liveness).set(sum(node.liveness is liveness for node in nodes))


def open_sessions(image: Image) -> tuple[str, ...]:
    """Return the open sessions, ordered by id."""
    return tuple(sorted(image.topology.sessions()))
