"""Where what is put into a store comes from: a replica's archive, here or over HTTP."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from stele.log.archive.archive import Archive
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import SnapshotHead, hash_of
from stele.log.archive.spans import NotArchivedError, Span
from stele.log.archive_store.layout import Shot

READ_BYTES: Final = 8 * 1024 * 1024
"""Records are taken from the disk so many at once."""


class About(NamedTuple):
    """Which log it is; ids as in snapshots."""

    cluster: str
    cluster_id: str
    log_id: str


class Source(Protocol):
    """Calls raise DamagedFileError, NotArchivedError and OSError, or what the way there raises."""

    async def about(self) -> About: ...

    async def spans(self) -> Sequence[Span]:
        """What it has, the oldest first."""
        ...

    async def shots(self) -> Sequence[Shot]:
        """Its snapshots."""
        ...

    async def state_id_of(self, epoch: int) -> str | None:
        """The state id that an epoch made; None when it is not there."""
        ...

    async def records(self, first: int, last: int) -> Sequence[Archived]:
        """Epochs from ``first`` on up to ``last`` at most, as many as are well taken at once; at least one."""
        ...

    async def files(self, shot: Shot) -> tuple[bytes | Path, bytes | Path]:
        """A snapshot's file and that of its decided requests, whole."""
        ...


class LocalSource:
    """The archive of this replica; ``about`` says which log it follows."""

    def __init__(self, archive: Archive, about: Callable[[], About]) -> None:
        self._archive = archive
        self._about = about

    async def about(self) -> About:
        return self._about()

    async def spans(self) -> Sequence[Span]:
        return self._archive.segments.spans()

    async def shots(self) -> Sequence[Shot]:
        return [shot_of(kept.head) for kept in self._archive.snapshots.all()]

    async def state_id_of(self, epoch: int) -> str | None:
        found = await asyncio.to_thread(self._archive.state_id_of, epoch)
        return None if found is None else found.hex()

    async def records(self, first: int, last: int) -> Sequence[Archived]:
        return await asyncio.to_thread(self._records, first, last)

    async def files(self, shot: Shot) -> tuple[Path, Path]:
        kept = self._archive.snapshots.named(shot.stem)
        if kept is None:
            raise DamagedFileError(f"snapshot {shot.stem} is not here any more")
        await asyncio.to_thread(hash_of, kept.path)
        await asyncio.to_thread(hash_of, kept.decided_path)
        return kept.path, kept.decided_path

    def _records(self, first: int, last: int) -> Sequence[Archived]:
        left_bytes = READ_BYTES

        def fits(record: Archived) -> bool:
            nonlocal left_bytes
            is_first, left_bytes = left_bytes == READ_BYTES, left_bytes - len(record.value)
            return is_first or left_bytes >= 0

        found = [*takewhile(fits, self._archive.after(first - 1, last))]
        if not found:
            raise NotArchivedError(first)
        return found


def shot_of(head: SnapshotHead) -> Shot:
    return Shot(head.log_id, head.epoch, head.state_id)
