"""Changes that are too large for one record: in some disasters records are so small that many changes of the
topology are split into parts, and some requests exceed one record.
"""

from random import Random
from typing import Final

import msgspec

from stele.domain import commands
from stele.log import record_builder
from stele.log.record_builder import MAX_RECORD_BYTES, PART_BYTES
from stele_simulator.patching import Patch
from stele_simulator.processes.callers import Caller

SMALL_SHARE: Final = 0.3
"""Share of the disasters."""
PAUSE_S: Final = 3.0


class Records(msgspec.Struct, frozen=True):
    """Bytes of the facts of one part, and of a whole record."""

    part_bytes: int = PART_BYTES
    most_bytes: int = MAX_RECORD_BYTES

    @property
    def are_small(self) -> bool:
        return self != Records()

    def limit(self, patch: Patch) -> None:
        """Production's limits, for as long as the patch lasts."""
        patch.attribute(record_builder, "PART_BYTES", self.part_bytes)
        for module in (record_builder, record_builder):
            patch.attribute(module, "MAX_RECORD_BYTES", self.most_bytes)


def make_records(random: Random) -> Records:
    """Facts that take more than a part go alone."""
    if random.random() >= SMALL_SHARE:
        return Records()
    return Records(random.choice((300, 800, 2000)), random.choice((20_000, 40_000)))


class LargeCaller(Caller):
    """Asks for settings of any size up to half as much again as a record takes."""

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(2 * PAUSE_S * self.chance.random())
            size = round(1.5 * self.world.scenario.records.most_bytes * self.chance.random())
            name, letter = f"l{self.chance.randrange(2)}", self.chance.choice("abc")
            envelope = self.envelope(commands.SetSetting(name, letter * size))
            self.asked.append(envelope)
            await self.submit(envelope)
