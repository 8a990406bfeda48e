"""A founding reads the content of catch-up replicas: one may have a restored backup."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from stele.domain.commands import Envelope, FoundCluster, Outcome
from stele.domain.model.requests import named
from stele.log.port import Log, Record
from stele.metadata_log.founding import nothing_older
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.metadata_log.writing import writing
from stele.runtime.answers.catch_up import ArchiveAnswer
from stele.runtime.catch_up import CatchUp
from tests.log.memory import MemoryLog, MemoryPartition

WAIT_S = 150.0
LATE_S = 0.3
OLD = "0a" * 16


class EpochsInMemory(MemoryLog):
    """A memory log whose records arrive late."""

    late_s = 0.0

    def follow(
        self, offset: int, on_records: Callable[[list[Record]], None], *more: Any, **named: Any
    ) -> None:
        def later(records: list[Record]) -> None:
            self._loop.call_later(self.late_s, on_records, records)

        super().follow(offset, later, *more, **named)


def holds(epoch: int, cluster: str = "demo", log_id: str = OLD) -> ArchiveAnswer:
    return ArchiveAnswer(
        replica_id="cu-1",
        cluster=cluster,
        cluster_id=f"{cluster}/1",
        log_id=log_id,
        incarnations=(),
        epoch=epoch,
        trouble="",
        spans=(),
        size_bytes=0,
        snapshots=(),
        damaged=(),
    )


class Replicas:
    """Replicas that are empty at the start of a process, and report content to a founding."""

    replicas = 1

    def __init__(self, answer: Callable[[], list[ArchiveAnswer]]) -> None:
        self._answer = answer

    async def starts(self, grace_s: float = 0.0, **question: object) -> list[Any]:
        return []

    async def archives(self) -> list[Any]:
        return [(f"http://{each.replica_id}", each) for each in self._answer()]

    async def close(self) -> None:
        """There is no connection."""


@asynccontextmanager
async def writer_with_replicas(
    answer: Callable[[], list[ArchiveAnswer]],
    partition: MemoryPartition | None = None,
    found: Any = "no",
    late_s: float = 0.0,
) -> AsyncIterator[Writer]:
    """Yield a writer that has read the log, with these replicas."""
    settings = MetadataLogSettings(cluster="demo", found=found, replicas_patience_s=0)
    log = EpochsInMemory(partition or MemoryPartition())
    log.late_s = late_s
    replicas = cast(CatchUp, Replicas(answer))
    async with writing(settings, cast(Log, log), replicas, nothing_older, lambda _: None) as writer:
        await writer.wait_ready(WAIT_S)
        yield writer


async def found(writer: Writer) -> Outcome:
    return await writer.commit(Envelope(request_id=named("f"), command=FoundCluster()), WAIT_S)


async def test_founding_is_refused_if_a_catch_up_replica_holds_epochs() -> None:
    async with writer_with_replicas(lambda: [holds(0, "", ""), holds(196_627)]) as writer:
        outcome = await found(writer)
        assert outcome.rejection is not None and outcome.rejection.code == "older_cluster"
        assert f"holds epoch 196627 of log {OLD}" in outcome.rejection.message
        assert "`stele recover`" in outcome.rejection.hint
        assert writer.image.epoch == 0
        assert "`stele recover`" in writer.trouble and "`stele found`" not in writer.trouble


async def test_automatic_founding_waits_if_a_catch_up_replica_holds_epochs() -> None:
    async with writer_with_replicas(lambda: [holds(7)], found="auto") as writer:
        assert (writer.image.epoch, writer.failure) == (0, None)
        assert f"holds epoch 7 of log {OLD}" in writer.trouble


@pytest.mark.parametrize(
    "answers",
    [[], [holds(0, "", "")], [holds(9, "another")]],
    ids=["no answer", "empty", "another cluster"],
)
async def test_founding_proceeds_without_a_replica_of_an_older_log(
    answers: list[ArchiveAnswer],
) -> None:
    async with writer_with_replicas(lambda: answers) as writer:
        assert (await found(writer)).applied


async def test_epochs_of_a_concurrent_founding_are_not_an_older_log() -> None:
    """A replica has read epochs that this instance has not. Both instances follow the same cluster."""
    partition, known = MemoryPartition(), list[int]()

    def has_read_it() -> list[ArchiveAnswer]:
        known.append(two.image.epoch)
        return [holds(len(partition.records), log_id="0b" * 16)]

    async with (
        writer_with_replicas(list, partition) as one,
        writer_with_replicas(has_read_it, partition, late_s=LATE_S) as two,
    ):
        first = await found(one)
        second = await found(two)
        assert known == [0], "it had not read of it"
        assert first.applied and second.applied
        assert first.log_id == second.log_id
        assert one.image.cluster_id == two.image.cluster_id
