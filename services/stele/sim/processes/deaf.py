"""Processes that hear nothing of the log for a while, although all that they send gets there: the answers to
their fetches are late, and no error tells them. A deaf metadata-log is asked meanwhile, and others write past
it; the deaf coordinator may have slept before, so that another one has its place.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain import commands
from stele.sim.processes.broker import EPOCHS
from stele.sim.processes.callers import Caller
from stele.sim.processes.members import LogMachine
from stele.sim.scenario import Action, times

if TYPE_CHECKING:
    from stele.sim.processes.machine import Machine
    from stele.sim.processes.world import World

DEAF: Final = "deaf"
HOLDER: Final = "coordinator"
"""As a target: whoever holds the term then."""
DEAF_SHARE: Final = 0.4
"""Of the disasters."""
DEAF_EVERY_S: Final = 12.0
HOLDER_SHARE: Final = 0.4
LOG_S: Final = (1.0, 7.0)
"""Callers wait for 9 s."""
HOLDER_S: Final = (12.0, 25.0)
ASLEEP_S: Final = (7.0, 10.0)
"""Longer than the session of an election."""
READS: Final = 4
WRITES: Final = 3
FIRST_S: Final = 0.02
"""Before anybody else has written the deaf one's record is the next winner."""
_FIRST_KEY: Final = 1_000_000_000
"""Other cuts have lower ones."""


def make_deaf(random: Random, logs: int, length_s: float) -> list[Action]:
    """Who is deaf, from when on and for how long; ``number`` is for how many milliseconds it stands still."""
    if random.random() >= DEAF_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, DEAF_EVERY_S, length_s):
        if random.random() < HOLDER_SHARE:
            asleep_s = _between(random, ASLEEP_S) if random.random() < 0.7 else 0.0
            seconds = _between(random, HOLDER_S)
            found.append(Action(at_s, DEAF, HOLDER, seconds, round(1000 * asleep_s)))
        else:
            target = f"w{random.randrange(logs) + 1}"
            found.append(Action(at_s, DEAF, target, _between(random, LOG_S)))
    return found


def _between(random: Random, bounds: tuple[float, float]) -> float:
    return round(bounds[0] + (bounds[1] - bounds[0]) * random.random(), 3)


class Deafness(Caller):
    """Makes processes deaf. What it asks then comes by a chance of its own."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.times = 0

    def begin(self, action: Action) -> None:
        world = self.world
        holder = world.witness.image.topology.coordinator.holder
        machine = world.machines.get(holder if action.target == HOLDER else action.target)
        if machine is None or not machine.alive:
            return
        self.deafen(machine, action.seconds)
        if action.number:
            machine.pause(action.number / 1000)
            world.trace(f"{machine.name} stands still for {action.number / 1000} s")
        if isinstance(machine, LogMachine):
            self._ask_meanwhile(machine, action.seconds)

    def deafen(self, machine: "Machine", seconds: float) -> None:
        self.times += 1
        self.world.cut(_FIRST_KEY + self.times, {(EPOCHS, machine.name)}, seconds)
        self.world.trace(f"{machine.name} is deaf to the log for {seconds} s")

    def _ask_meanwhile(self, deaf: LogMachine, seconds: float) -> None:
        for number in range(READS):
            later_s = FIRST_S if number == 0 else seconds * self.chance.random()
            self.spawn(self._read_later(deaf, later_s))
        others = [each for each in self.world.logs if each is not deaf]
        for _ in range(WRITES if others else 0):
            target = self.chance.choice(others)
            self.spawn(self._write_later(target, seconds * self.chance.random()))

    async def _read_later(self, deaf: LogMachine, later_s: float) -> None:
        await self.sleep(later_s)
        await self.read(deaf)

    async def _write_later(self, target: LogMachine, later_s: float) -> None:
        await self.sleep(later_s)
        setting = commands.SetSetting("past", str(self.chance.randrange(1000)))
        await self.submit(self.envelope(setting), target)
