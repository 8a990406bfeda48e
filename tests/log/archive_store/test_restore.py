"""The content of a store becomes a folder for a replica's start, or an error explains why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.domain.commands import SetSetting
from stele.domain.snapshot import requests_hash, state_hash
from stele.log.archive.archive import Archive
from stele.log.archive.container import DamagedFileError, EpochSpan
from stele.log.archive_store.backup import BEGUN, NotEmptyError, restore
from stele.log.archive_store.stored import NoArchiveError
from stele.log.blobs.folder import FolderStore
from stele.log.blobs.port import StoreUnavailableError
from tests.log.archive.story import long_story
from tests.log.archive_store.made import SNAPSHOTS, Made, names, small_blocks

NEW_LOG = bytes([0xC0] * 16)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "store", timeout_s=60)


class Slow(FolderStore):
    """A store whose reads can be interrupted."""

    reads_left = 1 << 30

    async def get_range(self, name: str, begin: int, end: int) -> bytes:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise StoreUnavailableError(name)
        return await super().get_range(name, begin, end)


async def test_a_restored_folder_is_an_archive(tmp_path: Path, store: Slow) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    into = tmp_path / "deep" / "restored"
    told = await restore(store, into)
    assert (told.cluster, told.cluster_id, told.log_id) == made.about
    assert (told.first_epoch, told.last_epoch) == (1, 80)
    assert told.snapshots == SNAPSHOTS
    assert told.state_id == made.story.image.state_id.hex()
    archive = Archive(into)
    assert [*archive.segments.read(1)] == [*made.archive.segments.read(1)]
    start, kept = archive.begin(decided=True)
    assert kept is not None
    assert kept.head.epoch == SNAPSHOTS[-1]
    theirs, _ = made.archive.begin(decided=True)
    images = archive.fold_on(start, 80).image, made.archive.fold_on(theirs, 80).image
    assert state_hash(images[0]) == state_hash(images[1]) == state_hash(made.story.image)
    assert requests_hash(images[0]) == requests_hash(images[1])
    assert archive.damaged == []


async def test_restore_refuses_a_folder_that_is_not_empty(tmp_path: Path, store: Slow) -> None:
    await Made(tmp_path / "archive").copy(store)
    (tmp_path / "empty").mkdir()
    await restore(store, tmp_path / "empty")
    for taken in (tmp_path / "empty", tmp_path / "archive" / "snapshots"):
        with pytest.raises(NotEmptyError, match="is not empty"):
            await restore(store, taken)


async def test_interrupted_restore_can_be_continued(tmp_path: Path, store: Slow) -> None:
    await Made(tmp_path / "archive").copy(store)
    into, tries = tmp_path / "restored", 0
    while True:
        store.reads_left = 3
        try:
            told = await restore(store, into)
        except StoreUnavailableError:
            tries += 1
            assert not into.exists()
            continue
        break
    assert tries > 2
    assert (told.first_epoch, told.last_epoch, told.snapshots) == (1, 80, SNAPSHOTS)
    assert not into.with_name(into.name + BEGUN).exists()


async def test_files_fetched_from_another_log_are_left_out(tmp_path: Path, store: Slow) -> None:
    story = long_story()
    await Made(tmp_path / "old", story=story).copy(store)
    store.reads_left = 4
    with pytest.raises(StoreUnavailableError):
        await restore(store, tmp_path / "restored")
    store.reads_left = 1 << 30
    story.recover(NEW_LOG, 40)
    made = Made(tmp_path / "new", snapshots=(20,), story=story)
    await made.copy(store)
    told = await restore(store, tmp_path / "restored")
    assert (told.log_id, told.last_epoch) == (NEW_LOG.hex(), 41)
    assert told.snapshots == (20,)
    assert [*Archive(tmp_path / "restored").segments.read(1)] == [*made.archive.segments.read(1)]


@pytest.mark.parametrize("damaged", ["/segments/", "/snapshots/"])
async def test_nothing_is_restored_from_a_damaged_store(
    tmp_path: Path, store: Slow, damaged: str
) -> None:
    await Made(tmp_path / "archive").copy(store)
    name = next(name for name in await names(store) if damaged in name)
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DamagedFileError):
        await restore(store, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


async def test_segments_of_two_histories_are_not_merged(tmp_path: Path, store: Slow) -> None:
    await Made(tmp_path / "archive", snapshots=()).copy(store)
    other = long_story()
    other.recover(NEW_LOG, 20)
    await Made(tmp_path / "other", snapshots=(), story=other).copy(
        elsewhere := FolderStore(tmp_path / "elsewhere", 5)
    )
    for name in await names(elsewhere):
        if NEW_LOG.hex() in name:
            as_if_of_the_old = "-".join([*name.split("-")[:-1], name.split("-")[-1]])
            await store.put(as_if_of_the_old, await elsewhere.get(name), "")
    for name in await names(store):
        if "/segments/" in name and "00001-" in name:
            await store.delete(name)
    with pytest.raises(DamagedFileError, match="neither a snapshot nor the first epoch"):
        await restore(store, tmp_path / "restored")


async def test_epochs_given_up_by_a_recovery_are_not_restored(tmp_path: Path, store: Slow) -> None:
    """The mirror of the new log begins behind a snapshot. Earlier epochs are not there yet."""
    await Made(tmp_path / "old").copy(store)
    story = long_story()
    story.recover(NEW_LOG, 30)
    while story.image.epoch < 90:
        assert story.apply(SetSetting("after", str(story.image.epoch))) is None
    await Made(tmp_path / "new", 90, first=71, snapshots=(70,), story=story).copy(store)
    told = await restore(store, tmp_path / "restored")
    assert (told.first_epoch, told.last_epoch, told.snapshots) == (71, 90, (20, 70))
    archive = Archive(tmp_path / "restored")
    assert archive.segments.spans() == [EpochSpan(1, 30), EpochSpan(71, 90)]


async def test_an_empty_store_holds_no_archive(tmp_path: Path, store: Slow) -> None:
    with pytest.raises(NoArchiveError, match="holds no archive of Stele"):
        await restore(store, tmp_path / "restored")
