"""A backup is complete at any time: the files in its manifest exist unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stele.log.archive.archive import Archive
from stele.log.archive.container import DamagedFileError
from stele.log.archive_store.backup import (
    BackedUp,
    NothingToRestoreError,
    back_up,
    restore,
    verify_stored,
)
from stele.log.archive_store.layout import MANIFEST_NAME as MANIFEST
from stele.log.archive_store.layout import ForeignStoreError, manifest_in
from stele.log.archive_store.source import LocalSource
from stele.log.archive_store.stored import stored_archive
from stele.log.archive_store.verify import verify
from stele.log.blobs.port import BlobStore, StoreRefusedError, StoreUnavailableError
from tests.log.archive_store.made import Made, names, small_blocks
from tests.log.archive_store.test_copying import Flaky

MADE_MS = 1_750_000_000_000


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "store")


async def backed_up(made: Made, store: BlobStore, *, check: bool = False) -> BackedUp:
    source = LocalSource(made.archive, lambda: made.about)
    return await back_up(store, source, made_ms=MADE_MS, made_from="here", check=check)


async def is_whole(store: BlobStore, last: int) -> bool:
    verdict = await verify(await stored_archive(store))
    return (verdict.flaws, verdict.first_epoch, verdict.last_epoch) == ((), 1, last)


async def test_manifest_lists_the_contents_of_a_backup(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive")
    done = await backed_up(made, store)
    manifest = await manifest_in(store)
    assert manifest == done.manifest
    assert (manifest.cluster, manifest.cluster_id, manifest.log_id) == made.about
    assert (manifest.first_epoch, manifest.last_epoch) == (1, 80)
    assert manifest.state_id == made.story.image.state_id.hex()
    assert manifest.snapshot_epochs == (60,)
    assert (manifest.made_ms, manifest.made_from) == (MADE_MS, "here")
    for entry in manifest.files:
        assert await store.stat(entry.name) == (entry.size_bytes, entry.sha256)
    assert {entry.name for entry in manifest.files} | {MANIFEST, "stele.json"} == {
        *await names(store)
    }
    assert await is_whole(store, 80)


async def test_next_backup_puts_only_new_files(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive", last=58)
    await backed_up(made, store)
    before = set(await names(store))
    made.go_on(70)
    done = await backed_up(made, store)
    assert done.manifest.snapshot_epochs == (41, 60)
    assert done.progress.put_blobs == 4
    gone = before - {*await names(store)}
    assert [name.rpartition("/")[2][:41] for name in gone] == [f"{49:020}-{58:020}"]
    assert await is_whole(store, 70)
    assert (await backed_up(made, store)).progress.put_blobs == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_interrupted_backup_leaves_a_whole_one(
    tmp_path: Path, store: Flaky, when: str
) -> None:
    made = Made(tmp_path / "archive", last=45)
    await backed_up(made, store)
    made.go_on(80)
    calls = 0
    while True:
        left = calls

        def cut_off(what: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailableError(f"{what} {name}")

        setattr(store, when, cut_off)
        try:
            await backed_up(made, store)
            break
        except StoreUnavailableError:
            calls += 1
            assert await is_whole(store, 45) or await is_whole(store, 80)
    assert calls > 2
    assert await is_whole(store, 80)


@pytest.mark.parametrize("damaged", ["/segments/", "-decided.avro"])
async def test_check_puts_damaged_files_again(tmp_path: Path, store: Flaky, damaged: str) -> None:
    made = Made(tmp_path / "archive")
    await backed_up(made, store)
    name = next(name for name in await names(store) if damaged in name)
    path = store.folder / name
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    assert not await is_whole(store, 80)
    await backed_up(made, store, check=True)
    assert await is_whole(store, 80)
    path.unlink()
    assert not await is_whole(store, 80)
    await backed_up(made, store)
    assert await is_whole(store, 80)


async def test_concurrent_backup_of_another_process_is_detected(
    tmp_path: Path, store: Flaky
) -> None:
    made = Made(tmp_path / "archive")

    def other(what: str, name: str) -> None:
        if name == MANIFEST:
            (store.folder / name).unlink()

    store.after = other
    with pytest.raises(StoreUnavailableError, match="One at a time"):
        await backed_up(made, store)


async def test_unreadable_manifest_is_refused(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive")
    await backed_up(made, store)
    (store.folder / MANIFEST).write_bytes(b"{}")
    for work in (verify_it(store), backed_up(made, store), restore(store, tmp_path / "into")):
        with pytest.raises(StoreRefusedError, match="Delete it and back up again"):
            await work
    (store.folder / MANIFEST).unlink()
    await backed_up(made, store)
    assert await is_whole(store, 80)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"last_epoch": 90}, "last_epoch 90, and its files hold 80"),
        ({"state_id": "ab" * 16}, f"state_id {'ab' * 16}, and its files hold"),
    ],
)
async def test_manifest_that_claims_other_contents_is_wrong(
    tmp_path: Path, store: Flaky, claims: dict[str, object], said: str
) -> None:
    done = await backed_up(Made(tmp_path / "archive"), store)
    assert (await verify_stored(store)).flaws == ()
    false = msgspec.structs.replace(done.manifest, **claims)
    (store.folder / MANIFEST).write_bytes(msgspec.json.encode(false))
    (flaw,) = (await verify_stored(store)).flaws
    assert said in flaw
    assert "`stele backup TARGET` writes a new one" in flaw
    with pytest.raises(DamagedFileError, match="to restore what is there"):
        await restore(store, tmp_path / "into")


async def test_backup_without_a_manifest_is_wrong(tmp_path: Path, store: Flaky) -> None:
    await backed_up(Made(tmp_path / "archive"), store)
    (store.folder / MANIFEST).unlink()
    (flaw,) = (await verify_stored(store)).flaws
    assert "manifest.json is missing" in flaw
    assert (await restore(store, tmp_path / "into")).last_epoch == 80


async def verify_it(store: BlobStore) -> None:
    await verify(await stored_archive(store))


async def test_backup_needs_the_first_epoch_or_a_snapshot(tmp_path: Path, store: Flaky) -> None:
    for number, made in enumerate(
        (
            Made(tmp_path / "late", first=30, snapshots=(20,)),
            Made(tmp_path / "nothing", last=10, first=11, snapshots=()),
        )
    ):
        with pytest.raises(NothingToRestoreError, match="neither the first epoch nor a snapshot"):
            await backed_up(made, Flaky(tmp_path / f"store-{number}"))
    late = Made(tmp_path / "well", first=30, snapshots=(29,))
    await backed_up(late, store)
    told = await restore(store, tmp_path / "into")
    assert (told.first_epoch, told.last_epoch, told.snapshots) == (30, 80, (29,))
    start, _ = Archive(tmp_path / "into").begin(decided=True)
    assert start.image.epoch == 29


async def test_backup_into_a_mirror_is_refused(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    with pytest.raises(ForeignStoreError, match="holds a mirror"):
        await backed_up(made, store)
    assert MANIFEST not in await names(store)
