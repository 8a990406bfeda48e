"""A metadata-log that starts on a recovered log without a snapshot."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.log.codec import encode_epoch
from stele.log.errors import RecoveredError
from stele.log.port import Log
from stele.metadata_log.founding import nothing_older
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.metadata_log.writing import writing
from stele.runtime import starting
from stele.runtime.catch_up import CatchUp
from tests.catch_up.stories import recovered_story
from tests.domain.epochs import LOG_ID
from tests.log.memory import MemoryLog, MemoryPartition

WAIT_S = 150.0
RECOVERED = encode_epoch(recovered_story(9, 5).epochs[5])


class Replica:
    """A replica without a snapshot. It follows the recovered log from its third request on."""

    replicas = 1
    asked = 0

    async def starts(self, grace_s: float = 0.0, **question: object) -> list[Any]:
        return []

    async def archives(self) -> list[Any]:
        self.asked += 1
        before = [SimpleNamespace(log_id=LOG_ID.hex())] if self.asked > 2 else []
        return [("http://cu-1", SimpleNamespace(incarnations=before))]

    async def close(self) -> None:
        """There is no connection."""


@pytest.mark.parametrize("had_read", [False, True], ids=["at the start", "after reading all"])
async def test_writer_waits_for_a_recovered_log_before_it_has_read_it(
    monkeypatch: pytest.MonkeyPatch, had_read: bool
) -> None:
    """A restarted writer would meet the recovery again."""
    monkeypatch.setattr(starting, "LOOK_S", 0.01)
    partition, replica, ended = MemoryPartition(), Replica(), asyncio.Event()
    epochs = cast(Log, MemoryLog(partition))
    for epoch in recovered_story(9, 5).epochs[:5]:
        partition.append(encode_epoch(epoch))
    if not had_read:
        partition.append(RECOVERED)

    def on_read(writer: Writer) -> None:
        if had_read:
            epochs.append(RECOVERED)

    settings = MetadataLogSettings(cluster="demo", found="no", replicas_patience_s=0)
    replicas = cast(CatchUp, replica)
    async with writing(settings, epochs, replicas, nothing_older, on_read, ended.set) as writer:
        await asyncio.wait_for(ended.wait(), WAIT_S)
        assert isinstance(writer.failure, RecoveredError)
        assert replica.asked == (0 if had_read else 3)
