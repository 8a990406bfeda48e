"""What one session guard knows: the image, the newest ack of each node, who is up, who blocks what."""

import time

from stele.domain.acks import AckTable
from stele.domain.image import NO_LOG, Image
from stele.log.codec import DecodeError, decode_ack
from stele.log.follower import LogFollower
from stele.runtime.answers.session_guard import BarrierView, Liveness, NodeLiveness
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.session_guard import metrics
from stele.session_guard.barriers import Blocking, Target, current_target, view
from stele.session_guard.liveness import LivenessTracker, liveness_of_all
from stele.session_guard.permissions import Permissions

log = get_logger(__name__)


class Guard:
    """The fold of acks over the image; no input or output of its own."""

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
            log_id=log_id(image),
            epoch=image.epoch,
            version=topology.version,
            fence_version=topology.fence_version,
            sessions=open_sessions(image),
        )

    def on_ack(self, value: bytes, age_s: float = 0.0) -> None:
        """Fold one record; what cannot be decoded is counted and left out.

        One that is read from before this process's time has an age: it tells what its node has applied,
        and nothing about whether the node is up.
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
        """Every ack that was sent between ``began_s`` and ``at_s`` has come to ``on_ack``."""
        self._tracker = self._tracker.read_until(at_s, began_s)

    def barrier(self, target: Target | None = None) -> BarrierView:
        """How a barrier stands; without a target the one of the newest step."""
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

    def look(self) -> None:
        """Note who blocks now, so that how long is known when somebody asks; measure."""
        metrics.blockers.set(len(self.barrier().blockers))
        nodes = self.nodes()
        for liveness in Liveness:
            metrics.nodes.labels(liveness).set(sum(node.liveness is liveness for node in nodes))


def log_id(image: Image) -> str:
    """Which incarnation of the log the image was read from; empty before the cluster is created."""
    return "" if image.log_id == NO_LOG else image.log_id.hex()


def open_sessions(image: Image) -> tuple[str, ...]:
    """The sessions under which work may go on, in order of their ids."""
    return tuple(sorted(image.topology.sessions()))
