"""Who has applied what: the table of acknowledgements, and the barriers that rest on it (design, I5).

Both the coordinator and the session guard fold the same acks with these functions, so what gates a step
and what people are shown cannot differ.
"""

from collections.abc import Callable, Iterable, Set
from typing import Final

import msgspec
from immutables import Map

from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.messages import Ack, Load
from stele.domain.names import BarrierLevel
from stele.domain.topology.barriers import level_in_force, missing_replicas

OTHER_BOOT_AFTER_S: Final = 10.0
"""Twenty heartbeats: two processes of one node do not both live through such a silence."""


class Seen(msgspec.Struct, frozen=True):
    """The newest ack of a node and when it came, in seconds of the reader's own clock."""

    ack: Ack
    at_s: float


class AckTable(msgspec.Struct, frozen=True):
    """Newest ack by node. Late and doubled acks change nothing."""

    by_node: Map[str, Seen] = Map()

    def with_ack(self, ack: Ack, now_s: float) -> "AckTable":
        known = self.by_node.get(ack.node_id)
        if known is not None and not is_newer(ack, known.ack, now_s - known.at_s):
            return self
        return AckTable(self.by_node.set(ack.node_id, Seen(ack, now_s)))

    def silent_for_s(self, node_id: str, now_s: float) -> float:
        """Seconds since the node was heard; infinite when it never was."""
        seen = self.by_node.get(node_id)
        return float("inf") if seen is None else now_s - seen.at_s

    def silent_for_longer(
        self, nodes: Iterable[str], limit_s: float, now_s: float
    ) -> dict[str, float]:
        """Who of them was not heard for longer than the limit, and for how many seconds."""
        silent_s = {node_id: self.silent_for_s(node_id, now_s) for node_id in nodes}
        return {node_id: for_s for node_id, for_s in silent_s.items() if for_s > limit_s}


class Blocker(msgspec.Struct, frozen=True):
    """A node that holds a barrier up, why, and how long it has been silent (seconds)."""

    node_id: str
    why: str
    silent_for_s: float


class Barrier(msgspec.Struct, frozen=True):
    """How a barrier stands: ``complete`` when all answered; ``satisfied`` when enough did, see below.

    ``missing`` are the replicas whose answers ``level`` asks for and lacks.
    """

    complete: bool
    satisfied: bool
    blockers: tuple[Blocker, ...]
    level: BarrierLevel = BarrierLevel.EACH_QUORUM
    missing: frozenset[str] = frozenset()

    def held_up_by(self) -> tuple[Blocker, ...]:
        """The blockers that are missing."""
        return tuple(blocker for blocker in self.blockers if blocker.node_id in self.missing)


StateIdOf = Callable[[int], bytes | None]
"""The state id that an epoch made, as the counter's own log has it; None when it is not known."""


def unknown(epoch: int) -> bytes | None:
    return None


def barrier(
    image: Image,
    acks: AckTable,
    epoch: int,
    version: int,
    now_s: float,
    state_id_of: StateIdOf = unknown,
) -> Barrier:
    """Has every node that takes part applied ``epoch`` and drained what is older than ``version``?

    Drained means: no request of an older version on a range that changed, no work under a session that is
    not open any more (seed 000, global token metadata barrier). Excluded nodes are not waited for, but until
    all others know that they are: whoever knows it refuses what they may still send by an older version.
    It is satisfied when, for every transition that entered its state by this version, in every range that it
    touches, so many of the replicas before, of those after, and of both together have answered as the level in
    force asks for. From QUORUM up that is what I5 asks for: no quorum can do without them. A dead node that has
    nothing to do with these ranges holds nobody up. An ack of an epoch that has another state id in the
    counter's own log counts for nothing.
    """
    epoch = max(epoch, image.membership.last_exclusion())
    sessions = image.topology.sessions()
    passed, blockers = set[str](), list[Blocker]()
    for node_id, node in image.membership.taking_part().items():
        why = _is_not_its_host(acks, node) or _blocked_by(
            acks, node_id, epoch, version, sessions, state_id_of
        )
        if why:
            blockers.append(Blocker(node_id, why, acks.silent_for_s(node_id, now_s)))
        else:
            passed.add(node_id)
    missing = missing_of(image, passed, version)
    return Barrier(not blockers, not missing, tuple(blockers), level_in_force(image), missing)


def missing_of(image: Image, nodes: Set[str], version: int) -> frozenset[str]:
    """The replicas whose answers are still asked for, when ``nodes`` have answered."""
    entered = (t for t in image.topology.transitions.values() if t.entered_version == version)
    level = level_in_force(image)
    return frozenset[str]().union(*(missing_replicas(image, t, nodes, level) for t in entered))


def _is_not_its_host(acks: AckTable, node: Node) -> str:
    """Who acknowledges from another data directory does not have what the node had (I13)."""
    seen = acks.by_node.get(node.node_id)
    if seen is None or seen.ack.host_id == node.host_id:
        return ""
    return f"is heard from another data directory, host {seen.ack.host_id or '(none)'}"


def _blocked_by(
    acks: AckTable,
    node_id: str,
    epoch: int,
    version: int,
    open_sessions: Set[str],
    state_id_of: StateIdOf,
) -> str:
    seen = acks.by_node.get(node_id)
    if seen is None:
        return "was never heard"
    ack = seen.ack
    known = state_id_of(ack.epoch)
    if known is not None and ack.state_id != known:
        return f"is at epoch {ack.epoch} of another history"
    if ack.epoch < epoch:
        return f"has applied epoch {ack.epoch}, not {epoch}"
    if ack.oldest_version_in_use < version:
        return f"has requests of version {ack.oldest_version_in_use}, older than {version}"
    closed = [each for each in ack.sessions_in_use if each not in open_sessions]
    return f"still works under closed session {closed[0]}" if closed else ""


def is_newer(said: Ack | Load, known: Ack | Load, silent_s: float) -> bool:
    """Whether a node has said the one after the other, of which nothing was heard for ``silent_s``.

    Boots are ordered by their ids. When a clock was set back the later boot may have the lower id, so another
    boot is believed too once the one that is known has been silent for long.
    """
    if said.boot_id == known.boot_id:
        return said.sequence > known.sequence
    return said.boot_id > known.boot_id or silent_s > OTHER_BOOT_AFTER_S
