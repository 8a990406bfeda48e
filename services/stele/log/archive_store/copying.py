"""Copy the missing parts of an archive into a store: epochs in segments, then snapshots.

Each blob is checked after its put. A copy that was interrupted continues where it ended.
"""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from stele.log.archive.container import (
    Archived,
    DamagedFileError,
    EpochSpan,
    NotArchivedError,
    as_container,
    check_follows,
    from_container,
    joined,
)
from stele.log.archive_store import layout
from stele.log.archive_store.layout import (
    Claim,
    Contents,
    ForeignStoreError,
    StoredSegment,
    StoredSnapshot,
    StoreKind,
    claim,
    contents_of,
)
from stele.log.archive_store.source import About, ArchiveSource
from stele.log.blobs.port import Blob, BlobMissingError, BlobStore, StoreUnavailableError
from stele.log.chain import LOG_ID


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a store after a copy, and the work of the copy."""

    contents: Contents
    last_epoch: int
    """The store has all wanted epochs of the archive's newest span up to this one."""
    snapshot_epoch: int
    """Epoch of the newest snapshot in the store."""
    put_blobs: int = 0
    put_bytes: int = 0
    skipped: tuple[str, ...] = ()
    """Parts of the archive that could not be read, each with the reason."""


class Copier:
    """Copies from one source into one store. It remembers the pieces that it has compared."""

    def __init__(self, store: BlobStore, source: ArchiveSource, kind: StoreKind) -> None:
        self.store = store
        self._source = source
        self._kind = kind
        self._same: dict[StoredSegment, bool] = {}
        self._checked = set[str]()

    async def claim(self) -> About:
        """Check that the store belongs to this archive, and return the source's log.

        Raises ForeignStoreError, BlobStoreError.
        """
        about = self._source.about
        own = Claim(cluster=about.cluster, cluster_id=about.cluster_id, kind=self._kind)
        await claim(self.store, own)
        return about

    async def copy(
        self, *, cutoff: int = 0, newest_snapshot_only: bool = False, distrusted: Sequence[str] = ()
    ) -> CopyProgress:
        """Put the missing blobs, from the newest snapshot before epoch ``cutoff`` on.

        ``distrusted`` are names of blobs to put again. Raises BlobStoreError, ForeignStoreError if the
        store holds another log, and the errors of the source.
        """
        about = await self.claim()
        listed = await self.store.list()
        contents = contents_of(blob for blob in listed if blob.name not in distrusted)
        there = await self._own(about, contents)
        base = layout.base_of(contents.shots, cutoff)
        put, skipped = list[Blob](), list[str]()
        own = self._source.spans
        for part in layout.lacking(own, (EpochSpan(p.first, p.last) for p in there), max(1, base)):
            try:
                async for records in self._pieces(part):
                    there.append(await self._put_piece(records, contents, put))
            except (DamagedFileError, NotArchivedError) as error:
                skipped.append(f"epochs {part.first} to {part.last}: {error}")
        shots = sorted(self._source.shots, key=lambda shot: -shot.epoch)
        # If the first epochs are deleted, the epochs continue a snapshot, which is needed as well.
        if newest_snapshot_only:
            shots = shots[:1] + [s for s in shots[1:] if own and 1 < s.epoch == own[0].first]
        for shot in shots:
            if shot.epoch >= base and shot not in contents.shots:
                try:
                    await self._put_shot(shot, put)
                except DamagedFileError as error:
                    skipped.append(f"snapshot {shot.stem}: {error}")
        contents = contents_of(map(Blob._make, (contents.sizes | dict(put)).items()))
        return CopyProgress(
            contents=contents,
            last_epoch=_reached(own, there, base),
            snapshot_epoch=max((shot.epoch for shot in contents.shots), default=0),
            put_blobs=len(put),
            put_bytes=sum(blob.size_bytes for blob in put),
            skipped=tuple(skipped),
        )

    async def forget(self, progress: CopyProgress, *, cutoff: int = 0) -> list[str]:
        """Delete segments that longer ones cover, and blobs needed only before ``cutoff``.

        Returns the names.
        """
        contents = progress.contents
        names = list[str]()
        # A piece may be deleted only for a longer one that was read whole.
        for piece, longer in layout.covered(contents.pieces).items():
            if await self._is_whole(longer):
                names.append(piece.name)
        base = layout.base_of(contents.shots, cutoff)
        names += (name for name in layout.expired(contents, base) if name not in names)
        for name in names:
            await self.store.delete(name)
        return names

    async def _own(self, about: About, contents: Contents) -> list[StoredSegment]:
        """Return the pieces that belong to the source's history, as far as it has the state ids.

        Epochs of an older log after the source's last epoch are not in that history, because the
        source has passed the end of that log. Raises ForeignStoreError.
        """
        if contents.logs and contents.logs[-1] > about.log_id:
            raise ForeignStoreError(
                f"{self.store.url} holds epochs of log {contents.logs[-1]}, which is later than {about.log_id}:"
                " the log was recovered without this replica. Start it with the recovered log."
            )
        of_log = [piece for piece in contents.pieces if piece.log_id == about.log_id]
        own_last = max((span.last for span in self._source.spans), default=0)
        known = [piece for piece in of_log if piece.last <= own_last]
        newest = max(known, key=lambda piece: piece.last, default=None)
        if newest is not None and not await self._is_same(newest):
            raise ForeignStoreError(
                f"{self.store.url} holds another epoch {newest.last} of log {about.log_id} than this archive:"
                f" {newest.name}. One of them is not this cluster's history; take another prefix until it is"
                " known which."
            )
        older = [p for p in contents.pieces if p.log_id != about.log_id and p.last <= own_last]
        return of_log + [piece for piece in older if await self._is_same(piece)]

    async def _is_same(self, piece: StoredSegment) -> bool:
        """Return whether the piece ends with the source's state, or the source lacks that epoch."""
        if piece not in self._same:
            state_id = await self._source.state_id_of(piece.last)
            if state_id is None:  # not remembered: the source may get this epoch later
                return True
            self._same[piece] = state_id == piece.state_id
        return self._same[piece]

    async def _pieces(self, part: EpochSpan) -> AsyncIterator[list[Archived]]:
        """Yield the epochs of a part of a block, cut at the same epochs by every replica."""
        piece, size_bytes, following = list[Archived](), 0, part.first
        before: Archived | None = None
        while following <= part.last:
            for record in await self._source.records(following, part.last):
                check_follows(before, record)
                if piece and size_bytes + len(record.value) > layout.PIECE_BYTES:
                    yield piece
                    piece, size_bytes = [], 0
                piece.append(record)
                size_bytes += len(record.value)
                before, following = record, record.epoch + 1
        yield piece

    async def _put_piece(
        self, records: list[Archived], contents: Contents, put: list[Blob]
    ) -> StoredSegment:
        """Put a segment of these records unless it is there, and add it to ``put``."""
        piece = piece_of(records)
        if piece.name in contents.sizes:  # its name determines its content
            return piece
        content, sha256 = await asyncio.to_thread(_packed, records)
        await self.store.put(piece.name, content, sha256)
        if not await self._arrived(piece.name, len(content), sha256):
            await self._accept(piece)
        self._checked.add(piece.name)
        put.append(Blob(piece.name, len(content)))
        return piece

    async def _put_shot(self, shot: StoredSnapshot, put: list[Blob]) -> None:
        """Put the two files of a snapshot, and add them to ``put``.

        The decided requests come first: the snapshot exists once both files do.
        """
        image, decided = await self._source.files(shot)
        for name, content in ((shot.decided_name, decided), (shot.name, image)):
            size_bytes, sha256 = await asyncio.to_thread(_measured, content)
            await self.store.put(name, content, sha256)
            if not await self._arrived(name, size_bytes, sha256):
                await self._take_away(name)
            put.append(Blob(name, size_bytes))

    async def _arrived(self, name: str, size_bytes: int, sha256: str) -> bool:
        stat = await self.store.stat(name)
        return stat.size_bytes == size_bytes and stat.sha256 in ("", sha256)

    async def _accept(self, piece: StoredSegment) -> None:
        """Accept another process's put of the same epochs, packed differently, if it is whole."""
        if not await self._is_whole(piece):
            await self._take_away(piece.name)

    async def _is_whole(self, piece: StoredSegment) -> bool:
        if piece.name not in self._checked:
            try:
                content = await self.store.get(piece.name)
                await asyncio.to_thread(check_piece, piece, content)
            except (BlobMissingError, DamagedFileError):
                return False
            self._checked.add(piece.name)
        return True

    async def _take_away(self, name: str) -> None:
        await self.store.delete(name)
        raise StoreUnavailableError(
            f"{self.store.url} did not keep {name} as it was put; it was deleted, to be put again."
        )


