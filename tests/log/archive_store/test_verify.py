"""A check of a store names every file that is not as it was put."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.domain.request_memory import to_facts
from stele.domain.snapshot import state_hash
from stele.log.archive.archive import Archive
from stele.log.archive.snapshots import head_of
from stele.log.archive_store.stored import StoredArchive, stored_archive
from stele.log.archive_store.verify import ArchiveVerdict, verify
from stele.log.blobs.folder import FolderStore
from tests.log.archive.story import long_story
from tests.log.archive_store.made import SNAPSHOTS, Made, names, small_blocks

NEW_LOG = bytes([0xC0] * 16)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store", timeout_s=5)


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


async def test_a_store_that_begins_with_a_snapshot_has_no_flaw(
    tmp_path: Path, store: FolderStore
) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store, cutoff=42)
    found = await verdict(store)
    assert found.flaws == ()
    assert (found.first_epoch, found.last_epoch) == (33, 80)
    assert found.snapshots == SNAPSHOTS[1:]
    assert found.folded_epochs == 80 - 41
    assert found.state_hash == state_hash(made.story.image)


async def test_a_recovered_log_is_checked_across_its_recovery(
    tmp_path: Path, store: FolderStore
) -> None:
    story = long_story()
    await Made(tmp_path / "old", story=story).copy(store)
    story.recover(NEW_LOG, 45)
    await Made(tmp_path / "new", snapshots=(46,), story=story).copy(store)
    found = await verdict(store)
    assert found.flaws == ()
    assert found.snapshots == (20, 41, 46)
    assert found.state_hash == state_hash(story.image)


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


async def test_a_snapshot_of_another_state_is_found(tmp_path: Path, store: FolderStore) -> None:
    """It is whole, but its state does not follow from the epochs before it."""
    made = Made(tmp_path / "archive")
    await made.copy(store)
    archive = made.archive
    kept = archive.snapshots.newest(41)
    assert kept is not None
    start = archive.snapshots.start(kept, decided=True)
    assert start is not None
    assert start.anchor is not None
    older = made.story.images[40]
    wrong = Archive(tmp_path / "wrong").snapshots
    image = older.__class__(
        **{name: getattr(older, name) for name in older.__struct_fields__}
        | {"epoch": 41, "state_id": start.image.state_id}
    )
    head = head_of(image, start.next_offset, start.anchor, kept.head.at_ms)
    told = wrong.write(image, head, to_facts(start.image.decided))
    (name,) = (name for name in await names(store) if "00041-" in name and "decided" not in name)
    await store.put(name, told.path, "")
    found = await verdict(store)
    assert found.flaws == ("Epoch 41: its snapshot has another state than the epochs lead to.",)
    assert found.snapshots == (20, 60), "later snapshots are compared with the epochs' state"
    head = head_of(start.image, start.next_offset + 5, start.anchor, kept.head.at_ms)
    told = wrong.write(start.image, head, to_facts(start.image.decided))
    await store.put(name, told.path, "")
    await store.put(name.replace(".avro", "-decided.avro"), told.decided_path, "")
    assert (await verdict(store)).flaws == (
        "Epoch 41: its snapshot stands at another place of the log.",
    )


async def test_verify_reads_segments_from_their_longer_replacement(
    tmp_path: Path, store: FolderStore
) -> None:
    made = Made(tmp_path / "archive", last=70)
    await made.copy(store)
    stored: StoredArchive = await stored_archive(store)
    made.go_on(80)
    await made.copy(store)
    found = await verify(stored)
    assert found.flaws == ()
    assert found.last_epoch == 70
