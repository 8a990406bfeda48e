"""Getting from the blob store what no other replica gives: a snapshot to begin with, and missing epochs."""

import asyncio
from typing import Final

from stele.catch_up.keeper import Keeper
from stele.domain.image import Image
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import head_in, shared_with
from stele.log.archive.spans import NotArchivedError
from stele.log.archive_store.stored import NoArchiveError, stored_archive
from stele.log.blobs.port import BlobStore, StoreError
from stele.log.start import Start
from stele.runtime.logs import get_logger

NEWEST_TRIED: Final = 3
"""Snapshots that are got, when those before them are damaged."""

log = get_logger(__name__)


async def adopted(
    keeper: Keeper, store: BlobStore, cluster: str, begin: int, own: Image
) -> Start | None:
    """Behind the newest snapshot in the store, if the topic, which begins at ``begin``, has what follows. What
    this archive, which leads to ``own``, has and the snapshot's log has not is set aside.

    Raises UnreadableSnapshotError, OSError.
    """
    snapshots = keeper.archive.snapshots
    try:
        stored = await stored_archive(store, cluster)
        for shot in stored.shots[:NEWEST_TRIED]:
            try:
                files = await stored.files(shot)
                if head_in(files[0]).anchor_offset < begin:
                    return None
                await asyncio.to_thread(_give_up, keeper, own, files[0])
                kept = await asyncio.to_thread(snapshots.adopt, *files)
            except DamagedFileError as error:
                log.error("a snapshot in the store is damaged", store=store.url, why=str(error))
                continue
            start = await asyncio.to_thread(snapshots.start, kept, decided=True)
            if start is not None:
                keeper.restart(start)
                log.info("a snapshot of the store is kept", store=store.url, epoch=shot.epoch)
                return start
    except NoArchiveError:
        return None
    except StoreError as error:
        log.warning("the store gives no snapshot", store=store.url, why=str(error))
    return None


def _give_up(keeper: Keeper, own: Image, image_file: bytes) -> None:
    """Raises DamagedFileError, UnreadableSnapshotError, OSError."""
    archive = keeper.archive
    last, state_id = shared_with(own, image_file, archive.supported)
    if state_id and archive.state_id_of(last) not in (None, state_id):
        last = 0  # it had read what an unclean election lost
    lost = archive.set_aside_after(last, own.log_id.hex())
    if lost:
        log.error("epochs are not in the log any more, and set aside", after=last, epochs=lost)


async def records(store: BlobStore, cluster: str, first: int, last: int) -> list[Archived]:
    """Epochs from ``first`` on up to ``last`` at most, as many as one segment has; at least one.

    Raises NotArchivedError, DamagedFileError, StoreError.
    """
    try:
        stored = await stored_archive(store, cluster)
    except NoArchiveError as error:
        raise NotArchivedError(first) from error
    return await stored.records(first, last)
