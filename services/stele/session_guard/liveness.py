"""Which nodes are up: heard within the time-out, with hysteresis. Pure; seconds of one monotonic clock."""

from typing import Final

import msgspec
from immutables import Map

from stele.domain.acks import AckTable
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.runtime.answers.session_guard import NodeLiveness

STEADY_PART: Final = 0.5
"""A node that was down is up again once it was heard, without a gap, for this part of the time-out."""


class Pulse(msgspec.Struct, frozen=True):
    """Whether a node counts as up, and since when it has been heard without a gap (seconds)."""

    up: bool
    last_s: float
    steady_since_s: float


class Pulses(msgspec.Struct, frozen=True):
    """Pulse by node. ``beat`` for each heartbeat, ``at`` before looking."""

    timeout_s: float
    by_node: Map[str, Pulse] = Map()

    def beat(self, node_id: str, now_s: float) -> "Pulses":
        known = self.by_node.get(node_id)
        if known is None:
            return self._set(node_id, Pulse(True, now_s, now_s))
        gap = now_s - known.last_s > self.timeout_s
        since_s = now_s if gap else known.steady_since_s
        steady = now_s - since_s >= STEADY_PART * self.timeout_s
        return self._set(node_id, Pulse((known.up and not gap) or steady, now_s, since_s))

    def at(self, now_s: float) -> "Pulses":
        """The pulses at ``now_s``: who was silent for longer than the time-out is down."""
        pulses = self
        for node_id, pulse in self.by_node.items():
            if pulse.up and now_s - pulse.last_s > self.timeout_s:
                pulses = pulses._set(node_id, msgspec.structs.replace(pulse, up=False))
        return pulses

    def is_up(self, node_id: str) -> bool:
        pulse = self.by_node.get(node_id)
        return pulse is not None and pulse.up

    def _set(self, node_id: str, pulse: Pulse) -> "Pulses":
        return Pulses(self.timeout_s, self.by_node.set(node_id, pulse))


def liveness(image: Image, acks: AckTable, pulses: Pulses, now_s: float) -> list[NodeLiveness]:
    """All nodes that have not left, by id."""
    pulses = pulses.at(now_s)
    nodes = image.membership.nodes
    here = [n for n in sorted(nodes) if nodes[n].state is not NodeState.LEFT]
    return [_node(image, acks, pulses, node_id, now_s) for node_id in here]


def _node(image: Image, acks: AckTable, pulses: Pulses, node_id: str, now_s: float) -> NodeLiveness:
    seen = acks.by_node.get(node_id)
    if seen is None:
        return NodeLiveness(node_id, False, 0, None, 0, None)
    return NodeLiveness(
        node_id=node_id,
        up=pulses.is_up(node_id),
        epoch=seen.ack.epoch,
        lag=max(0, image.epoch - seen.ack.epoch),
        version=seen.ack.version,
        silent_for_s=now_s - seen.at_s,
    )
