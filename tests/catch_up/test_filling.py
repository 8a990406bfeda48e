"""Data that a replica fetches from others, and data that it discards for that."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.catch_up import filling, replica
from stele.catch_up.filling import archive_first_record, fill
from stele.catch_up.keeper import Keeper
from stele.domain.commands import SetSetting
from stele.domain.image import EMPTY
from stele.log.archive.archive import Archive
from stele.log.archive.container import EpochSpan
from stele.log.codec import encode_epoch
from stele.log.errors import AnchorLostError
from stele.runtime.answers.catch_up import SnapshotAnswer
from stele.runtime.catch_up import CatchUpUnavailable
from tests.catch_up.others import (
    LAST,
    LATER,
    NEW,
    SHARED,
    Others,
    add_snapshot,
    archive_of,
    begun,
    begun_with,
    peers,
    records_of,
    story_of,
    topic_of,
)
from tests.log.memory import MemoryLog, MemoryPartition


async def test_missing_range_does_not_stop_older_epochs_from_being_fetched(tmp_path: Path) -> None:
    story = story_of(LAST, "blue")
    all_of_it = records_of(story)
    source, archive = Archive(tmp_path / "other"), Archive(tmp_path / "own")
    source.segments.adopt(all_of_it[:10])
    for held in (all_of_it[:2], all_of_it[6:10], all_of_it[15:]):
        archive.segments.adopt(held)
    keeper = Keeper(archive, 3, 0.01)
    told = await fill(keeper, peers(Others(there=(story, source))), LAST)
    assert told == "epochs 11 to 15, which no replica has"
    assert archive.segments.spans() == [EpochSpan(1, 10), EpochSpan(16, LAST)]
    await keeper.close()


@pytest.mark.parametrize("how", ["recovered", "truncated"])
async def test_epochs_of_another_history_are_set_aside(tmp_path: Path, how: str) -> None:
    """The replica had read epochs that an unclean election lost. The others have continued since."""
    own, right = story_of(LAST, "blue"), story_of(LAST, "green and more")
    assert own.images[SHARED].state_id == right.images[SHARED].state_id
    if how == "recovered":
        right.recover(NEW, LAST)
    while right.image.epoch < LATER:
        assert right.apply(SetSetting("later", "1")) is None
    source = archive_of(tmp_path / "right", right, LATER)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    begin = 0 if how == "recovered" else LATER - 1
    start = await begun(keeper, topic_of(right, begin), right=(right, source))
    assert start.image.state_id == right.image.state_id
    assert keeper.archive.segments.spans() == [EpochSpan(1, SHARED)]


async def test_snapshot_comes_from_a_replica_that_follows_the_recovered_log(tmp_path: Path) -> None:
    own = story_of(LATER, "blue")
    right = story_of(LATER, "blue")
    right.recover(NEW, LAST)
    one = archive_of(tmp_path / "own", own, LATER)
    stale = archive_of(tmp_path / "stale", own, LATER)
    source = archive_of(tmp_path / "right", right, LAST + 1)
    keeper = Keeper(one, 3, 0.01)
    start = await begun(keeper, topic_of(right), stale=(own, stale), right=(right, source))
    assert start.image.log_id == NEW
    assert one.segments.spans() == [EpochSpan(1, LAST)]
    assert [kept.head.log_id for kept in one.snapshots.all()] == [NEW.hex()]


class Hesitating(Others):
    """Fails the first request for each file, as a replica with a short outage does."""

    asked = 0

    async def files(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> list[bytes]:
        self.asked += 1
        if self.asked == 1:
            raise CatchUpUnavailable(f"{url}: no answer")
        return await super().files(url, snapshot, decided=decided)


@pytest.mark.parametrize("colour", ["blue", "green and more"])
async def test_epochs_that_a_recovery_gave_up_are_set_aside(tmp_path: Path, colour: str) -> None:
    """The topic begins after the recovery. The source of the snapshot has fewer epochs than were given up."""
    own, right = story_of(LATER, "blue"), story_of(LATER, colour)
    right.recover(NEW, LAST)
    source = archive_of(tmp_path / "right", right, LAST + 1, losers=LATER)
    keeper = Keeper(archive_of(tmp_path / "own", own, LATER), 3, 0.01)
    topic = topic_of(right, LATER, losers=LATER)
    start = await begun_with(keeper, topic, Hesitating(right=(right, source)))
    assert start.image.log_id == NEW
    shared = LAST if colour == "blue" else SHARED
    assert keeper.archive.segments.spans() == [EpochSpan(1, shared)]
    await keeper.close()


@pytest.mark.parametrize(("colour", "fits"), [("blue", True), ("green and more", False)])
async def test_gap_is_not_filled_from_another_history(
    tmp_path: Path, colour: str, fits: bool
) -> None:
    """A replica that has missed a recovery may answer first."""
    own, other = story_of(LAST, "blue"), story_of(LAST, colour)
    source = archive_of(tmp_path / "other", other)
    all_of_it = records_of(own)
    archive = Archive(tmp_path / "own")
    archive.segments.adopt(all_of_it[14:])
    keeper = Keeper(archive, 3, 0.01)
    told = await fill(keeper, peers(Others(there=(other, source))), LAST)
    assert ("another history" in told) is not fits
    assert archive.segments.first == (1 if fits else 15)
    await keeper.close()


PIECES = [64 * 1024 * 1024, 1000, 1]
"""The whole gap at once, several epochs, one epoch."""


@pytest.mark.parametrize("piece_bytes", PIECES)
async def test_gap_is_filled_with_epochs_that_lead_to_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """The gap may need several answers, and the nearest replica may have missed the recovery."""
    monkeypatch.setattr(filling, "PIECE_BYTES", piece_bytes)
    old, right = story_of(LAST - 2, "blue"), story_of(LAST, "green and more")
    right.recover(NEW, LAST)
    stale = old, archive_of(tmp_path / "old", old, SHARED)
    whole = right, archive_of(tmp_path / "whole", right, LAST + 1)
    archive = Archive(tmp_path / "own")
    add_snapshot(archive, right, LAST + 1)
    keeper = Keeper(archive, 3, 0.01)
    for _ in range(LAST + 2):
        alone = await fill(keeper, peers(Others(stale=stale)), LAST + 1)
    assert alone == f"epochs 1 to {LAST + 1}, which no replica has"
    for at in range(LAST + 2):
        if not await fill(keeper, peers(Others(stale=stale, whole=whole)), LAST + 1):
            break
        if at == 0 and piece_bytes < PIECES[0]:
            assert archive.segments.last == LAST + 1
            assert archive.segments.first > SHARED
    assert archive.segments.spans() == [EpochSpan(1, LAST + 1)]
    assert [*archive.segments.read(1)] == records_of(right)
    await keeper.close()


async def test_epochs_before_a_gap_that_do_not_lead_into_it_are_set_aside(
    tmp_path: Path,
) -> None:
    own, right = story_of(LAST - 5, "blue"), story_of(LAST, "green and more")
    archive = archive_of(tmp_path / "own", own, LAST - 5)
    add_snapshot(archive, right, LAST)
    keeper = Keeper(archive, 3, 0.01)
    whole = right, archive_of(tmp_path / "whole", right, LAST)
    for _ in range(3):
        left = await fill(keeper, peers(Others(whole=whole)), LAST)
    assert left == ""
    assert [*archive.segments.read(1)] == records_of(right)
    assert [kept.head.epoch for kept in archive.snapshots.all()] == [LAST]
    await keeper.close()


async def test_epochs_behind_an_unfilled_gap_are_not_set_aside(tmp_path: Path) -> None:
    """It is unknown which of two histories is the log's."""
    own, other = story_of(LAST, "blue"), story_of(LAST, "green and more")
    archive = Archive(tmp_path / "own")
    for first, last, story in ((1, 10, own), (14, 15, other), (18, LAST, other)):
        archive.segments.adopt(records_of(story)[first - 1 : last])
    keeper = Keeper(archive, 3, 0.01)
    source = Archive(tmp_path / "other")
    source.segments.adopt(records_of(other)[:15])
    told = await fill(keeper, peers(Others(other=(other, source))), LAST)
    assert told == "epochs 16 to 17, which no replica has"
    assert archive.segments.spans() == [EpochSpan(1, 10), EpochSpan(14, 15), EpochSpan(18, LAST)]
    await keeper.close()


