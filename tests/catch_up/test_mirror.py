"""The mirror continues through failures of the store, and reports its position."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stele.catch_up import metrics
from stele.catch_up.mirror import DAY_MS, ArchiveMirror, store_of
from stele.catch_up.settings import CatchUpSettings
from stele.log.archive_store.layout import Claim, StoreKind, claim
from stele.log.archive_store.stored import stored_archive
from stele.log.blobs.folder import FolderStore
from stele.runtime.settings import ConfigurationError
from tests.domain.epochs import AT_MS
from tests.domain.epochs import History as Story
from tests.log.archive.story import long_story
from tests.log.archive_store.made import SNAPSHOTS, Made, small_blocks

WITHIN_S = 240.0
FIRST_YOUNG = 62


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def settings(folder: Path, **more: Any) -> CatchUpSettings:
    given = {"archive_store": f"file://{folder}", "archive_store_interval_s": 0.01, **more}
    return CatchUpSettings(**given)


async def until(mirror: ArchiveMirror, condition: Callable[[], object]) -> None:
    """Run the mirror until the condition holds."""
    running = asyncio.create_task(mirror.run())
    try:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def later_story(later_ms: int) -> Story:
    """Return a story whose epochs from 62 on are younger by this time."""
    story = long_story()
    story.epochs = [
        replace(each, at_ms=AT_MS + (later_ms if each.epoch >= FIRST_YOUNG else 0))
        for each in story.epochs
    ]
    return story


def mirror_of(made: Made, given: CatchUpSettings) -> ArchiveMirror:
    store = store_of(given)
    assert store is not None
    image = made.story.image
    return ArchiveMirror(store, made.archive, lambda: image, given)


async def test_store_that_becomes_available_gets_all_epochs(tmp_path: Path) -> None:
    made = Made(tmp_path / "archive")
    folder = tmp_path / "store"
    folder.write_bytes(b"no folder yet")
    mirror = mirror_of(made, settings(folder))
    failed = metrics.store_failures._value.get()
    await until(mirror, lambda: mirror.answer.why)
    assert mirror.answer.epoch == 0
    assert metrics.store_failures._value.get() > failed
    folder.unlink()
    await until(mirror, lambda: mirror.answer.epoch == 80)
    assert mirror.answer.why == ""
    assert mirror.answer.snapshot_epoch == SNAPSHOTS[-1]
    assert metrics.store_epoch._value.get() == 80
    assert metrics.store_snapshot_epoch._value.get() == SNAPSHOTS[-1]


async def test_store_of_another_cluster_is_refused_with_the_reason(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", 5)
    await claim(store, Claim(cluster="books", cluster_id="books/2", kind=StoreKind.MIRROR))
    mirror = mirror_of(Made(tmp_path / "archive"), settings(tmp_path / "store"))
    await until(mirror, lambda: mirror.answer.why)
    assert "holds the archive of cluster 'books'" in mirror.answer.why
    assert [blob.name for blob in await store.list()] == ["stele.json"]


async def test_mirror_continues_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path / "archive")
    mirror = mirror_of(made, settings(tmp_path / "store"))
    with monkeypatch.context() as broken:
        broken.setattr(made.archive.snapshots, "all", lambda: 1 / 0)
        await until(mirror, lambda: "ZeroDivisionError" in mirror.answer.why)
    await until(mirror, lambda: mirror.answer.snapshot_epoch == SNAPSHOTS[-1])


async def test_epochs_older_than_keep_days_are_deleted_from_the_store(tmp_path: Path) -> None:
    """Epochs that the kept ones need are not deleted."""
    made = Made(tmp_path / "archive", story=later_story(31 * DAY_MS))
    mirror = mirror_of(made, settings(tmp_path / "store", archive_store_keep_days=30))
    await until(mirror, lambda: mirror.answer.epoch == 80)
    store = FolderStore(tmp_path / "store", 5)
    await until(mirror, lambda: len([*(tmp_path / "store").rglob("segments/*.avro")]) == 2)
    stored = await stored_archive(store)
    assert [shot.epoch for shot in stored.shots] == [60]
    assert stored.spans == [(49, 80)]


async def test_fast_clock_deletes_nothing_from_the_store(tmp_path: Path) -> None:
    """The story is of 2023. Its newest epoch is 29 days younger than the first ones."""
    made = Made(tmp_path / "archive", story=later_story(29 * DAY_MS))
    mirror = mirror_of(made, settings(tmp_path / "store", archive_store_keep_days=30))
    await until(mirror, lambda: mirror.answer.epoch == 80)
    stored = await stored_archive(FolderStore(tmp_path / "store", 5))
    assert [shot.epoch for shot in stored.shots] == [60, 41, 20]
    assert stored.spans == [(1, 80)]


async def test_an_empty_archive_has_nothing_to_delete(tmp_path: Path) -> None:
    made = Made(tmp_path / "archive", 0)
    mirror = mirror_of(made, settings(tmp_path / "store", archive_store_keep_days=30))
    assert mirror._cutoff() == 0


def test_invalid_store_address_is_a_configuration_error() -> None:
    assert store_of(CatchUpSettings()) is None
    with pytest.raises(ConfigurationError, match=r"STELE_ARCHIVE_STORE: .*names no store"):
        store_of(CatchUpSettings(archive_store="ftp://x"))
