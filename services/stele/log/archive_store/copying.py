"""Putting into a store what it lacks of an archive: epochs in segments, then snapshots, each looked at once it
is there. A copy that ended anywhere goes on there.
"""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived, as_container, check_follows, from_container
from stele.log.archive.spans import NotArchivedError, Span, joined
from stele.log.archive_store import plan
from stele.log.archive_store.claim import Claim, ForeignStoreError, Kind, claim
from stele.log.archive_store.layout import Contents, Piece, Shot, contents_of
from stele.log.archive_store.source import About, Source
from stele.log.blobs.port import Blob, BlobMissingError, BlobStore, StoreUnavailableError
from stele.log.chain import LOG_ID


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has after a copy, and what was done."""

    contents: Contents
    last_epoch: int
    """Up to here all is there of what the archive has."""
    snapshot_epoch: int
    """Of the newest snapshot that is there."""
    put_blobs: int = 0
    put_bytes: int = 0
    skipped: tuple[str, ...] = ()
    """What of the archive could not be read, and why."""


class Copier:
    """Copies from one source into one store. What it has compared once it remembers."""

    def __init__(self, store: BlobStore, source: Source, kind: Kind) -> None:
        self.store = store
        self._source = source
        self._kind = kind
        self._same: dict[Piece, bool] = {}
        self._checked = set[str]()

    async def claim(self) -> About:
        """Make sure that the store is this archive's. Raises ForeignStoreError, StoreError."""
        about = await self._source.about()
        own = Claim(cluster=about.cluster, cluster_id=about.cluster_id, kind=self._kind)
        await claim(self.store, own)
        return about

    async def copy(
        self, *, cutoff: int = 0, newest_snapshot_only: bool = False, distrusted: Sequence[str] = ()
    ) -> Progress:
        """Put what is missing; nothing that only leads up to a snapshot before epoch ``cutoff``.

        ``distrusted`` are names whose blobs are put again. Raises StoreError, ForeignStoreError where the store
        is another log's, and what the source raises.
        """
        about = await self.claim()
        contents = without(contents_of(await self.store.list()), distrusted)
        there = await self._own(about, contents)
        base = plan.base_of(contents.shots, cutoff)
        put = _Put()
        own = await self._source.spans()
        for part in plan.lacking(own, (Span(p.first, p.last) for p in there), max(1, base)):
            try:
                async for records in self._pieces(part):
                    there.append(await self._put_piece(records, contents, put))
            except (DamagedFileError, NotArchivedError) as error:
                put.skipped.append(f"epochs {part.first} to {part.last}: {error}")
        shots = sorted(await self._source.shots(), key=lambda shot: -shot.epoch)
        if newest_snapshot_only:  # and what the epochs go on from, where the first ones are deleted
            shots = shots[:1] + [s for s in shots[1:] if own and 1 < s.epoch == own[0].first]
        for shot in shots:
            if shot.epoch >= base and shot not in contents.shots:
                try:
                    await self._put_shot(shot, put)
                except DamagedFileError as error:
                    put.skipped.append(f"snapshot {shot.stem}: {error}")
        contents = put.added_to(contents)
        return Progress(
            contents=contents,
            last_epoch=_reached(own, there, base),
            snapshot_epoch=max((shot.epoch for shot in contents.shots), default=0),
            put_blobs=len(put.blobs),
            put_bytes=sum(blob.size_bytes for blob in put.blobs),
            skipped=tuple(put.skipped),
        )

    async def forget(self, progress: Progress, *, cutoff: int = 0) -> list[str]:
        """Delete segments whose epochs a longer one has, and what is only needed before epoch ``cutoff``; the
        names.
        """
        contents = progress.contents
        names = list[str]()
        for piece, longer in plan.covered(contents.pieces).items():
            if await self._is_whole(longer):
                names.append(piece.name)
        base = plan.base_of(contents.shots, cutoff)
        names += (name for name in plan.expired(contents, base) if name not in names)
        for name in names:
            await self.store.delete(name)
        return names

    async def _own(self, about: About, contents: Contents) -> list[Piece]:
        """Pieces that are of the source's history, as far as it can tell. What an older log has after the last
        epoch of the source was given up: the source has gone past the end of that log.
        """
        if contents.logs and contents.logs[-1] > about.log_id:
            raise ForeignStoreError(
                f"{self.store.url} holds epochs of log {contents.logs[-1]}, which is later than {about.log_id}:"
                " the log was recovered without this replica. Start it with the recovered log."
            )
        of_log = [piece for piece in contents.pieces if piece.log_id == about.log_id]
        own_last = max((span.last for span in await self._source.spans()), default=0)
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

    async def _is_same(self, piece: Piece) -> bool:
        """Whether the piece ends with the state that the source has there, or the source cannot tell."""
        if piece not in self._same:
            state_id = await self._source.state_id_of(piece.last)
            if state_id is None:
                return True
            self._same[piece] = state_id == piece.state_id
        return self._same[piece]

    async def _pieces(self, part: Span) -> AsyncIterator[list[Archived]]:
        """The epochs of a part of a block, cut where everybody cuts them."""
        piece, size_bytes, following = list[Archived](), 0, part.first
        before: Archived | None = None
        while following <= part.last:
            for record in await self._source.records(following, part.last):
                check_follows(before, record)
                if piece and size_bytes + len(record.value) > plan.PIECE_BYTES:
                    yield piece
                    piece, size_bytes = [], 0
                piece.append(record)
                size_bytes += len(record.value)
                before, following = record, record.epoch + 1
        yield piece

    async def _put_piece(self, records: list[Archived], contents: Contents, put: "_Put") -> Piece:
        piece = piece_of(records)
        if piece.name in contents.sizes:
            return piece
        content, sha256 = await asyncio.to_thread(_packed, records)
        await self.store.put(piece.name, content, sha256)
        if not await self._arrived(piece.name, len(content), sha256):
            await self._accept(piece)
        self._checked.add(piece.name)
        put.blobs.append(Blob(piece.name, len(content)))
        return piece

    async def _put_shot(self, shot: Shot, put: "_Put") -> None:
        """The memory first: the snapshot is there once both are."""
        image, decided = await self._source.files(shot)
        for name, content in ((shot.decided_name, decided), (shot.name, image)):
            size_bytes, sha256 = await asyncio.to_thread(_measured, content)
            await self.store.put(name, content, sha256)
            if not await self._arrived(name, size_bytes, sha256):
                await self._take_away(name)
            put.blobs.append(Blob(name, size_bytes))

    async def _arrived(self, name: str, size_bytes: int, sha256: str) -> bool:
        stat = await self.store.stat(name)
        return stat.size_bytes == size_bytes and stat.sha256 in ("", sha256)

    async def _accept(self, piece: Piece) -> None:
        """Another process may have packed the same epochs otherwise, at the same moment."""
        if not await self._is_whole(piece):
            await self._take_away(piece.name)

    async def _is_whole(self, piece: Piece) -> bool:
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


