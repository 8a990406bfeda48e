"""The level at which the present version's barrier is counted, and how far it may be relaxed.

The level and the lowest level are settings of the log. A relaxation of the present version's
barrier is a fact. A changed setting counts at once, in both directions (docs/design.md, rule 26).
"""

from collections.abc import Set

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.names import BarrierLevel
from stele.domain.ring.quorum import LEVELS, LevelFacts, lacking, rank
from stele.domain.topology.facts import Transition
from stele.domain.topology.guards import overtaken
from stele.domain.topology.limits import BARRIER_LEVEL, LOWEST_BARRIER_LEVEL
from stele.domain.topology.operations.table import OPERATIONS


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
