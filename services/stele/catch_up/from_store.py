"""Getting from the blob store what no other replica gives: a snapshot to begin with, and missing epochs."""

import asyncio
from typing import Final

from stele.catch_up.keeper import Keeper
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import head_in
from stele.log.archive.spans import NotArchivedError
from stele.log.archive_store.stored import NoArchiveError, stored_archive
from stele.log.blobs.port import BlobStore, StoreError
from stele.log.start import Start
from stele.runtime.logs import get_logger

NEWEST_TRIED: Final = 3
"""Snapshots that are got, when those before them are damaged."""

log = get_logger(__name__)


async def adopted(keeper: Keeper, store: BlobStore, cluster: str, begin: int) -> Start | None:
    """Behind the newest snapshot in the store, if the topic, which begins at ``begin``, has what follows.

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


async def records(store: BlobStore, cluster: str, first: int, last: int) -> list[Archived]:
    """Epochs from ``first`` on up to ``last`` at most, as many as one segment has; at least one.

    Raises NotArchivedError, DamagedFileError, StoreError.
    """
    try:
        stored = await stored_archive(store, cluster)
    except NoArchiveError as error:
        raise NotArchivedError(first) from error
    return await stored.records(first, last)
