"""Replaced leaders that do not know it: for some seconds they report the end of the log as of their own time.
Fetches go to the new leader, as over a separate connection.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stele_simulator.kernel import us
from stele_simulator.scenario import Action, seconds_within, times

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

OLD_END: Final = "old_end"
OLD_END_SHARE: Final = 0.15
"""Share of the disasters."""
OLD_END_EVERY_S: Final = 12.0
OLD_END_S: Final = (1.0, 6.0)
"""An end that stays before the last winner for eight seconds is proof that this is lost."""
READS: Final = "/reads"
LOOKS: Final = "/looks"
CLIENTS: Final = (READS, LOOKS, "")
"""A process has one that reads again what it has read, and one that asks where the topic ends."""
ASKS_IT: Final = 0.5
"""The share of processes that ask the old leader."""
DOWN_MS: Final = 1000


def make_old_ends(random: Random, names: Sequence[str], length_s: float) -> list[Action]:
    """Plan outdated leaders. ``text`` names the processes that ask one, and their client if it is only one.
    For ``number`` milliseconds there is no new leader.
    """
    if random.random() >= OLD_END_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, OLD_END_EVERY_S, length_s):
        seconds = seconds_within(random, OLD_END_S)
        asking = " ".join(name for name in names if random.random() < ASKS_IT)
        down_ms = random.randrange(DOWN_MS)
        found.append(Action(at_s, OLD_END, "", seconds, down_ms, asking))
    return [
        msgspec.structs.replace(
            each, text=" ".join(name + random.choice(CLIENTS) for name in each.text.split())
        )
        for each in found
    ]


class OldEnd(NamedTuple):
    """The end of the log that an old leader reports to these processes after its replacement. Some ask it by
    one client only: ``reading`` for repeated reads, ``looking`` for the end of the topic.
    """

    end: int
    reading: frozenset[str]
    looking: frozenset[str]
    changed_us: int
    until_us: int

    @property
    def names(self) -> frozenset[str]:
        return self.reading | self.looking


class StaleLeaders:
    """Outdated ends, current and past."""

    def __init__(self, world: "World") -> None:
        self.told = 0
        self._world = world
        self._all = list[OldEnd]()
        self._newest: OldEnd | None = None

    def begin(self, action: Action) -> None:
        world, topic = self._world, self._world.topic
        now_us, asking = world.kernel.now_us, action.text.split()
        reading, looking = (
            frozenset(each.removesuffix(by) for each in asking if not each.endswith(other))
            for by, other in ((READS, LOOKS), (LOOKS, READS))
        )
        until_us = now_us + us(action.seconds)
        self._newest = OldEnd(topic.high, reading, looking, now_us, until_us)
        self._all.append(self._newest)
        topic.change_leader(action.number / 1000)
        world.trace(
            f"the leader changes, and the old one tells {', '.join(sorted(asking))} that the log ends at"
            f" {topic.high} for {action.seconds} s"
        )

    def end(self) -> None:
        """End the fault: all processes ask the one leader."""
        self._newest = None

    def end_for(self, name: str, *, reads: bool) -> int | None:
        """Return the end that an old leader reports to this client; None when the client asks none."""
        old = self._newest
        if old is None or self._world.kernel.now_us >= old.until_us:
            return None
        if name not in (old.reading if reads else old.looking):
            return None
        self.told += old.end < self._world.topic.high
        return old.end

    def until_us(self, name: str) -> int:
        """Up to when this process asked, or asks, an old leader."""
        return max((old.until_us for old in self._all if name in old.names), default=0)

    def told_since(self, names: Iterable[str], since_us: int) -> int | None:
        """Return the time of the oldest outdated end that these processes may have got since; None if there
        was none.
        """
        asking = frozenset(names)
        changes = [
            old.changed_us for old in self._all if old.until_us >= since_us and old.names & asking
        ]
        return min(changes, default=None)
