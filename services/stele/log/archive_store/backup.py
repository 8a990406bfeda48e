"""A backup: one copy of what replicas have, and the manifest that says what it is made of."""

from typing import NamedTuple

import msgspec

from stele.log.archive.spans import Span
from stele.log.archive_store.claim import Kind
from stele.log.archive_store.copying import Copier, Progress, sha256_of
from stele.log.archive_store.manifest import NAME, Entry, Manifest, manifest_in
from stele.log.archive_store.source import Source
from stele.log.archive_store.stored import StoredArchive, stored_archive
from stele.log.archive_store.verify import verify
from stele.log.blobs.port import BlobStore, StoreUnavailableError


class BackedUp(NamedTuple):
    """What a backup consists of now, and what was put for it."""

    manifest: Manifest
    progress: Progress
    spans: tuple[Span, ...]
    """What the source has."""


class NothingToRestoreError(Exception):
    """The source has neither the first epoch nor a snapshot that its epochs go on from."""


async def back_up(
    store: BlobStore,
    source: Source,
    *,
    made_ms: int,
    made_from: str,
    check: bool = False,
    all_snapshots: bool = False,
) -> BackedUp:
    """Put what has come since the last backup; of snapshots the newest, unless all are asked for. With
    ``check`` all that is there is read, and put again where it is not what it was.

    Raises NothingToRestoreError, StoreError, ForeignStoreError, and what the source raises.
    """
    copier = Copier(store, source, Kind.BACKUP)
    await copier.claim()
    spans = tuple(await source.spans())
    shots = await source.shots()
    if not spans or (spans[0].first > 1 and not any(s.epoch >= spans[-1].first - 1 for s in shots)):
        raise NothingToRestoreError(
            "The replicas have neither the first epoch nor a snapshot that their newest epochs go on from."
        )
    distrusted = (await verify(await stored_archive(store))).damaged if check else ()
    progress = await copier.copy(newest_snapshot_only=not all_snapshots, distrusted=distrusted)
    stored = await stored_archive(store, by_manifest=False)
    before = None if check else await manifest_in(store)
    manifest = await _manifest(stored, before, made_ms, made_from)
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    await store.put(NAME, content, sha256_of(content))
    if await manifest_in(store) != manifest:
        raise StoreUnavailableError(
            f"{store.url} has another {NAME} than was put. Is another backup under way? One at a time."
        )
    await copier.forget(progress)
    return BackedUp(manifest, progress, spans)


async def _manifest(
    stored: StoredArchive, before: Manifest | None, made_ms: int, made_from: str
) -> Manifest:
    parts, shots = stored.parts, stored.shots
    last = parts[-1] if parts else None
    return Manifest(
        cluster=stored.claim.cluster,
        cluster_id=stored.claim.cluster_id,
        log_id=stored.log_id,
        first_epoch=parts[0].first if parts else 0,
        last_epoch=last.last if last is not None else 0,
        state_id=last.piece.state_id if last is not None else "",
        snapshot_epochs=tuple(shot.epoch for shot in shots[::-1]),
        made_ms=made_ms,
        made_from=made_from,
        files=await _entries(stored, before),
    )


async def _entries(stored: StoredArchive, before: Manifest | None) -> tuple[Entry, ...]:
    """What the manifest of before says of a blob of the same size is not looked up again."""
    known = {entry.name: entry for entry in before.files} if before is not None else {}
    found = list[Entry]()
    for name in stored.names:
        entry = known.get(name)
        if entry is None or entry.size_bytes != stored.sizes[name]:
            stat = await stored.store.stat(name)
            entry = Entry(name, stat.size_bytes, stat.sha256)
        found.append(entry)
    return tuple(found)