def piece_of(records: Sequence[Archived]) -> StoredSegment:
    """Return the piece of a segment with these records, which determines its name."""
    first, last = records[0], records[-1]
    return StoredSegment(last.value[LOG_ID].hex(), first.epoch, last.epoch, last.links[1].hex())


def check_piece(piece: StoredSegment, content: bytes) -> list[Archived]:
    """Return the records of a segment. Raises DamagedFileError if they do not match its name."""
    records = from_container(content)
    if not records or piece_of(records) != piece:
        raise DamagedFileError(f"{piece.name} does not hold what its name says")
    return records


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 as hex digits."""
    return hashlib.sha256(content).hexdigest()


def _packed(records: Sequence[Archived]) -> tuple[bytes, str]:
    out = io.BytesIO()
    as_container(out, records)
    return out.getvalue(), sha256_of(out.getvalue())


def _measured(content: bytes | Path) -> tuple[int, str]:
    if isinstance(content, bytes):
        return len(content), sha256_of(content)
    with content.open("rb") as file:
        return content.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _reached(own: Sequence[EpochSpan], there: Sequence[StoredSegment], base: int) -> int:
    """Return the epoch up to which the store has all wanted epochs of the archive's newest span."""
    if not own:
        return 0
    wanted = EpochSpan(max(own[-1].first, base), own[-1].last)
    for first, last in joined(EpochSpan(piece.first, piece.last) for piece in there):
        if first <= wanted.first <= last:
            return min(last, wanted.last)
    return 0
