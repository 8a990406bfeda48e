"""Processes that receive no records of the log for a while, although their own requests arrive: answers to
fetches are late, without an error. A deaf metadata-log gets commands meanwhile, and others write past it. A
deaf coordinator may have been paused before, so that another one holds its term.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain import commands
from stele_simulator.processes.broker import EPOCHS
from stele_simulator.processes.callers import Caller
from stele_simulator.processes.members import LogMachine
from stele_simulator.scenario import Action, seconds_within, times

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

DEAF: Final = "deaf"
HOLDER: Final = "coordinator"
"""Target: the current holder of the term."""
DEAF_SHARE: Final = 0.4
"""Share of the disasters."""
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
"""Delay of the first command, so short that the deaf process's record is the next winner."""
_FIRST_KEY: Final = 1_000_000_000
"""Other cuts have lower ones."""


def make_delayed_fetches(random: Random, logs: int, length_s: float) -> list[Action]:
    """Plan the targets, times and durations. ``number`` is the length of a pause in milliseconds."""
    if random.random() >= DEAF_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, DEAF_EVERY_S, length_s):
        if random.random() < HOLDER_SHARE:
            asleep_s = seconds_within(random, ASLEEP_S) if random.random() < 0.7 else 0.0
            seconds = seconds_within(random, HOLDER_S)
            found.append(Action(at_s, DEAF, HOLDER, seconds, round(1000 * asleep_s)))
        else:
            target = f"w{random.randrange(logs) + 1}"
            found.append(Action(at_s, DEAF, target, seconds_within(random, LOG_S)))
    return found


class DelayedFetches(Caller):
    """Makes processes deaf, with a random stream for the commands in that time."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.times = 0

    def begin(self, action: Action) -> None:
        world = self.world
        is_holder = action.target == HOLDER
        machine = world.holder() if is_holder else world.machines.get(action.target)
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
