"""Barriers as people see them: with each blocker's name, reason, and how long it has blocked. Pure."""

from typing import Final

import msgspec
from immutables import Map

from stele.domain.acks import AckTable, StateIdOf, barrier, unknown
from stele.domain.image import Image
from stele.runtime.answers.session_guard import BarrierView, BlockerView

Target = tuple[int, int]
"""Epoch and version that a barrier waits for."""

KEPT_TARGETS: Final = 32
"""Barriers remembered: the present one, those just before, and what people ask about."""


class Blocking(msgspec.Struct, frozen=True):
    """Since when each node has blocked each barrier: target -> node -> seconds."""

    by_target: Map[Target, Map[str, float]] = Map()
    order: tuple[Target, ...] = ()

    def since(self, target: Target, nodes: frozenset[str], now_s: float) -> "Blocking":
        """The nodes that block the target now; those that blocked it before keep their time."""
        known = self.by_target.get(target)
        before: Map[str, float] = Map() if known is None else known
        since_s = Map({node: before.get(node, now_s) for node in sorted(nodes)})
        by_target = self.by_target.set(target, since_s)
        order = self.order if known is not None else (*self.order, target)
        if len(order) > KEPT_TARGETS:
            by_target, order = by_target.delete(order[0]), order[1:]
        return Blocking(by_target, order)


def current_target(image: Image) -> Target:
    """What the newest step waits for."""
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
    """How the barrier stands, and the memory of who has blocked it."""
    epoch, version = target
    standing = barrier(image, acks, epoch, version, now_s, state_id_of)
    blocking = blocking.since(target, frozenset(b.node_id for b in standing.blockers), now_s)
    since_s = blocking.by_target[target]
    blockers = tuple(
        BlockerView(
            b.node_id,
            b.why,
            None if b.silent_for_s == float("inf") else b.silent_for_s,
            now_s - since_s[b.node_id],
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
