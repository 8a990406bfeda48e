"""Reading an archive out of a store: what is not what it should be is never given out."""

import asyncio
import io
from typing import Final

from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import UnreadableSnapshotError, start_of
from stele.log.archive.spans import NotArchivedError, Span
from stele.log.archive_store.claim import NAME as CLAIM
from stele.log.archive_store.claim import Claim, ForeignStoreError, Kind, claim_of
from stele.log.archive_store.copying import check_piece, sha256_of
from stele.log.archive_store.layout import Contents, Piece, Shot, contents_of
from stele.log.archive_store.lineage import UNKNOWN, Part, Past, history, own_shots, spans
from stele.log.archive_store.manifest import Entry, Manifest, manifest_in
from stele.log.blobs.port import Blob, BlobMissingError, BlobStore, StoreError

RANGE_BYTES: Final = 8 * 1024 * 1024


class NoArchiveError(StoreError):
    """Nobody has ever put an archive there."""

    def __init__(self, store: str) -> None:
        super().__init__(f"{store} holds no archive of Stele: there is no {CLAIM} in it.")


class StoredArchive:
    """The history in a store, as it was when it was looked at."""

    def __init__(
        self, store: BlobStore, claim: Claim, contents: Contents, manifest: Manifest | None
    ) -> None:
        self.store = store
        self.claim = claim
        self.manifest = manifest
        self.parts = list[Part]()
        self.shots = list[Shot]()
        """Snapshots, the newest first."""
        self.sizes = contents.sizes

    async def choose(self, contents: Contents) -> None:
        """Find the epochs and snapshots of this history; without a snapshot that nothing can tell of now.

        Raises StoreError.
        """
        past = await self._past(contents)
        self.parts = history(contents.pieces, past)
        sure, doubtful = own_shots(contents, past)
        for shot in doubtful:
            try:
                (record,) = await self.records(shot.epoch, shot.epoch)
            except (BlobMissingError, DamagedFileError):
                continue
            if record.links[1].hex() == shot.state_id:
                sure.append(shot)
        self.shots = sorted(sure, key=lambda shot: -shot.epoch)

    @property
    def names(self) -> list[str]:
        """The blobs that the history is made of."""
        pieces = dict.fromkeys(part.piece.name for part in self.parts)
        return [*pieces, *(name for shot in self.shots[::-1] for name in shot.names)]

    @property
    def spans(self) -> list[Span]:
        return spans(self.parts)

    @property
    def log_id(self) -> str:
        """Of the newest log; empty when there is nothing."""
        of_parts = {part.piece.log_id for part in self.parts}
        return max(of_parts | {shot.log_id for shot in self.shots}, default="")

    async def piece(self, part: Part) -> list[Archived]:
        """The records of a part. Raises DamagedFileError, StoreError."""
        piece = part.piece
        try:
            content = await self.blob(piece.name)
        except BlobMissingError:
            piece = await self._longer(part)
            content = await self.blob(piece.name)
        records = await asyncio.to_thread(check_piece, piece, content)
        return [record for record in records if part.first <= record.epoch <= part.last]

    async def records(self, first: int, last: int) -> list[Archived]:
        """Epochs from ``first`` on up to ``last`` at most, as many as one segment has; at least one.

        Raises NotArchivedError, DamagedFileError, StoreError.
        """
        for part in self.parts:
            if part.first <= first <= part.last:
                return [r for r in await self.piece(part) if first <= r.epoch <= last]
        raise NotArchivedError(first)

    async def files(self, shot: Shot) -> tuple[bytes, bytes]:
        """A snapshot and the memory of its decided requests. Raises DamagedFileError, StoreError."""
        return await self.blob(shot.name), await self.blob(shot.decided_name)

    async def blob(self, name: str) -> bytes:
        """A whole blob, range by range. Raises DamagedFileError when it is not what was put, StoreError."""
        wanted = await self._wanted(name)
        content = bytearray()
        while len(content) < wanted.size_bytes:
            end = min(wanted.size_bytes, len(content) + RANGE_BYTES)
            piece = await self.store.get_range(name, len(content), end)
            if not piece:
                raise DamagedFileError(
                    f"{name} ends after {len(content)} of {wanted.size_bytes} bytes"
                )
            content += piece
        found = bytes(content)
        if wanted.sha256 and await asyncio.to_thread(sha256_of, found) != wanted.sha256:
            raise DamagedFileError(f"{name} has other bytes than were put")
        return found

    async def _past(self, contents: Contents) -> Past:
        """What the newest snapshot says of older logs, if there are any; as far as it can be read."""
        for shot in sorted(
            contents.shots, key=lambda each: (each.log_id, each.epoch), reverse=True
        ):
            if shot.log_id == contents.logs[0]:
                break
            try:
                start = await asyncio.to_thread(start_of, io.BytesIO(await self.blob(shot.name)))
            except (BlobMissingError, DamagedFileError, UnreadableSnapshotError):
                continue
            before = start.image.founding.incarnations
            return Past(shot.log_id, {each.log_id: each.last_epoch for each in before})
        return UNKNOWN

    async def _longer(self, part: Part) -> Piece:
        """A mirror that is written to may have deleted a segment for a longer one since it was listed."""
        if self.manifest is None:
            for piece in contents_of(await self.store.list()).pieces:
                of_log = piece.log_id == part.piece.log_id
                if of_log and piece.first <= part.first and part.last <= piece.last:
                    return piece
        raise BlobMissingError(part.piece.name, self.store.url)

    async def _wanted(self, name: str) -> Entry:
        entry = self.manifest.entry(name) if self.manifest is not None else None
        if entry is None:
            stat = await self.store.stat(name)
            return Entry(name, stat.size_bytes, stat.sha256)
        if self.sizes.get(name) != entry.size_bytes:
            raise DamagedFileError(
                f"{name} has {self.sizes.get(name, 0)} bytes instead of {entry.size_bytes}"
            )
        return entry


async def stored_archive(
    store: BlobStore, cluster: str = "", *, by_manifest: bool = True
) -> StoredArchive:
    """What is in a store, of a backup what its manifest names; with ``cluster`` only if it is that one's.

    Raises NoArchiveError, ForeignStoreError, StoreError.
    """
    claim = await claim_of(store)
    if claim is None:
        raise NoArchiveError(store.url)
    if cluster and claim.cluster != cluster:
        raise ForeignStoreError(
            f"{store.url} holds the archive of cluster '{claim.cluster}', not of '{cluster}'. Take another"
            " prefix."
        )
    manifest = await manifest_in(store) if by_manifest and claim.kind is Kind.BACKUP else None
    blobs = await store.list()
    if manifest is not None:
        sizes = dict(blobs)
        blobs = [Blob(entry.name, sizes.get(entry.name, 0)) for entry in manifest.files]
    contents = contents_of(blobs)
    stored = StoredArchive(store, claim, contents, manifest)
    await stored.choose(contents)
    return stored
