"""Two releases of a run's processes: the older one lacks a feature of production, and its messages.

The feature is that reports name the sources of bytes. A fact that is not written otherwise in a run also
requires it, as a new release's fact would. Production's table of facts is changed for the run.
"""

from random import Random
from typing import Final

from stele.domain.commands import ForgetService
from stele.domain.model.features import REPORT_SOURCES
from stele.domain.model.services import ServiceForgotten
from stele.domain.registry import FEATURES_OF_FACTS
from stele.runtime.announce import THIS_BUILD, Build
from stele_simulator.patching import Patch
from stele_simulator.scenario import Action, times

FEATURE: Final = REPORT_SOURCES
NEWER: Final = THIS_BUILD
OLDER: Final = Build("older", NEWER.features - {FEATURE})
NEW_FACT: Final = ServiceForgotten
NewCommand = ForgetService
"""The command of that fact."""

UNKNOWN: Final = "unknown_feature"
"""Rejection of that command by a metadata-log of the older release."""

UPGRADE: Final = "upgrade"
ROLL_BACK: Final = "roll_back"
MISTAKE: Final = "mistake"
"""The older release is started although the feature is enabled."""
ENABLE: Final = "enable"
USE: Final = "use"

UPGRADED_SHARE: Final = 0.5
"""Share of the disasters that are also rolling upgrades."""
BEGIN_S: Final = 5.0
"""Time until the first process is upgraded."""
STEPS_S: Final = (0.2, 0.2, 0.5, 2.0)
"""From one process to the next, on average."""
ROLLED_BACK_SHARE: Final = 0.25
BACK_S: Final = 4.0
ENABLE_EVERY_S: Final = 3.0
USE_EVERY_S: Final = 6.0
MISTAKE_EVERY_S: Final = 8.0


def is_new(build: Build) -> bool:
    """Return whether a release is newer, by the run's own table and not by production's."""
    return build is NEWER


def bring(patch: Patch) -> None:
    """The newer release brings a fact, for as long as the patch lasts."""
    patch.entry(FEATURES_OF_FACTS, NEW_FACT, FEATURE)


def make_upgrades(random: Random, names: list[str], length_s: float) -> list[Action]:
    """Plan the upgrades, some after a roll back, and the requests meanwhile; none in some runs. ``number``
    chooses among the possibilities of that time.
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
