"""Barriers: their level, the acknowledgements, and the members that are missing."""

from collections.abc import Callable, Iterable, Set
from typing import Final

import msgspec
from immutables import Map

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.messages import Ack, Load
from stele.domain.model.membership import Node
from stele.domain.model.settings import BARRIER_LEVEL, LOWEST_BARRIER_LEVEL
from stele.domain.model.transitions import Transition
from stele.domain.names import BarrierLevel
from stele.domain.ring.quorum import LEVELS, LevelFacts, lacking, rank
from stele.domain.rules.requests import overtaken
from stele.domain.topology.operations.table import OPERATIONS

# The level at which the present version's barrier is counted, and how far it may be relaxed.
#
# The level and the lowest level are settings of the log. A relaxation of the present version's
# barrier is a fact. A changed setting counts at once, in both directions (docs/design.md, rule
# 26).


def configured_level(image: Image) -> BarrierLevel:
    """Return the level of the settings."""
    return BarrierLevel(BARRIER_LEVEL.of(image.features.settings))


def lowest_level(image: Image) -> BarrierLevel:
    """Return the level down to which the settings let a barrier be relaxed, at most the configured
    one.
    """
    lowest = BarrierLevel(LOWEST_BARRIER_LEVEL.of(image.features.settings))
    # A higher rank is a lower level.
    return max(configured_level(image), lowest, key=rank)


def level_in_force(image: Image) -> BarrierLevel:
    """Return the level that the present version's barrier must reach."""
    relaxed_to, level = image.topology.relaxed_to, configured_level(image)
    if not relaxed_to:
        return level
    return min(max(level, BarrierLevel(relaxed_to), key=rank), lowest_level(image), key=rank)


def lowered_level(image: Image) -> str:
    """Return the level in force if it was relaxed; empty if it was not."""
    level = level_in_force(image)
    return "" if level is configured_level(image) else level


def next_lower(image: Image) -> BarrierLevel | None:
    """Return the level to which the present version's barrier may be relaxed now; None if there is
    none.
    """
    level = rank(level_in_force(image))
    return LEVELS[level + 1] if level < rank(lowest_level(image)) else None


def check_counted_at(image: Image, level: str) -> Rejection | None:
    """Refuse a barrier that was counted at a lower level than the one in force."""
    asked = level_in_force(image)
    if not level or (level in LEVELS and rank(BarrierLevel(level)) <= rank(asked)):
        return None
    return overtaken(image, f"The barrier was counted at {level}, and {asked} is in force now.")


def let_through(image: Image, level: str) -> str:
    """Return the level at which a barrier was counted if the settings ask for a higher one;
    otherwise empty.
    """
    return level if level and rank(BarrierLevel(level)) > rank(configured_level(image)) else ""


def missing_replicas(
    image: Image,
    transition: Transition,
    answered: Set[str],
    level: BarrierLevel,
    excluded: Set[str] = frozenset(),
) -> frozenset[str]:
    """Return the replicas whose answers the barrier of a transition still lacks at a level.

    ``excluded`` nodes count as excluded in addition to those of the image.
    """
    nodes = image.membership.nodes
    where = LevelFacts(
        {node_id: node.dc for node_id, node in nodes.items()},
        image.membership.excluded() | excluded,
        {nodes[node_id].dc for node_id in transition.nodes()},
    )
    touched = OPERATIONS[transition.kind].touched(image, transition)
    return frozenset[str]().union(*(lacking(level, r, answered, where) for r in touched))


# The table of acknowledgements, and the barriers computed from it.
#
# The coordinator and the session-guard use the same functions. The gate of a step and the
# displayed barrier therefore never differ (docs/design.md, rule 25 and I5).


OTHER_BOOT_AFTER_S: Final = 10.0
"""Twenty heartbeats. Two processes of one node never both live through such a silence."""


class Seen(msgspec.Struct, frozen=True):
    """The newest ack of a node and its time of arrival, in seconds of the reader's own clock."""

    ack: Ack
    at_s: float


class AckTable(msgspec.Struct, frozen=True):
    """The newest ack of each node. Late and repeated acks change nothing."""

    by_node: Map[str, Seen] = Map()

    def with_ack(self, ack: Ack, now_s: float) -> "AckTable":
        known = self.by_node.get(ack.node_id)
        # Acks may arrive late or twice. The table must never go back.
        if known is not None and not is_newer(ack, known.ack, now_s - known.at_s):
            return self
        return AckTable(self.by_node.set(ack.node_id, Seen(ack, now_s)))

    def silent_for_s(self, node_id: str, now_s: float) -> float:
        """Return the seconds since the node's newest ack; infinite if there is none."""
        seen = self.by_node.get(node_id)
        return float("inf") if seen is None else now_s - seen.at_s

    def silent_for_longer(
        self, nodes: Iterable[str], limit_s: float, now_s: float
    ) -> dict[str, float]:
        """Return the nodes without an ack for longer than the limit, with the seconds."""
        silent_s = {node_id: self.silent_for_s(node_id, now_s) for node_id in nodes}
        return {node_id: for_s for node_id, for_s in silent_s.items() if for_s > limit_s}