async def test_newest_epochs_are_filled_before_the_next_epoch_arrives(tmp_path: Path) -> None:
    """The file of the newest epoch was damaged, and no later epoch has arrived yet."""
    right, other = story_of(LAST, "blue"), story_of(LAST, "green and more")
    archive = Archive(tmp_path / "own")
    archive.segments.adopt(records_of(right)[: LAST - 3])
    keeper = Keeper(archive, 3, 0.01)
    stale = other, archive_of(tmp_path / "stale", other)
    whole = right, archive_of(tmp_path / "whole", right)
    for others in (Others(stale=stale), Others(stale=stale, whole=whole)):
        await fill(keeper, peers(others), LAST, right.image)
    assert [*archive.segments.read(1)] == records_of(right)
    await keeper.close()


async def test_gaps_are_not_filled_while_this_replica_recovers_the_log(tmp_path: Path) -> None:
    story = story_of(LAST, "blue")
    archive = Archive(tmp_path / "own")
    archive.segments.adopt(records_of(story)[10:])
    keeper = Keeper(archive, 3, 0.01)
    await keeper.close()
    whole = story, archive_of(tmp_path / "whole", story, LAST)
    assert "is recovered" in await fill(keeper, peers(Others(whole=whole)), LAST)
    assert archive.segments.spans() == [EpochSpan(11, LAST)]


