"""Planted bugs of the levels of barriers: whose answers are counted, and when one is relaxed.

What runs in the simulator has one datacentre, where the levels from EACH_QUORUM to LOCAL_QUORUM are the same.
"""

from collections.abc import Set
from typing import Final

import msgspec

from stele.domain.features.counts import Choice
from stele.domain.image import Image
from stele.domain.names import BarrierLevel
from stele.domain.registry import FACTS
from stele.domain.ring.barrier_levels import LEVELS, Where, lacking, rank
from stele.domain.topology import decide
from stele.domain.topology.barriers import level_in_force, next_lower
from stele.domain.topology.domain import DOMAIN
from stele.domain.topology.facts import VersionsChanged
from stele.domain.topology.image import TopologyImage
from stele.sim.patching import Patch


def barrier_is_relaxed_though_that_is_off(patch: Patch) -> None:
    """After a while the next lower level will do, whatever the settings say."""

    def lower(image: Image) -> BarrierLevel | None:
        level = rank(level_in_force(image))
        return LEVELS[level + 1] if level + 1 < len(LEVELS) else None

    patch.function(next_lower, lower)


def quorums_of_dcs_are_counted_over_all(patch: Patch) -> None:
    """Each dc needs as many answers as its quorum has, from wherever they come."""
    plain = lacking

    def counted(
        level: BarrierLevel, replicas: Set[str], answered: Set[str], where: Where
    ) -> frozenset[str]:
        if level is not BarrierLevel.EACH_QUORUM:
            return plain(level, replicas, answered, where)
        sizes = [len(group) for group in where.by_dc(replicas).values()]
        enough = all(len(replicas & answered) >= (size + 1) // 2 for size in sizes)
        return frozenset() if enough else frozenset(replicas - answered - where.excluded)

    patch.function(lacking, counted)


def barrier_stays_relaxed(patch: Patch) -> None:
    """Once a barrier was relaxed, those of all later versions are."""
    plain = DOMAIN.apply[VersionsChanged]

    def changed(image: TopologyImage, fact: VersionsChanged) -> TopologyImage:
        after: TopologyImage = plain(image, fact)
        if after.relaxed_to or not image.relaxed_to:
            return after
        return msgspec.structs.replace(after, relaxed_to=image.relaxed_to)

    patch.item(FACTS, VersionsChanged, (DOMAIN.name, changed))


def unsafe_level_needs_no_force(patch: Patch) -> None:
    """A level that gives up I5 is taken like any other."""
    patch.attribute(Choice, "is_unsafe", lambda self, text: False)


def counted_level_is_believed(patch: Patch) -> None:
    """A barrier that was counted at a lower level counts although a higher one is in force by now."""
    patch.attribute(decide, "check_counted_at", lambda image, level: None)


BARRIER_MUTANTS: Final = (
    counted_level_is_believed,
    barrier_is_relaxed_though_that_is_off,
    quorums_of_dcs_are_counted_over_all,
    barrier_stays_relaxed,
    unsafe_level_needs_no_force,
)