class _Put:
    """What a copy has put so far."""

    def __init__(self) -> None:
        self.blobs = list[Blob]()
        self.skipped = list[str]()

    def added_to(self, contents: Contents) -> Contents:
        sizes = contents.sizes | dict(self.blobs)
        return contents_of(Blob(name, size_bytes) for name, size_bytes in sizes.items())


def without(contents: Contents, names: Sequence[str]) -> Contents:
    """As if these were not there."""
    if not names:
        return contents
    sizes = {name: size for name, size in contents.sizes.items() if name not in {*names}}
    return contents_of(Blob(name, size_bytes) for name, size_bytes in sizes.items())


def piece_of(records: Sequence[Archived]) -> Piece:
    """What a segment of these is called."""
    first, last = records[0], records[-1]
    return Piece(last.value[LOG_ID].hex(), first.epoch, last.epoch, last.links[1].hex())


def check_piece(piece: Piece, content: bytes) -> list[Archived]:
    """The records of a segment. Raises DamagedFileError unless they are those that its name promises."""
    records = from_container(content)
    if not records or piece_of(records) != piece:
        raise DamagedFileError(f"{piece.name} does not hold what its name says")
    return records


def sha256_of(content: bytes) -> str:
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


def _reached(own: Sequence[Span], there: Sequence[Piece], base: int) -> int:
    """The newest epoch of the archive up to which all that is wanted of its newest span is in the store."""
    if not own:
        return 0
    wanted = Span(max(own[-1].first, base), own[-1].last)
    for first, last in joined(Span(piece.first, piece.last) for piece in there):
        if first <= wanted.first <= last:
            return min(last, wanted.last)
    return 0
