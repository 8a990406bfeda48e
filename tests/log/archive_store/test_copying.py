"""A store receives the whole archive despite faults, and no other data."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from stele.domain.commands import FoundCluster, SetSetting
from stele.domain.image import EMPTY
from stele.log.archive.container import SCHEMA, SYNC, ContainerWriter, encoded, from_container
from stele.log.archive_store.layout import CLAIM_NAME as CLAIM
from stele.log.archive_store.layout import ForeignStoreError, StoreKind, spans
from stele.log.archive_store.stored import stored_archive
from stele.log.blobs.folder import FolderStore
from stele.log.blobs.port import BlobStoreError, StoreRefusedError, StoreUnavailableError
from tests.domain.epochs import LOG_ID
from tests.domain.epochs import History as Story
from tests.log.archive.story import long_story
from tests.log.archive_store.made import (
    SNAPSHOTS,
    Made,
    names,
    record_of,
    segments,
    small_blocks,
)

BLOCKS = [(1, 16), (17, 32), (33, 48), (49, 64), (65, 80)]
NEW_LOG = bytes([0xC0] * 16)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "store")


class Flaky(FolderStore):
    """A store whose calls can be made to fail, before or after they take effect."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, timeout_s=60)
        self.folder = folder
        self.before: Callable[[str, str], None] = lambda what, name: None
        self.after: Callable[[str, str], None] = lambda what, name: None

    async def put(self, name: str, content: bytes | Path, sha256: str) -> None:
        self.before("put", name)
        await super().put(name, content, sha256)
        self.after("put", name)

    async def delete(self, name: str) -> None:
        self.before("delete", name)
        await super().delete(name)
        self.after("delete", name)


