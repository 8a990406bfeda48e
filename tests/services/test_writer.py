"""The writer's shell over a log that misbehaves: what was lost is forced to an outcome, come what may."""

from __future__ import annotations

from stele.domain.commands import Envelope, SetSetting
from stele.domain.requests.ids import named
from stele.log.memory import MemoryLog, MemoryPartition
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer

TIMEOUT_S = 20.0
LOST = 12
"""The record and eleven NOOPs that should decide it: three seconds, in which the lag is asked for too."""


class LossyLog(MemoryLog):
    """Loses the next appends when told so, and then has no leader that tells the end."""

    def __init__(self, partition: MemoryPartition) -> None:
        super().__init__(partition)
        self.lose = 0
        self.leaderless = False

    def append(self, value: bytes, key: bytes | None = None) -> None:
        if self.lose:
            self.lose -= 1
            return
        super().append(value, key)

    async def end_offset(self) -> int:
        if self.leaderless:
            raise TimeoutError("no leader")
        return await super().end_offset()


async def test_a_lost_record_is_decided_again_even_while_no_leader_tells_the_end() -> None:
    log = LossyLog(MemoryPartition())
    writer = Writer(log, MetadataLogSettings(cluster="demo", unknown_after_s=0.1, found="auto"))
    await writer.start()
    log.lose, log.leaderless = LOST, True
    envelope = Envelope(request_id=named("once"), command=SetSetting("colour", "red"))
    outcome = await writer.commit(envelope, TIMEOUT_S)
    assert outcome.applied
    assert writer.image.features.settings["colour"] == "red"
    again = await writer.commit(envelope, TIMEOUT_S)
    assert (again.epoch, again.state_id) == (outcome.epoch, outcome.state_id)
    await writer.close()
