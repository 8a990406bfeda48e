"""An archive of a short log on a disk, and copies of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.domain.facts import Epoch
from stele.domain.request_memory import to_facts
from stele.log.archive.archive import Archive, archived, folded
from stele.log.archive.container import Archived
from stele.log.archive.segments import SegmentLimits
from stele.log.archive.snapshots import head_of
from stele.log.archive_store import layout
from stele.log.archive_store.copying import Copier, CopyProgress
from stele.log.archive_store.layout import StoreKind
from stele.log.archive_store.source import About, LocalSource
from stele.log.blobs.port import BlobStore
from stele.log.codec import encode_epoch
from stele.log.fold import BEGINNING, Start
from tests.domain.epochs import History as Story
from tests.log.archive.story import long_story

BLOCK = 16
SNAPSHOTS = (20, 41, 60)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_EPOCHS", BLOCK)


class Made:
    """The archive of ``story`` up to some epoch, with snapshots of the epochs ``snapshots``."""

    def __init__(
        self,
        folder: Path,
        last: int = 80,
        *,
        first: int = 1,
        snapshots: tuple[int, ...] = SNAPSHOTS,
        story: Story | None = None,
    ) -> None:
        self.story = story or long_story()
        self.folder = folder
        self.first = first
        self.archive = Archive(folder, SegmentLimits(epochs=25))
        self._snapshots = snapshots
        self._start: Start = BEGINNING
        self.go_on(last)

    @property
    def about(self) -> About:
        image = self._start.image
        return About(image.cluster, image.cluster_id, image.log_id.hex())

    def go_on(self, last: int) -> None:
        """Archive the epochs up to this one."""
        for epoch in self.story.epochs[self._start.image.epoch : last]:
            self._start = folded(self._start, [record_of(epoch)])
            if epoch.epoch >= self.first:
                self.archive.segments.add(record_of(epoch))
                self.archive.segments.sync()
            if epoch.epoch in self._snapshots:
                self._take_snapshot(epoch)

    def _take_snapshot(self, epoch: Epoch) -> None:
        start = self._start
        assert start.anchor is not None
        head = head_of(start.image, start.next_offset, start.anchor, epoch.at_ms)
        self.archive.snapshots.write(start.image, head, to_facts(start.image.decided))

    def copier(self, store: BlobStore, kind: StoreKind = StoreKind.MIRROR) -> Copier:
        return Copier(store, LocalSource(self.archive, lambda: self.about), kind)

    async def copy(self, store: BlobStore, *, cutoff: int = 0) -> CopyProgress:
        """Run one round of a mirror."""
        copier = self.copier(store)
        progress = await copier.copy(cutoff=cutoff)
        await copier.forget(progress, cutoff=cutoff)
        return progress


def record_of(epoch: Epoch) -> Archived:
    """Return the record at its offset in a topic with a loser before each third winner."""
    return archived(epoch.epoch + epoch.epoch // 3, encode_epoch(epoch), epoch)


async def names(store: BlobStore) -> list[str]:
    return [blob.name for blob in await store.list()]


async def segments(store: BlobStore) -> list[tuple[int, int]]:
    """Return the first and last epochs of the segments in a store."""
    stems = [name.rpartition("/")[2] for name in await names(store) if "/segments/" in name]
    return [(int(stem[:20]), int(stem[21:41])) for stem in stems]
