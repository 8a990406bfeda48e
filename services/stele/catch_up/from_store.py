"""Getting from the blob store what no other replica gives: a snapshot to begin with."""

import asyncio
from typing import Final

from stele.catch_up.anchored import anchored
from stele.catch_up.keeper import Keeper
from stele.catch_up.shared import Tells, set_aside_others
from stele.domain.image import Image
from stele.log.archive.container import DamagedFileError
from stele.log.archive.snapshots import head_in
from stele.log.archive_store.stored import NoArchiveError, StoredArchive, stored_archive
from stele.log.blobs.port import BlobMissingError, BlobStore, StoreError
from stele.log.errors import OffsetGoneError
from stele.log.port import LogPast
from stele.log.start import Start
from stele.runtime.answers.catch_up import Known
from stele.runtime.logs import get_logger

NEWEST_TRIED: Final = 3
"""Snapshots that are got, when those before them are damaged."""

log = get_logger(__name__)


async def adopted(
    keeper: Keeper,
    store: BlobStore,
    topic: LogPast,
    cluster: str,
    begin: int,
    own: Image,
    newer: str,
) -> Start | None:
    """Behind the newest snapshot in the store that the log of ``topic``, which begins at ``begin``, has led to,
    and that is of no log before that of ``own``, or before ``newer``, which replicas told of. What this
    archive, which leads to ``own``, has and the store has not is set aside.

    Raises UnreadableSnapshotError, OSError.
    """
    snapshots, oldest = keeper.archive.snapshots, max(own.log_id.hex(), newer)
    try:
        stored = await stored_archive(store, cluster)
        shots = [shot for shot in stored.shots if shot.log_id >= oldest]
        for shot in shots[:NEWEST_TRIED]:
            try:
                files = await stored.files(shot)
                head = head_in(files[0])
                if head.anchor_offset < begin:
                    return None
                if await anchored(topic, head) is not Known.SAME:
                    text = "a snapshot in the store may not be of the log"
                    log.warning(text, store=store.url, epoch=shot.epoch)
                    continue
                await set_aside_others(keeper.archive, own, files, _told_by(stored))
                kept = await asyncio.to_thread(snapshots.adopt, *files)
            except DamagedFileError as error:
                log.error("a snapshot in the store is damaged", store=store.url, why=str(error))
                continue
            start = await asyncio.to_thread(snapshots.start, kept, decided=True)
            if start is not None:
                keeper.restart(start)
                log.info("a snapshot of the store is kept", store=store.url, epoch=shot.epoch)
                return start
    except (NoArchiveError, OffsetGoneError):
        return None
    except StoreError as error:
        log.warning("the store gives no snapshot", store=store.url, why=str(error))
    return None


def _told_by(stored: StoredArchive) -> Tells:
    """By the names of blobs, and where those do not tell, by what is in them. Raises StoreError."""
    states = {part.piece.last: part.piece.state_id for part in stored.parts if part.is_to_end}
    states.update((shot.epoch, shot.state_id) for shot in stored.shots)

    async def tells(epoch: int, state_id: bytes) -> Known:
        if epoch not in states:
            await look_up(epoch)
        there = states.get(epoch)
        if there is None:
            return Known.UNKNOWN
        return Known.SAME if there == state_id.hex() else Known.OTHER

    async def look_up(epoch: int) -> None:
        for part in stored.parts:
            if part.first <= epoch <= part.last:
                try:
                    records = await stored.piece(part)
                except (BlobMissingError, DamagedFileError) as error:
                    log.error("the store does not tell of an epoch", epoch=epoch, why=str(error))
                    return
                states.update((record.epoch, record.links[1].hex()) for record in records)

    return tells