@pytest.mark.parametrize("there", ["the record", "another one", "nothing"])
async def test_first_epoch_of_a_recovered_log_is_archived_from_the_topic(
    tmp_path: Path, there: str
) -> None:
    """Otherwise only the writer of the recovery has the epoch, and it may be lost."""
    own, right = story_of(LAST, "blue"), story_of(LAST, "blue")
    right.recover(NEW, LAST)
    source = archive_of(tmp_path / "right", right, LAST + 1)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    start = await begun(keeper, topic_of(right), right=(right, source))
    assert start.anchor is not None
    partition = MemoryPartition()
    for epoch in right.epochs[:LAST] if there != "nothing" else ():
        partition.append(encode_epoch(epoch))
    partition.append(encode_epoch(right.epochs[-1 if there == "the record" else 0]))
    await archive_first_record(keeper, MemoryLog(partition), start)
    is_kept = there == "the record"
    assert keeper.archive.segments.spans() == [EpochSpan(1, LAST + is_kept)]
    await archive_first_record(keeper, MemoryLog(partition), start)
    assert keeper.archive.segments.spans() == [EpochSpan(1, LAST + is_kept)]
    await keeper.close()


async def test_missing_epochs_are_requested_at_once_if_the_log_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recovery waits for these epochs. Without a failure a pause of half a minute is enough."""
    asked, failed = asyncio.Semaphore(0), asyncio.Event()

    async def whole(*_: object) -> str:
        asked.release()
        return ""

    monkeypatch.setattr(replica, "fill", whole)
    monkeypatch.setattr(replica, "LOST_PAUSE_S", 0.001)
    archive = SimpleNamespace(segments=SimpleNamespace(spans=list))
    keeper = SimpleNamespace(last=3, archive=archive)
    follower = SimpleNamespace(failure=None, failed=failed, image=EMPTY)
    task = asyncio.create_task(
        replica._fill(*cast(Any, (keeper, None, SimpleNamespace(), 0, follower)))
    )
    await asked.acquire()
    await asyncio.sleep(0.02)
    assert asked.locked(), "it waits"
    follower.failure = AnchorLostError(3, "it is gone")
    failed.set()
    for _ in range(3):
        await asyncio.wait_for(asked.acquire(), 240)
    task.cancel()
