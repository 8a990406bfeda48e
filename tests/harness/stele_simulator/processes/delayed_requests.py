"""Requests between nodes that arrive after their senders have given them up, steps of the topology later."""

from random import Random
from typing import TYPE_CHECKING, Final

from stele.node.wire import BATCH_PATH
from stele_simulator.kernel import Owner, us
from stele_simulator.processes.members import NodeMachine
from stele_simulator.scenario import Action, seconds_within, times

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

LATE: Final = "late"
LATE_SHARE: Final = 0.6
"""Share of the disasters with requests for moves."""
LATE_EVERY_S: Final = 12.0
WINDOW_S: Final = (2.0, 8.0)
SOME: Final = 0.4
"""Share of late requests of a node with a bad connection."""
DELAY_S: Final = (5.0, 40.0)
"""A node gives a request up after 5 s."""
BESIDE_S: Final = 0.3
"""After it has become bad the tablet that clients ask for most is to move."""


def make_delayed_requests(random: Random, nodes: int, length_s: float) -> list[Action]:
    """Plan the nodes, times and durations of late requests."""
    if random.random() >= LATE_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, LATE_EVERY_S, length_s):
        seconds = seconds_within(random, WINDOW_S)
        found.append(Action(at_s, LATE, f"n{random.randrange(nodes) + 1}", seconds))
    return found


class DelayedRequests:
    """Chooses late requests with its own random stream."""

    def __init__(self, world: "World") -> None:
        self.requests = 0
        self._world = world
        self._until_us: dict[str, int] = {}
        self._chance = world.kernel.random("late")

    def begin(self, name: str, seconds: float) -> None:
        self._until_us[name] = self._world.kernel.now_us + us(seconds)
        self._world.trace(f"requests of {name} may be late for {seconds} s")

    def end(self) -> None:
        self._until_us = {}

    def delay_us(self, source: Owner, target: Owner, path: str) -> int:
        """0: it takes as long as others."""
        until_us = self._until_us.get(source.name)
        if until_us is None or until_us < self._world.kernel.now_us or path != BATCH_PATH:
            return 0
        if not isinstance(target, NodeMachine) or self._chance.random() >= SOME:
            return 0
        self.requests += 1
        least_s, most_s = DELAY_S
        return us(least_s + (most_s - least_s) * self._chance.random())
