"""Known bugs against rules that nothing else here breaks: what a fold may look at,
what a cluster is founded over, whose store a node opens.
"""

import time
from typing import Final

import msgspec

from stele.agent import binding
from stele.domain.features.facts import FeaturesImage, SettingChanged
from stele.domain.registry import FACTS
from stele.metadata_log import writing
from stele.sim.patching import Patch


def fold_goes_by_the_readers_clock(patch: Patch) -> None:
    """What an epoch makes of a setting depends on when it is read: no two readers have the same state."""
    name, apply = FACTS[SettingChanged]

    def applied(image: FeaturesImage, fact: SettingChanged) -> FeaturesImage:
        seen = msgspec.structs.replace(fact, value=f"{fact.value} {time.time_ns()}")
        changed: FeaturesImage = apply(image, seen)
        return changed

    patch.item(FACTS, SettingChanged, (name, applied))


def founding_asks_no_replica(patch: Patch) -> None:
    """An empty topic is founded anew although a replica of the archive holds the log that was lost."""

    async def nothing(*_: object) -> str:
        return ""

    patch.attribute(writing, "older_in_replicas", nothing)


def stores_of_others_are_opened(patch: Patch) -> None:
    """Whose host id a store carries is not compared with that of its folder."""
    patch.attribute(binding, "_check", lambda *_: None)


RULE_TEST_MUTANTS: Final = (
    fold_goes_by_the_readers_clock,
    founding_asks_no_replica,
    stores_of_others_are_opened,
)
"""What processes fold alike is folded once in a run; the others are of moments that runs do not have."""
