"""A check of a local archive, or of a store, names every file that is not as it was written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stele.domain.request_memory import to_facts
from stele.domain.snapshot import state_hash
from stele.log.archive.archive import Archive
from stele.log.archive.container import DamagedFileError
from stele.log.archive.snapshots import head_of
from stele.log.archive_store.source import LocalSource
from stele.log.archive_store.stored import stored_archive
from stele.log.archive_store.verify import ArchiveVerdict, CheckProgress, OnProgress, verify
from stele.log.blobs.folder import FolderStore
from tests.log.archive.story import long_story
from tests.log.archive_store.made import SNAPSHOTS, Made, names, small_blocks


async def check(
    archive: Archive, on_progress: OnProgress = lambda progress: None
) -> ArchiveVerdict:
    return await verify(LocalSource(archive), on_progress)


NEW_LOG = bytes([0xC0] * 16)
LAST = 80


def made(tmp_path: Path) -> Made:
    found = Made(tmp_path, LAST)
    found.archive.segments.seal()
    return found


async def test_whole_archive_has_no_flaw_and_all_snapshots_are_compared(tmp_path: Path) -> None:
    told = list[CheckProgress]()
    archive = made(tmp_path)
    found = await check(archive.archive, told.append)
    assert (found.flaws, found.damaged) == ((), ())
    assert (found.first_epoch, found.last_epoch, found.folded_epochs) == (1, LAST, LAST)
    assert found.snapshots == SNAPSHOTS
    assert found.state_id == archive.story.image.state_id.hex()
    assert found.state_hash == state_hash(archive.story.image)
    assert [each.epoch for each in told] == [*range(1, LAST + 1)]
    assert told[-1] == CheckProgress(1, LAST, LAST, len(SNAPSHOTS))


async def test_a_trimmed_archive_has_no_flaw(tmp_path: Path) -> None:
    archive = made(tmp_path).archive
    archive.trim(SNAPSHOTS[1])
    found = await check(archive)
    assert found.flaws == ()
    assert (found.first_epoch, found.snapshots) == (SNAPSHOTS[1], SNAPSHOTS[1:])
    assert found.folded_epochs == LAST - SNAPSHOTS[1]


async def test_open_segment_and_empty_archive_have_no_flaw(tmp_path: Path) -> None:
    assert (await check(Archive(tmp_path / "empty"))).flaws == ()
    found = Made(tmp_path / "open", LAST)
    assert (await check(found.archive)).last_epoch == LAST


async def test_a_recovered_log_is_checked_across_its_recovery(tmp_path: Path) -> None:
    story = long_story()
    story.recover(NEW_LOG, 45)
    found = await check(Made(tmp_path, snapshots=(20, 41, 46), story=story).archive)
    assert found.flaws == ()
    assert found.snapshots == (20, 41, 46)
    assert found.state_hash == state_hash(story.image)


@pytest.mark.parametrize("at", SNAPSHOTS)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["another state", "another place"])
async def test_snapshot_that_does_not_fit_the_epochs_is_found_at_any_epoch(
    tmp_path: Path, at: int, is_elsewhere: bool
) -> None:
    """Its file is whole, so only a replay of the epochs shows it."""
    archive = made(tmp_path).archive
    (kept,) = (k for k in archive.snapshots.all() if k.head.epoch == at)
    start = archive.snapshots.start(kept, decided=True)
    assert start is not None and start.anchor is not None
    features = start.image.features
    other = msgspec.structs.replace(features, settings=features.settings.set("never", "set"))
    image = start.image if is_elsewhere else msgspec.structs.replace(start.image, features=other)
    next_offset = start.next_offset + 5 * is_elsewhere
    head = head_of(image, next_offset, start.anchor, kept.head.at_ms)
    archive.snapshots.write(image, head, to_facts(image.decided))
    found = await check(archive)
    (flaw,) = found.flaws
    what = "stands at another place of the log" if is_elsewhere else "has another state than"
    assert flaw.startswith(f"Epoch {at}: its snapshot {what}")
    assert found.snapshots == tuple(epoch for epoch in SNAPSHOTS if epoch != at)


@pytest.mark.parametrize("place", range(10))
async def test_every_damaged_file_is_named(tmp_path: Path, place: int) -> None:
    made(tmp_path)
    path = sorted(tmp_path.rglob("*.avro"))[place]  # noqa: ASYNC240
    content = bytearray(path.read_bytes())
    content[2 * len(content) // 3] ^= 1
    path.write_bytes(content)
    archive = Archive(tmp_path)
    found = await check(archive)
    assert found.flaws
    assert path.name.partition("-decided")[0] in " ".join([*found.flaws, *found.damaged])
    assert found.last_epoch == LAST
    assert path.with_name(path.name + ".damaged").exists()


async def test_missing_epochs_are_a_flaw_and_later_epochs_are_checked(tmp_path: Path) -> None:
    made(tmp_path)
    (path,) = (p for p in tmp_path.rglob("*.avro") if p.name.startswith(f"{26:020}"))  # noqa: ASYNC240
    path.unlink()
    found = await check(Archive(tmp_path))
    assert found.flaws == ("Epochs 26 to 50 are missing.",)
    assert found.snapshots == SNAPSHOTS
    assert found.folded_epochs == 25 + LAST - 60


async def test_copying_a_damaged_snapshot_sets_it_aside(tmp_path: Path) -> None:
    archive = made(tmp_path).archive
    source = LocalSource(archive)
    shot = source.shots[0]
    path = tmp_path / "snapshots" / f"{shot.stem}-decided.avro"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match="set aside"):
        await source.files(shot)
    assert shot not in source.shots
    assert path.with_name(path.name + ".damaged").exists()


# The check of a store.


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    small_blocks(monkeypatch)
    return FolderStore(tmp_path / "store", timeout_s=60)


async def verdict(store: FolderStore) -> ArchiveVerdict:
    return await verify(await stored_archive(store))


async def test_a_whole_store_has_no_flaw(tmp_path: Path, store: FolderStore) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    found = await verdict(store)
    assert (found.flaws, found.damaged) == ((), ())
    assert (found.first_epoch, found.last_epoch, found.folded_epochs) == (1, 80, 80)
    assert found.snapshots == SNAPSHOTS
    assert found.state_id == made.story.image.state_id.hex()
    assert found.state_hash == state_hash(made.story.image)
    assert found.blobs == 5 + 2 * len(SNAPSHOTS)
    assert found.size_bytes == sum(
        blob.size_bytes for blob in await store.list() if blob.name.startswith("logs/")
    )


@pytest.mark.parametrize("place", range(11))
async def test_every_damaged_blob_is_named(tmp_path: Path, store: FolderStore, place: int) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    name = [name for name in await names(store) if name.startswith("logs/")][place]
    path = tmp_path / "store" / name
    content = bytearray(path.read_bytes())
    content[2 * len(content) // 3] ^= 1
    path.write_bytes(content)
    found = await verdict(store)
    assert len(found.flaws) == 1
    assert name in found.damaged
    assert found.last_epoch == 80
    assert found.state_hash in ("", state_hash(made.story.image))
    path.write_bytes(content[:-9])
    assert name in (await verdict(store)).damaged


async def test_missing_epochs_and_their_snapshots_are_flaws(
    tmp_path: Path, store: FolderStore
) -> None:
    await Made(tmp_path / "archive").copy(store)
    (name,) = (name for name in await names(store) if "/segments/" in name and "00048-" in name)
    await store.delete(name)
    found = await verdict(store)
    assert found.flaws == ("Epochs 33 to 48 are missing.",)
    assert found.snapshots == SNAPSHOTS
    for name in await names(store):
        if "/segments/" in name and ("00064-" in name or "00080-" in name):
            await store.delete(name)
    found = await verdict(store)
    assert len(found.flaws) == 2
    assert "before a snapshot" in found.flaws[0]


async def test_verify_reads_segments_from_their_longer_replacement(
    tmp_path: Path, store: FolderStore
) -> None:
    made = Made(tmp_path / "archive", last=70)
    await made.copy(store)
    stored = await stored_archive(store)
    made.go_on(80)
    await made.copy(store)
    found = await verify(stored)
    assert found.flaws == ()
    assert found.last_epoch == 70
