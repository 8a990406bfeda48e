"""Two releases of a run's processes: the older one lacks a feature of production, and what comes with it.

The feature is one of messages: reports say from whom bytes came. A fact that nobody else writes in a run needs
it too, as one of a new release would; production's own table of facts says so for as long as the run lasts.
"""

from random import Random
from typing import Final

from stele.domain.commands import ForgetService
from stele.domain.features.messages import REPORT_SOURCES
from stele.domain.registry import FEATURES_OF_FACTS
from stele.domain.services.facts import ServiceForgotten
from stele.runtime.build import THIS_BUILD, Build
from stele.sim.patching import Patch
from stele.sim.scenario import Action, times

FEATURE: Final = REPORT_SOURCES
NEWER: Final = THIS_BUILD
OLDER: Final = Build("older", NEWER.features - {FEATURE})
NEW_FACT: Final = ServiceForgotten
NewCommand = ForgetService
"""What becomes that fact."""

UNKNOWN: Final = "unknown_feature"
"""What a metadata-log of the older release says of that."""

UPGRADE: Final = "upgrade"
ROLL_BACK: Final = "roll_back"
MISTAKE: Final = "mistake"
"""The older release is started although the feature is enabled."""
ENABLE: Final = "enable"
USE: Final = "use"

UPGRADED_SHARE: Final = 0.5
"""Of the disasters are rolling upgrades too."""
BEGIN_S: Final = 5.0
"""The first process is upgraded by then."""
STEPS_S: Final = (0.2, 0.2, 0.5, 2.0)
"""From one process to the next, on average."""
ROLLED_BACK_SHARE: Final = 0.25
BACK_S: Final = 4.0
ENABLE_EVERY_S: Final = 3.0
USE_EVERY_S: Final = 6.0
MISTAKE_EVERY_S: Final = 8.0


def is_new(build: Build) -> bool:
    """By the run's own table: nothing that production derives is asked."""
    return build is NEWER


def bring(patch: Patch) -> None:
    """The newer release brings a fact, for as long as the patch lasts."""
    patch.entry(FEATURES_OF_FACTS, NEW_FACT, FEATURE)


def make_upgrades(random: Random, names: list[str], length_s: float) -> list[Action]:
    """When each process is upgraded, some after they were rolled back, and what is asked for meanwhile; none in
    some of the runs. ``number`` chooses among what is possible then.
    """
    if random.random() >= UPGRADED_SHARE:
        return []
    order, found = random.sample(names, len(names)), list[Action]()
    begin_s, step_s = BEGIN_S * random.random(), random.choice(STEPS_S)
    for place, name in enumerate(order):
        at_s = begin_s + step_s * (place + random.random())
        found.append(_action(random, at_s, UPGRADE, name))
        if random.random() < ROLLED_BACK_SHARE:
            found.append(_action(random, at_s + BACK_S * random.random(), ROLL_BACK, name))
    for kind, every_s in ((ENABLE, ENABLE_EVERY_S), (USE, USE_EVERY_S), (MISTAKE, MISTAKE_EVERY_S)):
        found += [
            _action(random, at_s, kind, random.choice(names) if kind == MISTAKE else "")
            for at_s in times(random, every_s, length_s)
        ]
    return sorted(found, key=lambda action: action.at_s)


def _action(random: Random, at_s: float, kind: str, target: str) -> Action:
    return Action(round(at_s, 3), kind, target, number=random.randrange(1_000_000))
