"""Disks that are full for a while: a node's, or that of a replica of the archive."""

from random import Random
from typing import Final

from stele_simulator.scenario import Action, times

FULL: Final = "full"
FULL_SHARE: Final = 0.15
"""Share of the disasters."""
FULL_EVERY_S: Final = 15.0
FULL_S: Final = (2.0, 30.0)
NODE_SHARE: Final = 0.7


def make_full(random: Random, nodes: int, replicas: int, length_s: float) -> list[Action]:
    """Plan the nodes, times and durations of full disks."""
    if random.random() >= FULL_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, FULL_EVERY_S, length_s)[
        1:
    ]:  # at the first instant there are no writes
        kind, count = ("n", nodes) if random.random() < NODE_SHARE else ("cu", replicas)
        seconds = FULL_S[0] + (FULL_S[1] - FULL_S[0]) * random.random()
        target = f"{kind}{random.randrange(count) + 1}"
        found.append(Action(at_s, FULL, target, round(seconds, 3)))
    return found
