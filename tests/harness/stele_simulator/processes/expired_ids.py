"""Request ids that are too old: in some disasters the log remembers so few decisions that it forgets them
within the run, and somebody sends new commands under ids of long ago, and once more what was decided then.
"""

from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from stele.domain import commands
from stele.domain.commands import Outcome
from stele.domain.model.requests import GENERATIONS, uuid7
from stele.domain.not_taken import EXPIRED
from stele.domain.request_memory import GENERATION
from stele_simulator.processes.callers import Caller

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

FORGETFUL_SHARE: Final = 0.35
"""Share of the disasters."""
PAUSE_S: Final = 0.8


class Memory(msgspec.Struct, frozen=True):
    """How much a log remembers: sealed generations of so many decisions."""

    size: int = GENERATION
    limit: int = GENERATIONS.default

    @property
    def is_short(self) -> bool:
        return self != Memory()


def make_memory(random: Random) -> Memory:
    """Some hundred decisions are forgotten, or none."""
    if random.random() >= FORGETFUL_SHARE:
        return Memory()
    return Memory(random.choice((8, 16, 30)), random.choice((1, 2, 4, 10)))


class ExpiredIdClient(Caller):
    """Asks under ids of any time since the run began."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.refused = 0
        """Number of ids rejected as too old."""

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(2 * PAUSE_S * self.chance.random())
            asked = [envelope for each in self.world.callers for envelope in each.asked]
            if asked and self.chance.random() < 0.5:
                envelope = self.chance.choice(asked)
            else:
                age_ms = round(1000 * self.chance.random() * self.world.kernel.now_s)
                setting = commands.SetSetting("late", str(self.chance.randrange(1000)))
                request_id = uuid7(self.clock.wall_ms() - age_ms, self.chance.getrandbits(74))
                envelope = self.envelope(setting)
                envelope = msgspec.structs.replace(envelope, request_id=request_id)
            outcome: Outcome | None = await self.ask_once(envelope)
            if outcome is not None and outcome.rejection is not None:
                self.refused += outcome.rejection.code == EXPIRED
