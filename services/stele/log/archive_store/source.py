"""Sources of a copy into a store: a replica's archive, local or over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from stele.log.archive.archive import Archive, folded
from stele.log.archive.container import Archived, DamagedFileError, EpochSpan, NotArchivedError
from stele.log.archive.snapshots import Kept, SnapshotHead, hash_of
from stele.log.archive_store.layout import StoredSnapshot
from stele.log.chain import FROZEN, LOG_ID
from stele.log.fold import BEGINNING, Fold
from stele.log.port import LogPast, Record

READ_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of records that are read from the disk at once."""


class About(NamedTuple):
    """Cluster and log of a source. Ids are in hex, as in snapshots."""

    cluster: str
    cluster_id: str
    log_id: str


class SourceFile(NamedTuple):
    """A file of a source, and the last epoch in it. The name is empty if the source has none."""

    name: str
    last: int


class ArchiveSize(NamedTuple):
    """Number of files of an archive, and their total size."""

    files: int
    size_bytes: int


class EpochSource(Protocol):
    """Archived epochs that can be read.

    ``records`` raises DamagedFileError, NotArchivedError, OSError, and the errors of the transport.
    """

    @property
    def spans(self) -> Sequence[EpochSpan]:
        """Spans of archived epochs, the oldest first."""

    async def records(self, first: int, last: int) -> list[Archived]:
        """Return epochs from ``first`` up to ``last`` at most: at least one, as many as fit."""
        ...


class ArchiveSource(EpochSource, Protocol):
    """A whole archive: epochs and snapshots of one log. Calls raise as ``records`` does."""

    @property
    def about(self) -> About: ...

    @property
    def shots(self) -> Sequence[StoredSnapshot]:
        """The snapshots."""

    @property
    def size(self) -> ArchiveSize: ...

    async def state_id_of(self, epoch: int) -> str | None:
        """Return the state id of an epoch in hex; None if the archive lacks it."""
        ...

    async def files(self, shot: StoredSnapshot) -> tuple[bytes | Path, bytes | Path]:
        """Return a snapshot's file and the file of its decided requests, both whole."""
        ...

    def file_of(self, epoch: int) -> SourceFile:
        """Return the file that holds an epoch. A source without file names returns no more."""
        ...


class LocalSource:
    """The archive in a folder of this process.

    ``about`` returns the log that it follows; only a copy needs it. ``pause`` is called in a thread
    at each record that is read.
    """

    def __init__(
        self,
        archive: Archive,
        about: Callable[[], About] = lambda: About("", "", ""),
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._archive = archive
        self._about = about
        self._pause = pause

    @property
    def about(self) -> About:
        return self._about()

    @property
    def spans(self) -> Sequence[EpochSpan]:
        return self._archive.segments.spans()

    @property
    def shots(self) -> Sequence[StoredSnapshot]:
        return [shot_of(kept.head) for kept in self._archive.snapshots.all()]

    @property
    def size(self) -> ArchiveSize:
        segments, snapshots = self._archive.segments, self._archive.snapshots.all()
        size_bytes = segments.size_bytes + sum(kept.size_bytes for kept in snapshots)
        return ArchiveSize(len(segments.spans()) + len(snapshots), size_bytes)

    async def state_id_of(self, epoch: int) -> str | None:
        found = await asyncio.to_thread(self._archive.state_id_of, epoch)
        return None if found is None else found.hex()

    async def records(self, first: int, last: int) -> list[Archived]:
        return await asyncio.to_thread(self._records, first, last)

    async def files(self, shot: StoredSnapshot) -> tuple[Path, Path]:
        kept = self._archive.snapshots.named(shot.stem)
        if kept is None:
            raise DamagedFileError(f"snapshot {shot.stem} is not here any more")
        await asyncio.to_thread(self._check, kept)
        return kept.path, kept.decided_path

    def file_of(self, epoch: int) -> SourceFile:
        return SourceFile("", epoch)

    def _check(self, kept: Kept) -> None:
        """Read both files of a snapshot to their ends, and set a damaged one aside."""
        try:
            for path in (kept.path, kept.decided_path):
                hash_of(path)
        except (DamagedFileError, OSError) as error:
            self._archive.snapshots.set_aside(kept, str(error))
            raise DamagedFileError(f"it is damaged, and was set aside: {error}") from error

    def _records(self, first: int, last: int) -> list[Archived]:
        left_bytes = READ_BYTES

        def fits(record: Archived) -> bool:
            nonlocal left_bytes
            self._pause()
            is_first, left_bytes = left_bytes == READ_BYTES, left_bytes - len(record.value)
            return is_first or left_bytes >= 0

        found = [*takewhile(fits, self._archive.after(first - 1, last))]
        if not found:
            raise NotArchivedError(first)
        return found


def shot_of(head: SnapshotHead) -> StoredSnapshot:
    return StoredSnapshot(head.log_id, head.epoch, head.state_id)


# Fold the whole history of a log: from archives where the topic lacks epochs, then the topic.


READ_RECORDS: Final = 2000
ASKED_AGAIN: Final = 20
ASK_AGAIN_S: Final = 0.5
"""Pause between attempts. A replaced leader reports an old end for some seconds at most."""


class Replayed(NamedTuple):
    """The final fold, and the number of epochs that came from archives."""

    fold: Fold
    archived: int


async def first_epoch(log: LogPast, begin: int) -> int:
    """Return the epoch that the first record of the topic proposes; 0 if there is no record."""
    for record in await log.read(begin, 1):
        return int(FROZEN.unpack_from(record.value)[4])
    return 0


async def fold_archive_and_topic(
    source: ArchiveSource, log: LogPast, begin: int, end: int, last: int | None = None
) -> Replayed:
    """Fold the archives up to an epoch that the topic holds too, then the topic from there.

    ``last`` limits the epochs. Raises LogError, TimeoutError, and the errors of ``source``.
    """
    start, following, there = BEGINNING, 1, begin
    newest = max((span.last for span in source.spans), default=1)
    needed = newest if last is None else min(newest, last)
    while following <= needed:
        records = await source.records(following, needed)
        start = folded(start, records)
        newest_read = records[-1]
        following, offset, value = newest_read.epoch + 1, newest_read.offset, newest_read.value
        # Only at a record of the newest log: an older log may end in the topic before its recovery.
        is_of_log = value[LOG_ID].hex() == source.about.log_id
        if is_of_log and begin <= offset < end and (offset, value) in await log.read(offset, 1):
            there = offset + 1
            break
    fold = Fold(*start, across_recoveries=True)
    return Replayed(await fold_topic(fold, log, there, end, last), following - 1)


async def fold_topic(
    fold: Fold, log: LogPast, offset: int, end: int, last: int | None = None
) -> Fold:
    """Fold the records from ``offset`` to before ``end``, or up to epoch ``last``.

    Raises LogError, and TimeoutError when records before ``end`` are not returned.
    """
    while offset < end:
        records = await _given(log, offset, end)
        for place, value in records:
            if fold.image.epoch == last:
                return fold
            fold.chain.jump(place)  # the read returned all records, so a gap holds none
            fold.offer(place, value)
        offset = records[-1].offset + 1
    return fold


async def _given(log: LogPast, offset: int, end: int) -> list[Record]:
    """Return some records from ``offset`` on, at least one. Raises LogError, TimeoutError."""
    for _ in range(ASKED_AGAIN):
        records = await log.read(offset, min(READ_RECORDS, end - offset))
        if records:
            return records
        await asyncio.sleep(ASK_AGAIN_S)  # an old leader answered
    raise TimeoutError(f"the topic ends at {end}, and gives nothing from offset {offset} on")
