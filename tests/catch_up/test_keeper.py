"""A replica starts with the epochs on its disk and archives new ones, despite gaps before them."""

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from stele.catch_up.filling import gaps
from stele.catch_up.keeper import RECORD_BYTES, Keeper
from stele.domain.commands import FoundCluster, SetSetting
from stele.domain.image import EMPTY
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, EpochSpan
from stele.log.archive.segments import SegmentLimits
from stele.log.archive.snapshots import head_of
from stele.log.chain import Anchor, digest_of
from stele.log.codec import encode_epoch
from tests.domain.epochs import LOG_ID
from tests.domain.epochs import History as Story

EPOCHS = 60
TIMEOUT_S = 240.0
SMALL = SegmentLimits(epochs=10, size_bytes=1 << 20)


@pytest.fixture(scope="module")
def story() -> Story:
    story = Story(empty=EMPTY)
    assert story.apply(FoundCluster("demo/1", LOG_ID.hex())) is None
    while story.image.epoch < EPOCHS:
        assert story.apply(SetSetting("s", str(story.image.epoch))) is None
    return story


def records_of(story: Story) -> list[Archived]:
    return [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs]


def folder_with(folder: Path, story: Story, snapshot: int) -> Path:
    """Return a folder with all epochs in segments of ten, and a snapshot."""
    archive, records = Archive(folder, SMALL), records_of(story)
    for record in records:
        archive.segments.add(record)
        archive.segments.sync()
    archive.segments.seal()
    image, record = story.images[snapshot], records[snapshot - 1]
    anchor = Anchor(record.offset, digest_of(record.value))
    archive.snapshots.write(image, head_of(image, record.offset + 1, anchor, record.at_ms), ())
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def take(keeper: Keeper, story: Story, last: int) -> None:
    """Deliver all epochs up to this one."""
    for record, epoch in zip(records_of(story)[:last], story.epochs, strict=False):
        keeper.on_winner(record.offset, record.value, epoch, story.images[epoch.epoch])


def segment(folder: Path, first: int, last: int) -> Path:
    return folder / "segments" / f"{first:020}-{last:020}.avro"


async def test_damaged_segment_is_set_aside_and_its_epochs_are_written_again(
    tmp_path: Path, story: Story
) -> None:
    folder = folder_with(tmp_path, story, 25)
    flip(segment(folder, 31, 40))
    keeper = Keeper(Archive(folder, SMALL), 3, 0.01)
    began = keeper.begin()
    assert began.image.state_id == story.images[began.image.epoch].state_id
    assert 25 <= began.image.epoch <= 30
    assert keeper.archive.damaged
    for record, epoch in [*zip(records_of(story), story.epochs, strict=True)]:
        if epoch.epoch > began.image.epoch:
            keeper.on_winner(record.offset, record.value, epoch, story.images[epoch.epoch])
    await keeper.close()
    segments = keeper.archive.segments
    assert segments.spans() == [EpochSpan(1, EPOCHS)]
    assert [*segments.read(1)] == records_of(story)


def test_replica_without_first_epochs_and_snapshot_starts_empty(
    tmp_path: Path, story: Story
) -> None:
    """The replica had started from a snapshot of another one, which is unreadable now."""
    folder = folder_with(tmp_path, story, 25)
    segment(folder, 1, 10).unlink()
    (snapshot,) = [p for p in (folder / "snapshots").iterdir() if "decided" not in p.name]
    snapshot.write_bytes(snapshot.read_bytes()[:-40])
    keeper = Keeper(Archive(folder, SMALL), 3, 0.01)
    assert keeper.begin().image.epoch == 0
    assert keeper.archive.damaged