class Blocker(msgspec.Struct, frozen=True):
    """A node that a barrier waits for, the reason, and the seconds since its newest ack."""

    node_id: str
    why: str
    silent_for_s: float


class Barrier(msgspec.Struct, frozen=True):
    """The state of a barrier: ``complete`` when all have answered, ``satisfied`` when enough have.

    ``missing`` are the replicas whose answers ``level`` needs and lacks.
    """

    complete: bool
    satisfied: bool
    blockers: tuple[Blocker, ...]
    level: BarrierLevel = BarrierLevel.EACH_QUORUM
    missing: frozenset[str] = frozenset()

    def held_up_by(self) -> tuple[Blocker, ...]:
        """Return the blockers that the level needs."""
        return tuple(blocker for blocker in self.blockers if blocker.node_id in self.missing)


StateIdOf = Callable[[int], bytes | None]
"""Function from an epoch to its state id in the counter's own log; None when it is unknown."""


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
    """Return the barrier of ``epoch``, which also drains the versions below ``version``.

    A drained node has no request of an older version on a changed range. It has no work under a
    session that is not open (ScyllaDB, topology-over-raft.md, "Topology guards"). Excluded nodes
    are not counted. All others must first apply their exclusion, because they then refuse the
    requests of excluded nodes.

    The barrier is satisfied when the level in force is reached for each transition that entered its
    state in this version. The level is checked in every range of the transition: for the replicas
    before, after, and both together. From QUORUM up this is I5: no quorum can form without a node
    that answered. A dead node outside of these ranges delays no barrier. An ack does not count
    where its epoch has another state id in the counter's own log (docs/design.md, rules 13, 25, 26,
    28).
    """
    # The counted nodes refuse an excluded node only after they have applied its exclusion.
    epoch = max(epoch, image.membership.last_exclusion())
    sessions = image.topology.sessions()
    passed, blockers = set[str](), list[Blocker]()
    for node_id, node in image.membership.taking_part().items():
        why = why_not_applied(acks, node, epoch, state_id_of) or _blocked_by(
            acks, node_id, version, sessions
        )
        if why:
            blockers.append(Blocker(node_id, why, acks.silent_for_s(node_id, now_s)))
        else:
            passed.add(node_id)
    missing = missing_of(image, passed, version)
    return Barrier(not blockers, not missing, tuple(blockers), level_in_force(image), missing)


def missing_of(image: Image, nodes: Set[str], version: int) -> frozenset[str]:
    """Return the replicas that the barrier still needs, when ``nodes`` have answered."""
    # Transitions that entered their state in an earlier version passed their barrier then.
    entered = (t for t in image.topology.transitions.values() if t.entered_version == version)
    level = level_in_force(image)
    return frozenset[str]().union(*(missing_replicas(image, t, nodes, level) for t in entered))


def why_not_applied(
    acks: AckTable, node: Node, epoch: int, state_id_of: StateIdOf = unknown
) -> str:
    """Return why the acks do not prove that a node has applied ``epoch``; empty if they do."""
    seen = acks.by_node.get(node.node_id)
    if seen is None:
        return "never sent a heartbeat"
    ack = seen.ack
    # Another data directory does not have the data that the node had (I13).
    if ack.host_id != node.host_id:
        return f"runs with another data directory, host {ack.host_id or '(none)'}"
    # Equal epochs of two histories are different states, so the state id is compared before the
    # epoch.
    known = state_id_of(ack.epoch)
    if known is not None and ack.state_id != known:
        return f"is at epoch {ack.epoch} of another history"
    if ack.epoch < epoch:
        return f"has applied epoch {ack.epoch}, not {epoch}"
    return ""


def _blocked_by(acks: AckTable, node_id: str, version: int, open_sessions: Set[str]) -> str:
    """Return what the node still uses of older versions, or an empty text. It has sent an ack."""
    ack = acks.by_node[node_id].ack
    if ack.oldest_version_in_use < version:
        return f"has requests of version {ack.oldest_version_in_use}, older than {version}"
    # Work under an open session belongs to the present step and may continue.
    closed = [each for each in ack.sessions_in_use if each not in open_sessions]
    return f"still works under closed session {closed[0]}" if closed else ""


def is_newer(said: Ack | Load, known: Ack | Load, silent_s: float) -> bool:
    """Return True if ``said`` is newer than ``known``, two messages of one node.

    ``silent_s`` are the seconds since the newest message of the node. Boots are ordered by their
    ids. After a clock was set back, the later boot may have the lower id. Another boot is therefore
    accepted too once the known one has been silent for ``OTHER_BOOT_AFTER_S``.
    """
    if said.boot_id == known.boot_id:
        return said.sequence > known.sequence
    return said.boot_id > known.boot_id or silent_s > OTHER_BOOT_AFTER_S
