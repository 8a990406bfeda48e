"""Which nodes are up: heard within the time-out, with hysteresis. Pure; seconds of one monotonic clock.

Silence counts only as far as the acks were *read*. A guard that was paused, cut off, or put out of its group
has heard nobody, and that says nothing about the nodes: after such a gap each node gets a full time-out of
reading before it is declared down, and until then is unknown.
"""

from typing import Final

import msgspec
from immutables import Map

from stele.domain.acks import AckTable
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.runtime.answers.session_guard import Liveness, NodeLiveness

STEADY_PART: Final = 0.5
"""A node that was down is up again once it was heard, without a gap, for this part of the time-out."""
READING_GAP_S: Final = 2.5
"""Reading is confirmed at each answer to a fetch, which a quiet partition gives every 1.5 s."""
NEVER: Final = float("-inf")


class LastSeen(msgspec.Struct, frozen=True):
    """When a node was last heard, since when without a gap, and whether it has been declared down."""

    last_s: float
    steady_since_s: float
    down: bool = False


class LivenessTracker(msgspec.Struct, frozen=True):
    """What is known of each node. ``heard`` for each ack, ``read_until`` for each confirmation."""

    timeout_s: float
    reading_since_s: float = NEVER
    read_until_s: float = NEVER
    """All acks that were sent before this are in here, back to ``reading_since_s``."""
    by_node: Map[str, LastSeen] = Map()

    def seen(self, node_id: str, now_s: float) -> "LivenessTracker":
        known = self.by_node.get(node_id)
        if known is None:
            return self._with(node_id, LastSeen(now_s, now_s))
        gap = known.down and now_s - known.last_s > self.timeout_s
        since_s = now_s if gap else known.steady_since_s
        down = known.down and now_s - since_s < STEADY_PART * self.timeout_s
        return self._with(node_id, LastSeen(now_s, since_s, down))

    def read_until(self, at_s: float, began_s: float = NEVER) -> "LivenessTracker":
        """Every ack from between ``began_s``, when the reader began, and ``at_s`` has been told to ``heard``.

        Who was silent for too long is down.
        """
        if at_s <= self.read_until_s:
            return self
        gap = at_s - self.read_until_s > READING_GAP_S
        since_s = at_s if gap else max(self.reading_since_s, began_s)
        by_node = self.by_node
        for node_id, known in self.by_node.items():
            if not known.down and at_s - max(known.last_s, since_s) > self.timeout_s:
                by_node = by_node.set(node_id, msgspec.structs.replace(known, down=True))
        return LivenessTracker(self.timeout_s, since_s, at_s, by_node)

    def liveness(self, node_id: str, now_s: float) -> Liveness:
        known = self.by_node.get(node_id)
        if known is None:
            read_long_enough = self.read_until_s - self.reading_since_s > self.timeout_s
            return Liveness.DOWN if read_long_enough else Liveness.UNKNOWN
        if known.down:
            return Liveness.DOWN
        return Liveness.UP if now_s - known.last_s <= self.timeout_s else Liveness.UNKNOWN

    def _with(self, node_id: str, last_seen: LastSeen) -> "LivenessTracker":
        return msgspec.structs.replace(self, by_node=self.by_node.set(node_id, last_seen))


def liveness_of_all(
    image: Image, acks: AckTable, tracker: LivenessTracker, now_s: float
) -> list[NodeLiveness]:
    """All nodes that have not left, by id."""
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
    )
