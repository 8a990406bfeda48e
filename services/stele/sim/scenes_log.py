"""What happens to the log as a whole, in some of the scenarios."""

from random import Random
from typing import Final

from stele.sim.scenario import Action, Scenario, times

FREEZE_SHARE: Final = 0.2
FREEZE_EVERY_S: Final = 20.0
LONGEST_FREEZE_S: Final = 10.0


def freezes(random: Random, base: Scenario) -> list[Action]:
    """The log is frozen, or left to one actor, and thawed."""
    if random.random() >= FREEZE_SHARE:
        return []
    return [
        Action(
            at_s,
            "freeze",
            seconds=round(LONGEST_FREEZE_S * random.random(), 3),
            number=random.randrange(12),
        )
        for at_s in times(random, FREEZE_EVERY_S, base.duration_s)
    ]
