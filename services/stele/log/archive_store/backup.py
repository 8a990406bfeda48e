"""A backup: one copy of the replicas' archives, with a manifest that lists its blobs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from stele.log.archive.archive import SEGMENTS, SNAPSHOTS, Archive
from stele.log.archive.container import (
    Archived,
    DamagedFileError,
    EpochSpan,
    check_follows,
    sync_folder,
    whole_file,
)
from stele.log.archive_store.copying import Copier, CopyProgress, sha256_of
from stele.log.archive_store.layout import MANIFEST_NAME as NAME
from stele.log.archive_store.layout import BackupManifest, Entry, StoreKind, manifest_in
from stele.log.archive_store.source import ArchiveSource
from stele.log.archive_store.stored import StoredArchive, stored_archive
from stele.log.archive_store.verify import ArchiveVerdict, verify
from stele.log.blobs.port import BlobStore, StoreUnavailableError


class BackedUp(NamedTuple):
    """The result of a backup."""

    manifest: BackupManifest
    """All blobs of the backup."""
    progress: CopyProgress
    """The blobs that this call put."""
    spans: tuple[EpochSpan, ...]
    """The epochs of the source."""


class NothingToRestoreError(Exception):
    """The source has neither the first epoch nor a snapshot that its epochs continue."""


async def back_up(
    store: BlobStore,
    source: ArchiveSource,
    *,
    made_ms: int,
    made_from: str,
    check: bool = False,
) -> BackedUp:
    """Put everything new since the last backup into the store, and write the manifest.

    Only the newest snapshot is put. With ``check``, all blobs in the store are read, and damaged
    ones are put again. ``made_ms`` is the time in milliseconds
    since 1970.

    Raises NothingToRestoreError, BlobStoreError, ForeignStoreError, and the errors of the source.
    """
    copier = Copier(store, source, StoreKind.BACKUP)
    await copier.claim()
    spans = tuple(source.spans)
    shots = source.shots
    if not spans or (spans[0].first > 1 and not any(s.epoch >= spans[-1].first - 1 for s in shots)):
        raise NothingToRestoreError(
            "The replicas have neither the first epoch nor a snapshot before their newest epochs."
        )
    distrusted = (await verify(await stored_archive(store))).damaged if check else ()
    progress = await copier.copy(newest_snapshot_only=True, distrusted=distrusted)
    stored = await stored_archive(store, by_manifest=False)
    before = None if check else await manifest_in(store)
    manifest = await _manifest(stored, before, made_ms, made_from)
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    # The manifest comes after all its blobs: a backup that was interrupted keeps the one before.
    await store.put(NAME, content, sha256_of(content))
    if await manifest_in(store) != manifest:
        raise StoreUnavailableError(
            f"{store.url} has another {NAME} than was put. Is another backup under way? One at a time."
        )
    # Delete only now: until the new manifest was there, the old one named these blobs.
    await copier.forget(progress)
    return BackedUp(manifest, progress, spans)


async def _manifest(
    stored: StoredArchive, before: BackupManifest | None, made_ms: int, made_from: str
) -> BackupManifest:
    return BackupManifest(
        **_contents(stored),
        made_ms=made_ms,
        made_from=made_from,
        files=await _entries(stored, before),
    )


def _contents(stored: StoredArchive) -> dict[str, Any]:
    """Return the fields of a manifest that follow from the names of the files."""
    parts, shots = stored.parts, stored.shots
    last = parts[-1] if parts else None
    return {
        "cluster": stored.claim.cluster,
        "cluster_id": stored.claim.cluster_id,
        "log_id": stored.log_id,
        "first_epoch": parts[0].first if parts else 0,
        "last_epoch": last.last if last is not None else 0,
        "state_id": last.piece.state_id if last is not None else "",
        "snapshot_epochs": tuple(shot.epoch for shot in shots[::-1]),
    }


async def _entries(stored: StoredArchive, before: BackupManifest | None) -> tuple[Entry, ...]:
    """Return the entries of all blobs, from the earlier manifest if the size is equal."""
    known = {entry.name: entry for entry in before.files} if before is not None else {}
    found = list[Entry]()
    for name in stored.names:
        entry = known.get(name)
        if entry is None or entry.size_bytes != stored.sizes[name]:
            stat = await stored.store.stat(name)
            entry = Entry(name, stat.size_bytes, stat.sha256)
        found.append(entry)
    return tuple(found)


# Verify a store, and restore a replica's folder from it.


async def verify_stored(store: BlobStore) -> ArchiveVerdict:
    """Read and check all of a backup or mirror. A backup must also hold what its manifest claims.

    Raises NoArchiveError, BlobStoreError.
    """
    stored = await stored_archive(store)
    verdict = await verify(stored)
    return msgspec.structs.replace(verdict, flaws=(*_flaws_of_manifest(stored), *verdict.flaws))


def _flaws_of_manifest(stored: StoredArchive) -> list[str]:
    """Return how the manifest of a backup differs from its files. Others have no manifest.

    A file that is read must match its name, so names are compared.
    """
    if stored.claim.kind is not StoreKind.BACKUP:
        return []
    manifest = stored.manifest
    if manifest is None:
        return [
            f"{NAME} is missing: the backup was interrupted before its end, or the file was deleted."
            " `stele backup TARGET` completes the backup and writes it."
        ]
    return [
        f"{NAME} names {field} {getattr(manifest, field)}, and its files hold {found}."
        " Bring the missing files back, or `stele backup TARGET` writes a new one."
        for field, found in _contents(stored).items()
        if getattr(manifest, field) != found
    ]


# The restored folder appears when it is complete.


BEGUN: Final = ".restoring"
"""Suffix of the folder's name until it is complete."""
ORIGIN: Final = "restored.json"
"""File that names the origin of the folder's content."""


class Origin(msgspec.Struct, frozen=True):
    """The origin of a folder's content."""

    store: str
    cluster_id: str
    log_id: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a restored folder."""

    cluster: str
    cluster_id: str
    log_id: str
    first_epoch: int
    last_epoch: int
    state_id: str
    snapshots: tuple[int, ...]


class NotEmptyError(Exception):
    """The target of the restore exists and is not an empty folder."""


async def restore(store: BlobStore, into: Path) -> Restored:
    """Restore into folder ``into``, which must be missing or empty.

    A restore that was interrupted continues. Raises NotEmptyError, DamagedFileError, LogError,
    UnreadableSnapshotError, BlobStoreError, OSError.
    """
    await asyncio.to_thread(_check_empty, into)
    stored = await stored_archive(store)
    if stored.manifest is not None and (flaws := _flaws_of_manifest(stored)):
        raise DamagedFileError(f"{flaws[0]} Delete {NAME} to restore what is there")
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
    """Prepare the unfinished folder, and delete content of another origin or log."""
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
    """Fold to the last epoch as the replica will do, and return the result.

    Raises DamagedFileError when snapshots and epochs do not fit together.
    """
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
    # Sync everything before the rename: the final name promises a complete folder, also after a
    # power failure.
    for folder in (SEGMENTS, SNAPSHOTS):
        sync_folder(begun / folder)
    sync_folder(begun)
    if into.exists():
        into.rmdir()
    begun.replace(into)
    sync_folder(into.parent)
