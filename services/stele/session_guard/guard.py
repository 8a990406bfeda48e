"""What one session guard knows: the image, the newest ack of each node, who is up, who blocks what."""

import time

from stele.domain.acks import AckTable
from stele.domain.image import Image
from stele.log.codec import DecodeError, decode_ack
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.session_guard import metrics
from stele.session_guard.barriers import (
    BarrierView,
    Blocking,
    Target,
    current_target,
    view,
)
from stele.session_guard.liveness import NodeLiveness, Pulses, liveness

log = get_logger(__name__)


class Guard:
    """The fold of acks over the image; no input or output of its own."""

    def __init__(self, follower: LogFollower, heartbeat_timeout_s: float) -> None:
        self._follower = follower
        self._acks = AckTable()
        self._pulses = Pulses(heartbeat_timeout_s)
        self._blocking = Blocking()

    @property
    def image(self) -> Image:
        return self._follower.image

    def on_ack(self, value: bytes) -> None:
        """Fold one record; what cannot be decoded is counted and left out."""
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
        self._acks = self._acks.with_ack(ack, now_s)
        self._pulses = self._pulses.at(now_s).beat(ack.node_id, now_s)

    def barrier(self, target: Target | None = None) -> BarrierView:
        """How a barrier stands; without a target the one of the newest step."""
        found, self._blocking = view(
            self.image,
            self._acks,
            self._blocking,
            target or current_target(self.image),
            time.monotonic(),
            self._follower.state_id_of,
        )
        return found

    def nodes(self) -> list[NodeLiveness]:
        now_s = time.monotonic()
        self._pulses = self._pulses.at(now_s)
        return liveness(self.image, self._acks, self._pulses, now_s)

    def look(self) -> None:
        """Note who blocks now, so that how long is known when somebody asks; measure."""
        found, nodes = self.barrier(), self.nodes()
        metrics.blockers.set(len(found.blockers))
        metrics.nodes.labels("up").set(sum(node.up for node in nodes))
        metrics.nodes.labels("down").set(sum(not node.up for node in nodes))
