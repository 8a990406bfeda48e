"""A recovery without its writer is finished by a process that has its base, if no epoch is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.catch_up.filling import Givers
from stele.catch_up.keeper import Keeper
from stele.catch_up.recovering import Finisher
from stele.catch_up.replica import Ports, archiving
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, EpochSpan
from stele.log.codec import encode_epoch
from stele.log.fold import Start
from stele.log.follower import LogFollower
from stele.log.port import Ends, Record
from stele.runtime.answers.catch_up import ArchiveAnswer, SpanAnswer
from stele.runtime.catch_up import CatchUp
from tests.catch_up.stories import NEW, recovered_story, story_of
from tests.domain.epochs import LOG_ID
from tests.log.memory import MemoryLog, MemoryPartition

KEPT, EPOCHS = 12, 15
ENDS_S = 20.0


RECOVERY, AFTER = (encode_epoch(epoch) for epoch in recovered_story(EPOCHS, KEPT).epochs[KEPT:])


def archive_of(folder: Path, epochs: int) -> Archive:
    archive = Archive(folder)
    archive.segments.adopt(
        Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story_of(epochs).epochs
    )
    return archive


class Topic(MemoryLog):
    """A topic that counts its reads."""

    def __init__(self, *values: bytes) -> None:
        partition = MemoryPartition()
        for value in values:
            partition.append(value)
        super().__init__(partition)
        self.reads, self.was_read = 0, asyncio.Event()

    async def ends(self) -> Ends:
        return Ends(0, await self.end_offset())

    async def read(self, offset: int, limit: int) -> list[Record]:
        self.reads += 1
        self.was_read.set()
        return await super().read(offset, limit)


class Others:
    """Another replica with this number of epochs of the old log, or of the log ``log_id``."""

    replicas = 1

    def __init__(self, epochs: int = 0, log_id: str = LOG_ID.hex()) -> None:
        self._epochs = epochs
        self._log_id = log_id

    async def archives(self) -> list[Any]:
        answer = ArchiveAnswer(
            replica_id="",
            cluster="demo",
            cluster_id="",
            log_id=self._log_id,
            incarnations=(),
            epoch=0,
            trouble="",
            spans=(SpanAnswer(1, self._epochs),),
            size_bytes=0,
            snapshots=(),
            damaged=(),
        )
        return [("http://other", answer)] if self._epochs else []

    async def starts(self, **_: object) -> list[Any]:
        return []


def finisher(archive: Archive, topic: Topic, others: Others, epochs: int = KEPT) -> Finisher:
    """Return the finisher of a reader that has stopped at an epoch of the old log."""
    stopped = SimpleNamespace(image=story_of(epochs).image, stop=lambda: None)
    keeper = Keeper(archive, 3, 0.01)
    return Finisher(keeper, cast(LogFollower, stopped), topic, cast(CatchUp, others))


def next_start(folder: Path) -> Start:
    return Keeper(Archive(folder), 3, 0.01).begin()


async def test_recovery_is_finished_from_the_base_without_its_writer(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, KEPT)
    assert await finisher(archive, Topic(RECOVERY), Others()).finish()
    start = next_start(tmp_path)
    assert start.image.state_id == recovered_story(EPOCHS, KEPT).images[KEPT + 1].state_id
    assert start.anchor is not None and start.anchor.offset == 0
    assert [kept.head.epoch for kept in archive.snapshots.all()] == [KEPT + 1]


async def test_replica_with_more_epochs_finishes_only_a_used_recovery(
    tmp_path: Path,
) -> None:
    archive = archive_of(tmp_path, EPOCHS)
    assert not await finisher(archive, Topic(RECOVERY), Others(), EPOCHS).finish()
    assert archive.segments.spans() == [EpochSpan(1, EPOCHS)]
    assert await finisher(archive, Topic(RECOVERY, AFTER), Others(), EPOCHS).finish()
    assert archive.segments.spans() == [EpochSpan(1, KEPT + 1)]
    assert next_start(tmp_path).image.log_id == NEW


@pytest.mark.parametrize(
    ("others", "behind", "finishes"),
    [
        (Others(EPOCHS), (), False),
        (Others(EPOCHS), (RECOVERY,), False),
        (Others(EPOCHS), (AFTER,), True),
        (Others(KEPT), (), True),
        (Others(EPOCHS, "0a" * 16), (), True),
    ],
    ids=[
        "more, unused",
        "more, written twice",
        "more, used",
        "not more",
        "another log",
    ],
)
async def test_epochs_of_other_replicas_block_finishing_an_unused_recovery(
    tmp_path: Path, others: Others, behind: tuple[bytes, ...], finishes: bool
) -> None:
    archive = archive_of(tmp_path, KEPT)
    assert await finisher(archive, Topic(RECOVERY, *behind), others).finish() is finishes
    assert (archive.segments.last == KEPT + 1) is finishes


async def test_archive_that_ends_before_the_recovery_cannot_finish_it(
    tmp_path: Path,
) -> None:
    archive = archive_of(tmp_path, KEPT - 1)
    assert not await finisher(archive, Topic(RECOVERY, AFTER), Others(), KEPT - 1).finish()
    assert archive.segments.spans() == [EpochSpan(1, KEPT - 1)]


async def test_topic_of_a_later_log_is_not_finished(tmp_path: Path) -> None:
    """The first recovery is truncated. A later one in the topic may be another."""
    archive = archive_of(tmp_path, KEPT)
    assert not await finisher(archive, Topic(AFTER, RECOVERY), Others()).finish()
    assert archive.segments.spans() == [EpochSpan(1, KEPT)]


async def test_recovery_behind_an_invalid_record_is_not_finished(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, KEPT)
    assert not await finisher(archive, Topic(b"garbage", RECOVERY), Others()).finish()
    assert archive.segments.spans() == [EpochSpan(1, KEPT)]


async def test_topic_without_a_recovery_is_not_read_again_at_once(tmp_path: Path) -> None:
    topic = Topic(*(encode_epoch(epoch) for epoch in story_of(3).epochs))
    finishing = finisher(archive_of(tmp_path, KEPT), topic, Others())
    assert not await finishing.finish()
    reads = topic.reads
    assert reads
    assert not await finishing.finish()
    assert topic.reads == reads


async def test_finishing_does_not_interfere_with_a_running_recovery(tmp_path: Path) -> None:
    topic, keeper = Topic(RECOVERY), Keeper(archive_of(tmp_path, KEPT), 3, 0.01)
    stopped = SimpleNamespace(image=story_of(KEPT).image, stop=lambda: None)
    finishing = Finisher(keeper, cast(LogFollower, stopped), topic, cast(CatchUp, Others()))
    async with keeper.recovering:
        task = asyncio.create_task(finishing.finish())
        await topic.was_read.wait()
        await keeper.close()
    assert not await task
    assert keeper.archive.segments.last == KEPT


@pytest.mark.parametrize("kept_before", [KEPT, 0], ids=["next offset", "offset of the last winner"])
async def test_stopped_replica_restarts_in_the_recovered_log(
    tmp_path: Path, kept_before: int
) -> None:
    old = [encode_epoch(epoch) for epoch in story_of(KEPT).epochs]
    fill = [RECOVERY, AFTER] if kept_before else [*old[: KEPT - 1], RECOVERY, AFTER]
    topic = Topic(*old[:kept_before], *fill)
    archive, ended = archive_of(tmp_path, KEPT), asyncio.Event()
    keeper = Keeper(archive, 3, 0.01)
    ports = Ports(
        open_log=lambda: topic,
        is_topic_missing=cast(Callable[[], Awaitable[bool]], None),
        make_topic=cast(Callable[[], Awaitable[bool]], None),
        delete=lambda offset: None,
        commander=cast(Any, None),
        end=ended.set,
    )
    givers = Givers(cast(CatchUp, Others()), None, "demo")
    async with archiving(keeper, givers, ports):
        await asyncio.wait_for(ended.wait(), ENDS_S)
    await keeper.close()
    assert next_start(tmp_path).image.log_id == NEW
