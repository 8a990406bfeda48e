"""At which level the barrier of the present version is counted, and how far it may be relaxed.

The level and the lowest one are settings of the log; how far the present version's barrier was relaxed is a
fact. A setting that changes counts at once, in both directions.
"""

from collections.abc import Set

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.names import BarrierLevel
from stele.domain.ring.barrier_levels import LEVELS, Where, lacking, rank
from stele.domain.topology.facts import Transition
from stele.domain.topology.guards import overtaken
from stele.domain.topology.limits import BARRIER_LEVEL, LOWEST_BARRIER_LEVEL
from stele.domain.topology.operations.table import OPERATIONS


def configured_level(image: Image) -> BarrierLevel:
    """What the settings ask for."""
    return BarrierLevel(BARRIER_LEVEL.of(image.features.settings))


def lowest_level(image: Image) -> BarrierLevel:
    """How far the settings let a barrier be relaxed; the level itself when they do not."""
    lowest = BarrierLevel(LOWEST_BARRIER_LEVEL.of(image.features.settings))
    return max(configured_level(image), lowest, key=rank)


def level_in_force(image: Image) -> BarrierLevel:
    """What the present version's barrier asks for."""
    relaxed_to, level = image.topology.relaxed_to, configured_level(image)
    if not relaxed_to:
        return level
    return min(max(level, BarrierLevel(relaxed_to), key=rank), lowest_level(image), key=rank)


def lowered_level(image: Image) -> str:
    """The level in force where the present version's barrier was relaxed to it; empty where it was not."""
    level = level_in_force(image)
    return "" if level is configured_level(image) else level


def next_lower(image: Image) -> BarrierLevel | None:
    """The level that the present version's barrier may be relaxed to now; None when there is none."""
    level = rank(level_in_force(image))
    return LEVELS[level + 1] if level < rank(lowest_level(image)) else None


def check_counted_at(image: Image, level: str) -> Rejection | None:
    """A barrier that was counted at a level counts no more once a higher one is in force."""
    asked = level_in_force(image)
    if not level or (level in LEVELS and rank(BarrierLevel(level)) <= rank(asked)):
        return None
    return overtaken(image, f"The barrier was counted at {level}, and {asked} is in force now.")


def let_through(image: Image, level: str) -> str:
    """The level at which a barrier was counted, where the settings ask for a higher one; else empty."""
    return level if level and rank(BarrierLevel(level)) > rank(configured_level(image)) else ""


def missing_replicas(
    image: Image,
    transition: Transition,
    answered: Set[str],
    level: BarrierLevel,
    excluded: Set[str] = frozenset(),
) -> frozenset[str]:
    """The replicas whose answers the barrier of a transition still lacks at a level.

    ``excluded`` counts beside whom the image has excluded.
    """
    nodes = image.membership.nodes
    where = Where(
        {node_id: node.dc for node_id, node in nodes.items()},
        image.membership.excluded() | excluded,
        {nodes[node_id].dc for node_id in transition.nodes()},
    )
    touched = OPERATIONS[transition.kind].touched(image, transition)
    return frozenset[str]().union(*(lacking(level, r, answered, where) for r in touched))
