"""All machines lose their power at one time: the archive, the services and the nodes."""

from collections.abc import Sequence
from random import Random
from typing import Final

from stele_simulator.scenario import Action

DARK_SHARE: Final = 0.1
"""Share of the disasters."""
FIRST_S: Final = 5.0
DARK_S: Final = (0.5, 6.0)


def make_dark(random: Random, names: Sequence[str], length_s: float) -> list[Action]:
    """At some time of the run; who is back when."""
    if random.random() >= DARK_SHARE:
        return []
    at_s = round(FIRST_S + max(0.0, length_s - FIRST_S) * random.random(), 3)
    return [
        Action(at_s, "power", name, round(DARK_S[0] + (DARK_S[1] - DARK_S[0]) * random.random(), 3))
        for name in names
    ]
