"""Check a whole archive: in a replica's folder, in a store, or over HTTP.

The check covers the bytes of each file and the chain of state ids. The epochs between two snapshots
must lead from the state of one to that of the other.
"""

import asyncio
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from stele.domain.snapshot import requests_hash, state_hash
from stele.log.archive.container import Archived, DamagedFileError, NotArchivedError, check_follows
from stele.log.archive.snapshots import UnreadableSnapshotError, start_of
from stele.log.archive_store.layout import StoredSnapshot
from stele.log.archive_store.source import ArchiveSource
from stele.log.blobs.port import BlobMissingError
from stele.log.errors import LogError
from stele.log.fold import BEGINNING, Fold, Start

MOST_FLAWS: Final = 1000


class ArchiveVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. The archive is intact if ``flaws`` is empty."""

    blobs: int
    size_bytes: int
    first_epoch: int
    last_epoch: int
    state_id: str
    state_hash: str
    """Hash of the state at the last epoch; empty if no snapshot or first epoch leads to it."""
    snapshots: tuple[int, ...]
    """Epochs of the snapshots that are whole and match the epochs before them."""
    folded_epochs: int
    flaws: tuple[str, ...]
    damaged: tuple[str, ...]
    """Names of the damaged files, as a store names them, or the errors of files without names."""


class CheckProgress(NamedTuple):
    """Epochs ``first`` to ``epoch`` of those up to ``last`` are checked, with some snapshots."""

    first: int
    epoch: int
    last: int
    snapshots: int


OnProgress = Callable[[CheckProgress], None]


async def verify(
    source: ArchiveSource, on_progress: OnProgress = lambda progress: None
) -> ArchiveVerdict:
    """Read and check everything that is in the archive at the call.

    ``on_progress`` is called in a thread at each epoch; an exception from it stops the check.
    Raises the errors of ``source`` other than DamagedFileError and NotArchivedError.
    """
    return await _Verifier(source, on_progress).run()


class _Verifier:
    """One check, which reads the epochs once. ``_fold`` is None while their state is unknown."""

    def __init__(self, source: ArchiveSource, on_progress: OnProgress) -> None:
        self._source = source
        self._on_progress = on_progress
        # The snapshots first: a replica writes one only when its epochs are on the disk, so epochs
        # that are missing from a later list are missing from the archive.
        self._shots = sorted(source.shots, key=lambda shot: shot.epoch)
        spans = source.spans
        self._first = spans[0].first if spans else 0
        self._last = spans[-1].last if spans else 0
        self._fold = _fold_of(BEGINNING) if self._first == 1 else None
        self._before: Archived | None = None
        self._failed_at = 0
        self._state_id = ""
        self._folded = 0
        self._good = list[int]()
        self._flaws = list[str]()
        self._damaged = list[str]()

    async def run(self) -> ArchiveVerdict:
        size = self._source.size
        following = self._first
        while following and following <= self._last:
            begin = self._next_there(following)
            if begin != following:
                self._flaws.append(f"Epochs {following} to {begin - 1} are missing.")
                self._before = self._fold = None
            await self._compare_before(begin)
            following = await self._read(begin) if begin <= self._last else begin
        await self._compare_before(self._last + 1)
        for shot in self._shots:
            self._flaws.append(
                f"Epochs {self._last + 1} to {shot.epoch}, before a snapshot, are missing."
            )
        fold = self._fold
        at_end = fold is not None and fold.image.epoch == self._last > 0
        return ArchiveVerdict(
            blobs=size.files,
            size_bytes=size.size_bytes,
            first_epoch=self._first,
            last_epoch=self._last,
            state_id=self._state_id,
            state_hash=state_hash(fold.image) if fold is not None and at_end else "",
            snapshots=tuple(self._good),
            folded_epochs=self._folded,
            flaws=tuple(self._flaws[:MOST_FLAWS]),
            damaged=tuple(self._damaged),
        )

    def _next_there(self, epoch: int) -> int:
        """Return the first archived epoch from ``epoch`` on; one more than the last if none."""
        for first, last in self._source.spans:
            if last >= epoch:
                return max(first, epoch)
        return self._last + 1

    async def _read(self, begin: int) -> int:
        """Check some epochs from ``begin`` on; return the next epoch to check."""
        try:
            records = await self._source.records(begin, self._last)
            check_follows(self._before, records[0])
        except NotArchivedError:
            return begin  # deleted meanwhile; ``run`` finds the gap with its next search
        except (BlobMissingError, DamagedFileError) as error:
            return self._pass_over(begin, error)
        following = records[-1].epoch + 1
        self._before, self._state_id = records[-1], records[-1].links[1].hex()
        for shot in [shot for shot in self._shots if shot.epoch < following]:
            until = [record for record in records if record.epoch <= shot.epoch]
            records = records[len(until) :]
            await asyncio.to_thread(self._take, until)
            await self._compare_before(shot.epoch + 1)
        await asyncio.to_thread(self._take, records)
        return following

    def _pass_over(self, begin: int, error: Exception) -> int:
        """Note a damaged file; return the epoch from which to read on."""
        if begin != self._failed_at:
            # A replica sets a damaged file aside and keeps its readable epochs: read those.
            self._failed_at = begin
            self._flaws.append(str(error))
            self._damaged.append(self._source.file_of(begin).name or str(error))
            return begin
        self._before = self._fold = None
        return self._source.file_of(begin).last + 1

    def _take(self, records: Sequence[Archived]) -> None:
        """Fold records, as far as the state before them is known."""
        for record in records:
            if self._fold is not None and self._fold.image.epoch + 1 != record.epoch:
                self._fold = None  # it began at a snapshot whose next epochs are missing
            if self._fold is not None:
                flaw = _flaw_of(self._fold, record)
                self._folded += not flaw
                if flaw:
                    self._flaws.append(flaw)
                    self._fold = None
            self._on_progress(CheckProgress(self._first, record.epoch, self._last, len(self._good)))

    async def _compare_before(self, following: int) -> None:
        """Compare the snapshots before epoch ``following``, and continue from the last of them."""
        while self._shots and self._shots[0].epoch < following:
            shot = self._shots.pop(0)
            if shot in self._source.shots:  # otherwise a newer one replaced it meanwhile
                await self._compare(shot)

    async def _compare(self, shot: StoredSnapshot) -> None:
        try:
            files = await self._source.files(shot)
            start = await asyncio.to_thread(_start_in, shot, files)
        except UnreadableSnapshotError as error:
            self._flaws.append(f"The snapshot of epoch {shot.epoch}: {error}")
            return
        except (BlobMissingError, DamagedFileError, OSError) as error:
            self._flaws.append(f"The snapshot of epoch {shot.epoch}: {error}")
            self._damaged += shot.names
            return
        fold = self._fold
        if fold is not None and fold.image.epoch == shot.epoch:
            reached = Start(fold.image, fold.next_offset, fold.chain.anchor)
            flaw = await asyncio.to_thread(why_other, start, reached)
            if flaw:
                self._flaws.append(flaw)
                return  # the epochs are the history: later snapshots are compared with their state
        else:
            self._fold = _fold_of(start)
        self._good.append(shot.epoch)


def _fold_of(start: Start) -> Fold:
    return Fold(*start, across_recoveries=True)


def _flaw_of(fold: Fold, record: Archived) -> str:
    """Fold a record; return the reason why it does not follow, or ""."""
    try:
        fold.chain.jump(record.offset)  # the archive holds winners only
        if fold.offer(record.offset, record.value) is None:
            return f"Epoch {record.epoch} does not follow from those before it."
    except LogError as error:
        return f"Epoch {record.epoch}: {error}"
    return ""


def _start_in(shot: StoredSnapshot, files: tuple[bytes | Path, bytes | Path]) -> Start:
    """Return the state in a snapshot's files. Raises DamagedFileError if it is not ``shot``'s."""

    def opened(file: bytes | Path) -> IO[bytes]:
        return io.BytesIO(file) if isinstance(file, bytes) else file.open("rb")

    with opened(files[0]) as image_file, opened(files[1]) as decided_file:
        start = start_of(image_file, decided_file)
    image = start.image
    found = image.epoch, image.state_id.hex(), image.log_id.hex()
    if found != (shot.epoch, shot.state_id, shot.log_id):
        raise DamagedFileError("it is of another state than its name says")
    return start


def why_other(start: Start, reached: Start) -> str:
    """Return how a snapshot differs from the state that the epochs lead to; empty if equal."""
    epoch = reached.image.epoch
    hashes = [(state_hash(each.image), requests_hash(each.image)) for each in (start, reached)]
    if hashes[0] != hashes[1]:
        return f"Epoch {epoch}: its snapshot has another state than the epochs lead to."
    places = [(each.next_offset, each.anchor) for each in (start, reached)]
    if places[0] != places[1]:
        return f"Epoch {epoch}: its snapshot stands at another place of the log."
    return ""
