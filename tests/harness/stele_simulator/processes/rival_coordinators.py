"""Two coordinators that both consider themselves elected, neither of which has read the other's claim.

The holder of the term dies and returns at once. When the next claim is durable, each coordinator receives no
records for a while, and the group assigns its partition to any member that asks, as when a member learns late
that its session has expired.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain.facts import Epoch
from stele.log.flows import flow_topic
from stele_simulator.kernel import us
from stele_simulator.processes.barriers import CLAIM
from stele_simulator.processes.members import CLUSTER
from stele_simulator.scenario import Action, seconds_within, times

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

RIVALS: Final = "rivals"
RIVALS_SHARE: Final = 0.14
"""Share of the disasters with two coordinators or more, which are three quarters of all."""
RIVALS_EVERY_S: Final = 15.0
SHARED_S: Final = (3.0, 6.0)
"""Two heartbeats at least; no longer than a session."""
AWAY_S: Final = 0.2


def make_rivals(random: Random, coordinators: int, length_s: float) -> list[Action]:
    """``seconds`` is for how long both have the partition."""
    if coordinators < 2 or random.random() >= RIVALS_SHARE:
        return []
    return [
        Action(at_s, RIVALS, seconds=seconds_within(random, SHARED_S))
        for at_s in times(random, RIVALS_EVERY_S, length_s)
    ]


class Rivals:
    """Waits for a claim, and makes rivals of the coordinators."""

    def __init__(self, world: "World") -> None:
        self.times = 0
        self._world = world
        self._waiting_s = 0.0
        """How long they are to be rivals at the next claim; 0: not at all."""

    def begin(self, action: Action) -> None:
        self._waiting_s = action.seconds
        holder = self._world.holder()
        if holder is not None and holder.alive:
            holder.crash()
            holder.start_later(AWAY_S)

    def changed(self, epoch: Epoch) -> None:
        """Handle one more durable epoch that no process has read yet."""
        if not self._waiting_s or epoch.command != CLAIM:
            return
        seconds, self._waiting_s = self._waiting_s, 0.0
        world = self._world
        self.times += 1
        for machine in world.coordinators:
            world.delayed_fetches.deafen(machine, seconds)
        world.kafka.group(flow_topic(CLUSTER, "coordinators")).share(us(seconds))
        world.trace(f"each coordinator is elected for {seconds} s")

    def leave(self) -> None:
        """No fault from now on."""
        self._waiting_s = 0.0