async def test_failed_disk_is_not_written_again(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partly written block would invalidate later blocks at the next start."""
    keeper, records = Keeper(Archive(tmp_path, SMALL), 3, 0.01), records_of(story)
    synced, fsync = 0, os.fsync

    def full(handle: int) -> None:
        fsync(handle)
        if synced:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stele.log.archive.segments.os.fsync", full)
    task = asyncio.create_task(keeper.run())
    for record, epoch in zip(records[:15], story.epochs, strict=False):
        keeper.on_winner(record.offset, record.value, epoch, story.images[epoch.epoch])
        if record.epoch == 5:
            while keeper.last < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            synced = keeper.last
    with pytest.raises(OSError, match="No space"):
        await task
    assert keeper.last == synced
    with suppress(OSError):
        await keeper.close()
    monkeypatch.undo()
    left = Archive(tmp_path, SMALL).segments
    assert left.damaged == []
    assert [*left.read(1)] == records[: left.last]
    assert left.last >= 5


def test_damaged_segment_found_by_a_read_is_missing_afterwards(
    tmp_path: Path, story: Story
) -> None:
    """The replica fetches it from the others and does not announce it."""
    folder = folder_with(tmp_path, story, 55)
    flip(segment(folder, 11, 20))
    keeper = Keeper(Archive(folder, SMALL), 3, 0.01)
    began = keeper.begin()
    assert began.image.epoch == EPOCHS
    with pytest.raises(Exception, match="damaged"):
        list(keeper.archive.segments.read(11))
    assert next(gaps(keeper.archive.segments.spans(), began.image.epoch)) == EpochSpan(11, 20)
    assert any("-00000000000000000020" in each for each in keeper.archive.damaged)


async def test_slow_disk_is_written_in_small_batches_and_limits_reading(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for all records would block answers for that time, and keep all of them in memory."""
    keeper, records = Keeper(Archive(tmp_path, SMALL), 3, 0.01), records_of(story)
    largest = RECORD_BYTES + max(len(record.value) for record in records)
    monkeypatch.setattr("stele.catch_up.keeper.MOST_WAITING_BYTES", 10 * largest)
    monkeypatch.setattr("stele.catch_up.keeper.MOST_AT_ONCE_BYTES", 2 * largest)
    lasts, plain = list[int](), keeper.archive.segments.sync

    def sync() -> int:
        lasts.append(plain())
        return lasts[-1]

    monkeypatch.setattr(keeper.archive.segments, "sync", sync)
    left = [*zip(records, story.epochs, strict=True)]
    while keeper.has_room():
        record, epoch = left.pop(0)
        keeper.on_winner(record.offset, record.value, epoch, story.images[epoch.epoch])
    assert 10 <= records.index(left[0][0]) <= 20
    task = asyncio.create_task(keeper.run())
    while not keeper.has_room():  # noqa: ASYNC110
        await asyncio.sleep(0)
    for record, epoch in left:
        keeper.on_winner(record.offset, record.value, epoch, story.images[epoch.epoch])
    await keeper.close()
    await task
    assert [*keeper.archive.segments.read(1)] == records
    steps = [last - before for before, last in zip([0, *lasts], lasts, strict=False)]
    sizes = [RECORD_BYTES + len(record.value) for record in records]
    assert max(steps) <= 2 * largest // min(sizes) + 1


async def test_lagging_replica_writes_every_tenth_snapshot_and_the_newest(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(Archive(tmp_path, SMALL), EPOCHS, 0.01)
    monkeypatch.setattr("stele.catch_up.keeper.is_due", lambda *_: True)
    monkeypatch.setattr("stele.catch_up.keeper.is_asked", lambda epoch: epoch.epoch == 15)
    for record, epoch in zip(records_of(story), story.epochs, strict=True):
        keeper.on_winner(record.offset, record.value, epoch, story.images[epoch.epoch])
    await keeper.close()
    written = sorted(kept.head.epoch for kept in keeper.archive.snapshots.all())
    behind = [10, 15, *range(25, EPOCHS, 10)]
    assert written == sorted({*behind, EPOCHS})


async def test_written_waits_until_received_epochs_are_on_disk(
    tmp_path: Path, story: Story
) -> None:
    keeper = Keeper(Archive(tmp_path), 3, 0.01)
    await asyncio.wait_for(keeper.written(), TIMEOUT_S)  # nothing was received
    take(keeper, story, 20)
    waiting = asyncio.create_task(keeper.written())
    await asyncio.sleep(0.1)
    assert not waiting.done() and keeper.last == 0
    running = asyncio.create_task(keeper.run())
    await asyncio.wait_for(waiting, TIMEOUT_S)
    assert keeper.last == 20
    running.cancel()
    await keeper.close()


async def test_written_fails_if_the_disk_is_full(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(Archive(tmp_path), 3, 0.01)
    take(keeper, story, 20)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stele.log.archive.segments.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        await asyncio.wait_for(keeper.run(), TIMEOUT_S)
    with pytest.raises(OSError, match="did not take"):
        await asyncio.wait_for(keeper.written(), TIMEOUT_S)
