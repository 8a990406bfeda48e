"""Missing answers: a metadata-log that was undisturbed for a while answers every read."""

from collections import deque
from typing import TYPE_CHECKING, Final

from stele_simulator.kernel import us

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

OWED: Final = "I10"
SETTLED_S: Final = 20.0
"""Time after which a fault is over: restarts, elections, timeouts and their pauses included."""
LIMIT_S: Final = 9.0
"""A read has a limit of 8 s."""
STALLS: Final = 3
"""So often a writer waits for records that are lost or late, two seconds or four, until a read is too late."""
STALL_S: Final = 1.5
"""Losses within this time of a loss count as part of it."""


class Asked:
    """A read that has come to a process which had read the log when it was asked."""

    def __init__(self, machine: "Machine", at_us: int) -> None:
        self.machine = machine
        self.incarnation = machine.incarnation
        self.at_us = at_us


class ReadAvailability:
    """Records each read of the state when it reaches a metadata-log, and its answer."""

    def __init__(self, world: "World") -> None:
        self.owed = 0
        """Reads that were owed an answer."""
        self._world = world
        self._open: dict[Asked, None] = {}
        self._cut_until_us: dict[str, int] = {}
        self._stalls_us: dict[str, deque[int]] = {}
        """When the newest losses of what a process appended began."""
        world.topic.on_late = self.appends_late

    def cuts(self, name: str, until_us: int) -> None:
        """Something does not reach this process, or it does not reach something."""
        self._cut_until_us[name] = max(until_us, self._cut_until_us.get(name, 0))

    def appends_late(self, name: str) -> None:
        """Note that the newest append of this process arrives late or never."""
        now_us, stalls = (
            self._world.kernel.now_us,
            self._stalls_us.setdefault(name, deque(maxlen=STALLS)),
        )
        if not stalls or now_us - stalls[-1] > us(STALL_S):
            stalls.append(now_us)

    def begins(self, machine: "Machine") -> Asked:
        self.look()
        asked = Asked(machine, self._world.kernel.now_us)
        self._open[asked] = None
        return asked

    def answered(self, asked: Asked) -> None:
        if asked in self._open:
            del self._open[asked]
            self.owed += self._is_owed(asked)

    def fails(self, asked: Asked, error: Exception) -> None:
        """There is no answer."""
        if asked in self._open:
            del self._open[asked]
            self._is_given(asked, repr(error))

    def look(self) -> None:
        """Check that every old request was answered."""
        now_us = self._world.kernel.now_us
        for asked in [each for each in self._open if now_us - each.at_us > us(LIMIT_S)]:
            del self._open[asked]
            self._is_given(asked, "nothing")

    def _is_given(self, asked: Asked, found: str) -> None:
        owed = self._is_owed(asked)
        self.owed += owed
        self._world.demand(
            not owed,
            OWED,
            f"{asked.machine.name}, which nothing has disturbed for {SETTLED_S:g} s, answers a read of"
            f" {asked.at_us / 1e6:.3f} s",
            f"it has not: {found}",
        )

    def _is_owed(self, asked: Asked) -> bool:
        """Neither the process nor the log was disturbed, from long before it until now."""
        machine, witness, topic = asked.machine, self._world.witness, self._world.topic
        if not machine.alive or machine.incarnation != asked.incarnation:
            return False
        recoveries = witness.recoveries
        disturbed_us = max(
            machine.started_us,
            machine.paused_until_us,
            machine.slow_until_us,
            self._cut_until_us.get(machine.name, 0),
            self._world.stale_leaders.until_us(machine.name),
            topic.down_until_us,
            topic.faulted_us,
            recoveries.begun_us,
        )
        is_recovered = recoveries.begun_us >= recoveries.newest_us > topic.faulted_us
        is_lost = topic.faulted_us >= 0 and not is_recovered
        is_quiet = not is_lost and disturbed_us + us(SETTLED_S) < asked.at_us
        return is_quiet and not self._is_unlucky(asked)

    def _is_unlucky(self, asked: Asked) -> bool:
        """One after the other of its records was lost, from just before it was asked."""
        stalls = self._stalls_us.get(asked.machine.name, ())
        return len(stalls) == STALLS and min(stalls) >= asked.at_us - us(2 * STALL_S)
