"""Making a replica's folder out of what is in a store. The folder is there once all of it is."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Final

import msgspec

from stele.log.archive.archive import SEGMENTS, SNAPSHOTS, Archive
from stele.log.archive.container import DamagedFileError
from stele.log.archive.files import sync_folder, whole_file
from stele.log.archive.records import Archived, check_follows
from stele.log.archive_store.stored import StoredArchive, stored_archive
from stele.log.blobs.port import BlobStore
from stele.log.start import Start

BEGUN: Final = ".restoring"
"""What is behind the folder's name until it is whole."""
ORIGIN: Final = "restored.json"


class Origin(msgspec.Struct, frozen=True):
    """Where what is in the folder came from."""

    store: str
    cluster_id: str
    log_id: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder holds."""

    cluster: str
    cluster_id: str
    log_id: str
    first_epoch: int
    last_epoch: int
    state_id: str
    snapshots: tuple[int, ...]


class NotEmptyError(Exception):
    """There is something where the folder is to be."""


async def restore(store: BlobStore, into: Path) -> Restored:
    """Make ``into``, which is not there or empty. One that was cut off goes on where it was.

    Raises NotEmptyError, DamagedFileError, LogError, UnreadableSnapshotError, StoreError, OSError.
    """
    await asyncio.to_thread(_check_empty, into)
    stored = await stored_archive(store)
    begun = into.with_name(into.name + BEGUN)
    await asyncio.to_thread(
        _begin, begun, Origin(store.url, stored.claim.cluster_id, stored.log_id)
    )
    archive = await asyncio.to_thread(Archive, begun)
    await _segments(stored, archive)
    await _snapshots(stored, archive)
    restored = await asyncio.to_thread(_what_follows, archive, stored)
    await asyncio.to_thread(_named, begun, into)
    return restored


def _check_empty(into: Path) -> None:
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise NotEmptyError(f"{into} is not empty")


def _begin(begun: Path, origin: Origin) -> None:
    """What was fetched from elsewhere, or of another log, is left out."""
    path = begun / ORIGIN
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        if msgspec.json.decode(path.read_bytes(), type=Origin) == origin:
            return
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    with whole_file(path) as file:
        file.write(msgspec.json.encode(origin))


async def _segments(stored: StoredArchive, archive: Archive) -> None:
    before: Archived | None = None
    for part in stored.parts:
        spans = archive.segments.spans()
        if any(span.first <= part.first and part.last <= span.last for span in spans):
            before = next(archive.segments.read(part.last))
            continue
        records = await stored.piece(part)
        if before is not None and records[0].epoch == before.epoch + 1:
            check_follows(before, records[0])
        before = records[-1]
        await asyncio.to_thread(archive.segments.adopt, records)


async def _snapshots(stored: StoredArchive, archive: Archive) -> None:
    for shot in stored.shots:
        if archive.snapshots.named(shot.stem) is None:
            files = await stored.files(shot)
            kept = await asyncio.to_thread(archive.snapshots.adopt, *files)
            if kept.head.name != shot.stem:
                raise DamagedFileError(f"{shot.name} is of another state than its name says")


def _what_follows(archive: Archive, stored: StoredArchive) -> Restored:
    """The state at the last epoch, as the replica will come to it."""
    spans = archive.segments.spans()
    for shot in stored.shots:
        found = archive.state_id_of(shot.epoch)
        if found is not None and found.hex() != shot.state_id:
            raise DamagedFileError(f"{shot.name} is of another state than the epochs lead to")
    start, kept = archive.begin(decided=True)
    if kept is None and (not spans or spans[0].first != 1):
        raise DamagedFileError(f"{stored.store.url} has neither a snapshot nor the first epoch")
    if spans and spans[-1].last > start.image.epoch:
        start = archive.fold_on(start, spans[-1].last)
    return _restored(archive, start)


def _restored(archive: Archive, start: Start) -> Restored:
    image = start.image
    return Restored(
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        first_epoch=archive.segments.first,
        last_epoch=image.epoch,
        state_id=image.state_id.hex(),
        snapshots=tuple(kept.head.epoch for kept in archive.snapshots.all()[::-1]),
    )


def _named(begun: Path, into: Path) -> None:
    for folder in (SEGMENTS, SNAPSHOTS):
        sync_folder(begun / folder)
    sync_folder(begun)
    if into.exists():
        into.rmdir()
    begun.replace(into)
    sync_folder(into.parent)
