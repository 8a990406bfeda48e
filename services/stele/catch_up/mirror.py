"""The mirror of the archive in a blob store.

It blocks no other work, and retries while the store is away.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from stele.catch_up import metrics
from stele.catch_up.settings import CatchUpSettings
from stele.domain.image import Image
from stele.log.archive.archive import Archive
from stele.log.archive_store.copying import Copier
from stele.log.archive_store.layout import StoreKind
from stele.log.archive_store.source import About, LocalSource
from stele.log.blobs.folder import open_store
from stele.log.blobs.port import BlobStore, BlobStoreError, StoreRefusedError
from stele.runtime.answers.catch_up import StoreAnswer
from stele.runtime.logs import get_logger
from stele.runtime.settings import ConfigurationError

DAY_MS: Final = 86_400_000

log = get_logger(__name__)


def store_of(settings: CatchUpSettings) -> BlobStore | None:
    """Return the store that the settings name, or None. Raises ConfigurationError."""
    if not settings.archive_store:
        return None
    try:
        return open_store(
            settings.archive_store,
            settings.archive_store_endpoint,
            settings.archive_store_timeout_s,
        )
    except ValueError as error:
        raise ConfigurationError(f"STELE_ARCHIVE_STORE: {error}") from error


class ArchiveMirror:
    """Copies ``archive`` to ``store`` repeatedly. ``answer`` is its progress."""

    def __init__(
        self,
        store: BlobStore,
        archive: Archive,
        image: Callable[[], Image],
        settings: CatchUpSettings,
    ) -> None:
        self.answer = StoreAnswer(url=store.url)
        self._archive = archive
        self._interval_s = settings.archive_store_interval_s
        self._keep_ms = settings.archive_store_keep_days * DAY_MS
        self._copier = Copier(
            store, LocalSource(archive, lambda: _about(image())), StoreKind.MIRROR
        )

    async def run(self) -> None:
        """Run forever. Failures of the store or of files are logged and counted."""
        while True:
            try:
                await self._round()
            except StoreRefusedError as error:
                self._failed(str(error))
                log.error("the store refuses the archive", store=self.answer.url, why=str(error))
            except BlobStoreError as error:
                self._failed(str(error))
                log.warning(
                    "the store is away, and is tried again", store=self.answer.url, why=str(error)
                )
            except Exception as error:
                self._failed(repr(error))
                log.exception("the archive was not put into the store", store=self.answer.url)
            await asyncio.sleep(self._interval_s)

    async def _round(self) -> None:
        cutoff = await asyncio.to_thread(self._cutoff) if self._keep_ms else 0
        progress = await self._copier.copy(cutoff=cutoff)
        for text in progress.skipped:
            log.error("what is damaged here was not put into the store", what=text)
        forgotten = await self._copier.forget(progress, cutoff=cutoff)
        if progress.put_blobs:
            log.info(
                "the archive is in the store",
                epoch=progress.last_epoch,
                snapshot_epoch=progress.snapshot_epoch,
                put_bytes=progress.put_bytes,
                forgotten=len(forgotten),
            )
        metrics.store_epoch.set(progress.last_epoch)
        metrics.store_snapshot_epoch.set(progress.snapshot_epoch)
        metrics.store_put_bytes.inc(progress.put_bytes)
        self.answer = StoreAnswer(
            url=self.answer.url,
            epoch=progress.last_epoch,
            snapshot_epoch=progress.snapshot_epoch,
            why="; ".join(progress.skipped),
        )

    def _failed(self, why: str) -> None:
        metrics.store_failures.inc()
        self.answer = StoreAnswer(
            url=self.answer.url,
            epoch=self.answer.epoch,
            snapshot_epoch=self.answer.snapshot_epoch,
            why=why,
        )

    def _cutoff(self) -> int:
        """Return the first epoch that is young enough to keep; 0 if there is none.

        The time of reference is never later than the newest epoch's, so a clock that is ahead
        deletes no epoch. Blocks. Raises DamagedFileError.
        """
        segments = self._archive.segments
        newest = next(segments.read(last), None) if (last := segments.last) else None
        if newest is None:
            return 0
        now_ms = min(int(time.time() * 1000), newest.at_ms)
        return segments.at_time(int(now_ms - self._keep_ms))


def _about(image: Image) -> About:
    return About(image.cluster, image.cluster_id, image.log_id.hex())