async def test_every_epoch_and_snapshot_is_put(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive")
    progress = await made.copy(store)
    assert (progress.last_epoch, progress.snapshot_epoch) == (80, SNAPSHOTS[-1])
    assert progress.skipped == ()
    assert await segments(store) == BLOCKS
    stored = await stored_archive(store, made.about.cluster)
    records = [record for part in stored.parts for record in await stored.piece(part)]
    assert records == [record_of(epoch) for epoch in made.story.epochs]
    assert [shot.epoch for shot in stored.shots] == [*SNAPSHOTS[::-1]]
    for shot in stored.shots:
        kept = made.archive.snapshots.named(shot.stem)
        assert kept is not None
        files = kept.path.read_bytes(), kept.decided_path.read_bytes()
        assert await stored.files(shot) == files
    assert (await made.copy(store)).put_blobs == 0


async def test_the_newest_block_grows_until_it_is_full(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive", last=18)
    for last, found in (
        (18, [(1, 16), (17, 18)]),
        (25, [(1, 16), (17, 25)]),
        (40, [(1, 16), (17, 32), (33, 40)]),
    ):
        made.go_on(last)
        assert (await made.copy(store)).last_epoch == last
        assert await segments(store) == found


async def test_replicas_that_share_a_store_put_each_epoch_once(
    tmp_path: Path, store: Flaky
) -> None:
    one = Made(tmp_path / "one", last=70)
    two = Made(tmp_path / "two", last=70, first=25, story=one.story)
    for made in (two, one, two):
        await made.copy(store)
    assert await segments(store) == [*BLOCKS[:4], (65, 70)]
    one.go_on(75)
    two.go_on(80)
    await asyncio.gather(one.copy(store), two.copy(store))
    assert spans((await stored_archive(store)).parts) == [(1, 80)]
    assert (await two.copy(store)).put_blobs == 0
    assert (await one.copy(store)).last_epoch == 75


@pytest.mark.parametrize("when", ["before", "after"])
async def test_copy_continues_after_an_interruption_at_any_call(
    tmp_path: Path, store: Flaky, when: str
) -> None:
    """Whether a failed call took effect is unknown. The next copy does the rest."""
    made = Made(tmp_path / "archive", last=40)
    await made.copy(store)
    made.go_on(80)
    puts = 0
    while True:
        left = puts

        def cut_off(what: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailableError(f"{what} {name}")

        setattr(store, when, cut_off)
        try:
            await made.copy(store)
        except StoreUnavailableError:
            puts += 1
            assert spans((await stored_archive(store)).parts)[0].last >= 40
            continue
        break
    assert puts > 0
    setattr(store, when, lambda what, name: None)
    await made.copy(store)
    assert await segments(store) == BLOCKS
    assert [shot.epoch for shot in (await stored_archive(store)).shots] == [*SNAPSHOTS[::-1]]


async def test_files_that_differ_in_the_store_are_deleted_and_put_again(
    tmp_path: Path, store: Flaky
) -> None:
    made = Made(tmp_path / "archive")
    torn = list[str]()

    def tear(what: str, name: str) -> None:
        if (what == "put" and "00048-" in name) or ("00060-" in name and name not in torn):
            torn.append(name)
            path = store.folder / name
            path.write_bytes(path.read_bytes()[:-3])

    store.after = tear
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="did not keep"):
            await made.copy(store)
        assert torn[-1] not in await names(store)
        store.after = lambda what, name: None
        if len(torn) == 1:
            store.after = lambda what, name: tear(what, name) if "snapshots" in name else None
    await made.copy(store)
    assert await segments(store) == BLOCKS


async def test_same_epochs_with_other_compression_are_accepted(
    tmp_path: Path, store: Flaky
) -> None:
    """Another replica put them at the same time, with another version of the compression."""
    made = Made(tmp_path / "archive")
    other = Made(tmp_path / "other", story=made.story)
    await other.copy(FolderStore(tmp_path / "elsewhere", 5))

    def replaced(what: str, name: str) -> None:
        if "/segments/" in name:
            path = store.folder / name
            path.write_bytes(repacked(path.read_bytes()))

    store.after = replaced
    progress = await made.copy(store)
    assert progress.last_epoch == 80
    assert await segments(store) == BLOCKS


def repacked(content: bytes) -> bytes:
    """Return the same records with one block for each."""
    out = io.BytesIO()
    writer = ContainerWriter(out, SCHEMA, {}, SYNC)
    for record in from_container(content):
        writer.block([encoded(record)])
    assert out.getvalue() != content
    return out.getvalue()


async def test_damaged_longer_segment_does_not_cover_others(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive", last=20)
    await made.copy(store)
    made.go_on(32)
    copier = made.copier(store)
    progress = await copier.copy()
    (longer,) = (name for name in await names(store) if "00032-" in name)
    (store.folder / longer).write_bytes(b"no segment")
    assert await made.copier(store).forget(progress) == []
    assert (17, 20) in await segments(store)


async def test_damaged_local_files_are_named_and_all_others_are_put(
    tmp_path: Path, store: Flaky
) -> None:
    made = Made(tmp_path / "archive")
    kept = made.archive.snapshots.newest(50)
    assert kept is not None
    kept.decided_path.write_bytes(kept.decided_path.read_bytes()[:-4])
    (path,) = (tmp_path / "archive" / "segments").glob("*026-*050.avro")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    progress = await made.copy(store)
    assert len(progress.skipped) == 4
    assert progress.last_epoch < 33
    assert [shot.epoch for shot in (await stored_archive(store)).shots] == [60, 20]
    assert await segments(store) == [BLOCKS[0], BLOCKS[4]]


async def test_expired_segments_and_snapshots_are_deleted(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store, cutoff=41)
    assert await segments(store) == BLOCKS[1:]
    assert [shot.epoch for shot in (await stored_archive(store)).shots] == [*SNAPSHOTS[::-1]]
    await made.copy(store, cutoff=42)
    assert await segments(store) == BLOCKS[2:]
    assert [shot.epoch for shot in (await stored_archive(store)).shots] == [60, 41]
    progress = await made.copy(store, cutoff=42)
    assert (progress.put_blobs, progress.last_epoch) == (0, 80)
    assert (await made.copy(store)).put_blobs > 0


async def test_store_of_another_cluster_is_left_unchanged(tmp_path: Path, store: Flaky) -> None:
    await Made(tmp_path / "archive").copy(store)
    before = await store.list()
    other = Made(tmp_path / "other", story=of_cluster("other"), last=8, snapshots=())
    with pytest.raises(ForeignStoreError, match=r"of cluster '.*Take another prefix"):
        await other.copy(store)
    assert await store.list() == before


def of_cluster(name: str) -> Story:
    story = Story(empty=EMPTY)
    assert story.apply(FoundCluster(f"{name}/1", LOG_ID.hex())) is None
    for number in range(7):
        assert story.apply(SetSetting("colour", str(number))) is None
    return story


async def test_a_mirror_and_a_backup_do_not_share_a_store(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    with pytest.raises(ForeignStoreError, match="holds a mirror of this cluster, not a backup"):
        await made.copier(store, StoreKind.BACKUP).copy()


@pytest.mark.parametrize(
    "claim", [b"no JSON", b'{"cluster":"a","cluster_id":"b","kind":"mirror","format":9}']
)
async def test_unreadable_claim_is_respected(tmp_path: Path, store: Flaky, claim: bytes) -> None:
    await store.put_new(CLAIM, claim)
    with pytest.raises(StoreRefusedError, match=r"cannot be read|Upgrade this process"):
        await Made(tmp_path / "archive").copy(store)
    assert await names(store) == [CLAIM]


async def test_another_history_of_the_same_log_is_refused(tmp_path: Path, store: Flaky) -> None:
    made = Made(tmp_path / "archive", last=30)
    await made.copy(store)
    before = await store.list()
    (name,) = (blob.name for blob in before if "00030-" in blob.name)
    stem, _, _ = name.rpartition("-")
    await store.put(f"{stem}-{'ab' * 16}.avro", await store.get(name), "")
    await store.delete(name)
    with pytest.raises(ForeignStoreError, match="another epoch 30 of log"):
        await made.copy(store)


async def test_recovered_log_is_copied_beside_the_old_log(tmp_path: Path, store: Flaky) -> None:
    story = long_story()
    await Made(tmp_path / "old", snapshots=(20, 34, 41), story=story).copy(store)
    late = Made(tmp_path / "late", last=50, story=long_story())
    story.recover(NEW_LOG, 38)
    for number in range(12):
        assert story.apply(SetSetting("colour", str(number))) is None
    made = Made(tmp_path / "new", last=51, snapshots=(20, 50), story=story)
    await made.copy(store)
    stored = await stored_archive(store)
    assert stored.log_id == NEW_LOG.hex()
    assert spans(stored.parts) == [(1, 51)]
    assert [shot.epoch for shot in stored.shots] == [50, 34, 20]
    records = [record for part in stored.parts for record in await stored.piece(part)]
    assert records == [record_of(epoch) for epoch in story.epochs]
    assert (await made.copy(store)).put_blobs == 0
    with pytest.raises(ForeignStoreError, match="the log was recovered without this replica"):
        await late.copy(store)


async def test_unavailable_store_raises_a_blob_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BlobStoreError):
        await Made(tmp_path / "archive").copy(FolderStore(tmp_path / "file", 5))
