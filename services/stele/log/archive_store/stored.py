"""Read an archive from a store. Damaged content is never returned."""

import asyncio
import io
from typing import Final

from stele.log.archive.container import Archived, DamagedFileError, EpochSpan, NotArchivedError
from stele.log.archive.snapshots import UnreadableSnapshotError, start_of
from stele.log.archive_store.copying import check_piece, sha256_of
from stele.log.archive_store.layout import CLAIM_NAME as CLAIM
from stele.log.archive_store.layout import (
    UNKNOWN,
    BackupManifest,
    Claim,
    Contents,
    Entry,
    ForeignStoreError,
    PastLogs,
    PieceRange,
    StoredSegment,
    StoredSnapshot,
    StoreKind,
    claim_of,
    contents_of,
    history,
    manifest_in,
    own_shots,
    spans,
)
from stele.log.archive_store.source import About, ArchiveSize, SourceFile
from stele.log.blobs.port import Blob, BlobMissingError, BlobStore, BlobStoreError

RANGE_BYTES: Final = 8 * 1024 * 1024


class NoArchiveError(BlobStoreError):
    """The store contains no archive."""

    def __init__(self, store: str) -> None:
        super().__init__(f"{store} holds no archive of Stele: there is no {CLAIM} in it.")


class StoredArchive:
    """The history in a store at the time of its listing."""

    def __init__(
        self, store: BlobStore, claim: Claim, contents: Contents, manifest: BackupManifest | None
    ) -> None:
        self.store = store
        self.claim = claim
        self.manifest = manifest
        self.parts = list[PieceRange]()
        self.shots = list[StoredSnapshot]()
        """Snapshots, the newest first."""
        self.sizes = contents.sizes
        self._state_ids: dict[int, str] = {}

    async def choose(self, contents: Contents) -> None:
        """Find the epochs and snapshots of this history.

        A snapshot that cannot be verified now is left out. Raises BlobStoreError.
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
    def about(self) -> About:
        return About(self.claim.cluster, self.claim.cluster_id, self.log_id)

    @property
    def size(self) -> ArchiveSize:
        names = self.names
        return ArchiveSize(len(names), sum(self.sizes.get(name, 0) for name in names))

    @property
    def names(self) -> list[str]:
        """Names of the blobs that form the history."""
        pieces = dict.fromkeys(part.piece.name for part in self.parts)
        return [*pieces, *(name for shot in self.shots[::-1] for name in shot.names)]

    @property
    def spans(self) -> list[EpochSpan]:
        return spans(self.parts)

    @property
    def log_id(self) -> str:
        """Id of the newest log in hex; empty if the store holds no history."""
        of_parts = {part.piece.log_id for part in self.parts}
        return max(of_parts | {shot.log_id for shot in self.shots}, default="")

    async def piece(self, part: PieceRange) -> list[Archived]:
        """Return the records of a part. Raises DamagedFileError, BlobStoreError."""
        piece = part.piece
        try:
            content = await self.blob(piece.name)
        except BlobMissingError:
            piece = await self._longer(part)
            content = await self.blob(piece.name)
        records = await asyncio.to_thread(check_piece, piece, content)
        return [record for record in records if part.first <= record.epoch <= part.last]

    async def records(self, first: int, last: int) -> list[Archived]:
        """Return epochs from ``first`` up to ``last`` at most: at least one, from one segment.

        Raises NotArchivedError, DamagedFileError, BlobStoreError.
        """
        part = self._part_of(first)
        return [r for r in await self.piece(part) if first <= r.epoch <= last]

    def file_of(self, epoch: int) -> SourceFile:
        """Return the segment that holds an epoch. Raises NotArchivedError."""
        part = self._part_of(epoch)
        return SourceFile(part.piece.name, part.last)

    def _part_of(self, epoch: int) -> PieceRange:
        for part in self.parts:
            if part.first <= epoch <= part.last:
                return part
        raise NotArchivedError(epoch)

    async def state_id_of(self, epoch: int) -> str | None:
        """Return the state id of an epoch in hex; None if the store lacks it.

        Names of files are read before their contents. Raises DamagedFileError, BlobStoreError.
        """
        if epoch not in self._state_ids:
            self._state_ids.update((shot.epoch, shot.state_id) for shot in self.shots)
            self._state_ids.update(
                (part.last, part.piece.state_id) for part in self.parts if part.is_to_end
            )
        if epoch not in self._state_ids:
            try:
                records = await self.piece(self._part_of(epoch))
            except NotArchivedError:
                return None
            self._state_ids.update((each.epoch, each.links[1].hex()) for each in records)
        return self._state_ids[epoch]

    async def files(self, shot: StoredSnapshot) -> tuple[bytes, bytes]:
        """Return a snapshot and its decided requests. Raises DamagedFileError, BlobStoreError."""
        return await self.blob(shot.name), await self.blob(shot.decided_name)

    async def blob(self, name: str) -> bytes:
        """Return a whole blob, read in ranges.

        Raises DamagedFileError when it differs from the blob that was put, and BlobStoreError.
        """
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
            raise DamagedFileError(f"{name} is damaged: its bytes are not those that were stored")
        return found

    async def _past(self, contents: Contents) -> PastLogs:
        """Return the older logs that the newest readable snapshot of a recovered log names."""
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
            return PastLogs(shot.log_id, {each.log_id: each.last_epoch for each in before})
        return UNKNOWN

    async def _longer(self, part: PieceRange) -> StoredSegment:
        """Find a longer piece that covers the part, in a new listing.

        A mirror that is written to may have replaced a segment since its listing. Raises
        BlobMissingError.
        """
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
        if name not in self.sizes:
            raise DamagedFileError(f"{name} is missing; it had {entry.size_bytes} bytes")
        if self.sizes[name] != entry.size_bytes:
            raise DamagedFileError(
                f"{name} has {self.sizes[name]} bytes instead of {entry.size_bytes}"
            )
        return entry


async def stored_archive(
    store: BlobStore, cluster: str = "", *, by_manifest: bool = True
) -> StoredArchive:
    """Return the archive in a store. A backup consists of the blobs in its manifest.

    With ``cluster``, the store must belong to it. Raises NoArchiveError, ForeignStoreError,
    BlobStoreError.
    """
    claim = await claim_of(store)
    if claim is None:
        raise NoArchiveError(store.url)
    if cluster and claim.cluster != cluster:
        raise ForeignStoreError(
            f"{store.url} holds the archive of cluster '{claim.cluster}', not of '{cluster}'. Take another"
            " prefix."
        )
    manifest = await manifest_in(store) if by_manifest and claim.kind is StoreKind.BACKUP else None
    blobs = await store.list()
    # A blob that the manifest names but the store lacks has size 0, so that reading it fails.
    if manifest is not None:
        sizes = dict(blobs)
        blobs = [Blob(entry.name, sizes.get(entry.name, 0)) for entry in manifest.files]
    contents = contents_of(blobs)
    stored = StoredArchive(store, claim, contents, manifest)
    await stored.choose(contents)
    return stored
