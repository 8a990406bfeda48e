"""Keeps the archive as new as the log: winners go to segments, and snapshots are taken when they are due.

The event loop only notes what came; one thread writes it. What is on the disk is what others are told of.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from stele.catch_up import metrics
from stele.catch_up.due import Since, is_asked, is_due
from stele.catch_up.retention import forgotten
from stele.catch_up.share import resting
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.requests.decided import to_facts
from stele.log.archive.archive import Archive, archived
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshot_folder import Kept
from stele.log.archive.snapshots import SnapshotHead, head_of
from stele.log.archive.spans import NotArchivedError
from stele.log.chain import anchor_of
from stele.log.start import Start
from stele.runtime.logs import get_logger

MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""A disk that is slower than the log: then reading waits for it, and answers go on."""
MOST_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""What is written before others are told and due snapshots are taken, so that nobody waits for all."""
RECORD_BYTES: Final = 250
"""What a record that waits takes beside its value, as measured."""
PASSED_WHILE_BEHIND: Final = 9
"""Of ten snapshots that are due while later ones are due already, one is written: behind a long log the later
ones are what everybody begins with, and the archive is complete without the others.
"""

FAILED: Final = "the disk did not take what came before"
LOOK_S: Final = 0.02
"""How often it is looked whether what waits is written."""

T = TypeVar("T")

log = get_logger(__name__)


class KeeperClosedError(Exception):
    """The log is recovered from this archive: nobody else changes it any more, and the process ends."""


class _Due(NamedTuple):
    """A snapshot to be written once the segments have its epoch."""

    image: Image
    head: SnapshotHead
    decided: Iterable[AnyFact]
    asked: bool
    """Somebody waits for this very one."""


class Keeper:
    """``on_winner`` is told of each winner, ``run`` writes. ``on_snapshot`` is called in the event loop."""

    def __init__(
        self,
        archive: Archive,
        snapshots_kept: int,
        sync_interval_s: float,
        on_snapshot: Callable[[Kept], None] = lambda kept: None,
    ) -> None:
        self.archive = archive
        self.last = archive.segments.last
        """The newest epoch that is on the disk."""
        self.needed: frozenset[int] = frozenset()
        """Epochs whose snapshots stay in any case."""
        self.recovering = asyncio.Lock()
        """Held by whoever has the log go on as another one here, and ends this process."""
        self._snapshots_kept = snapshots_kept
        self._sync_interval_s = sync_interval_s
        self._on_snapshot = on_snapshot
        self._since = Since()
        self._added = self.last
        self._waiting: deque[Archived] = deque()
        self._noted_bytes = 0
        """Of all that ever came; only the event loop counts it."""
        self._written_bytes = 0
        """Of all that was ever written; only the thread counts it."""
        self._synced_bytes = 0
        """Of those the ones that are on the disk for certain."""
        self._due: deque[_Due] = deque()
        self._passed = 0
        self._closed = False
        self._failed = False
        self._thread = ThreadPoolExecutor(1, "archive")

    def begin(self) -> Start:
        """Where to read the log on: behind all that the archive holds without a gap. Blocks.

        What turns out to be damaged is set aside. Raises LogError, UnreadableSnapshotError, DamagedFileError.
        """
        while True:
            start, _ = self.archive.begin(decided=True)
            damaged = len(self.archive.damaged)
            try:
                start = self.fold_on(start)
            except NotArchivedError:
                pass  # the topic has it, or another replica
            except DamagedFileError:
                if len(self.archive.damaged) == damaged:
                    raise
                continue
            self._added = start.image.epoch
            return self.archive.places_before(start)

    def fold_on(self, start: Start) -> Start:
        """Behind the epochs that follow ``start`` on the disk; due snapshots among them are written."""
        self._since = Since()
        last = self.archive.segments.last
        began = self.archive.fold_on(start, last, self._note)
        self._write_snapshots()
        return began

    def restart(self, start: Start) -> None:
        """Reading goes on behind a snapshot that was adopted."""
        self._since = Since()
        self._added = start.image.epoch

    def on_winner(self, offset: int, value: bytes, epoch: Epoch, image: Image) -> None:
        """A winner that was read, and the image that it made."""
        record = archived(offset, value, epoch)
        self._note(record, epoch, image)
        if record.epoch <= self._added:
            return
        self._added = record.epoch
        self._waiting.append(record)
        self._noted_bytes += RECORD_BYTES + len(value)

    def has_room(self) -> bool:
        """Whether more of the log is to be read now; any thread may ask."""
        return self._noted_bytes - self._written_bytes < MOST_WAITING_BYTES

    async def run(self) -> None:
        """Write what comes, until ``close``. Raises OSError when the disk does not take it."""
        loop = asyncio.get_running_loop()
        while not self._closed:
            if self._waiting or self._due:
                written = await loop.run_in_executor(self._thread, self._write_some)
                for kept in written:
                    self._on_snapshot(kept)
            metrics.archived_epoch.set(self.last)
            if not self._waiting:
                await asyncio.sleep(self._sync_interval_s)

    async def written(self) -> None:
        """Returns once all that has come by now is on the disk. Raises OSError when that does not take it."""
        noted_bytes = self._noted_bytes
        while self._synced_bytes < noted_bytes:
            if self._failed:
                raise OSError(FAILED)
            await asyncio.sleep(LOOK_S)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """Put what came on the disk, and end. The second time nothing is left to do, nor when the disk has
        failed: what it took in part is found at the next start.
        """
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._write_last)
        self._thread.shutdown()

    async def snapshot_at(self, epoch: int, state_id: bytes) -> Kept:
        """A snapshot of this very state: the one that is there, read to its end, or else one of what the epochs
        up to there lead to, folded in a thread of its own.

        Raises LogError, DamagedFileError, NotArchivedError, OSError, UnreadableSnapshotError,
        KeeperClosedError.
        """
        archive = self.archive
        known = await asyncio.to_thread(archive.known_at, epoch, state_id)
        if known is not None:
            return known
        start, at_ms = await asyncio.to_thread(archive.folded_to, epoch, state_id, resting())
        assert start.anchor is not None
        head = head_of(start.image, start.next_offset, start.anchor, at_ms)
        write = partial(archive.snapshots.write, start.image, head, to_facts(start.image.decided))
        return await self._beside(write)

    async def trim(self, epoch: int) -> int:
        """Delete what is before an epoch whose snapshot is there; how many epochs.

        Raises DamagedFileError, OSError, KeeperClosedError.
        """
        return await self._beside(partial(self.archive.trim, epoch))

    async def adopt(self, records: Iterable[Archived]) -> None:
        """Keep epochs that another replica gave.

        Raises DamagedFileError, ValueError, OSError, KeeperClosedError.
        """
        await self._beside(partial(self.archive.segments.adopt, records))

    async def set_aside_up_to(self, epoch: int) -> int:
        """Set aside what leads to ``epoch``, without a gap, and is not in the log; how many epochs.

        Raises DamagedFileError, OSError, KeeperClosedError.
        """
        return await self._beside(partial(self.archive.set_aside_up_to, epoch))

    async def _beside(self, work: Callable[[], T]) -> T:
        """In the thread that writes. Raises KeeperClosedError, and what ``work`` does."""
        if self._closed:
            raise KeeperClosedError(
                "The log is recovered from this archive, and this process ends."
            )
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _note(self, record: Archived, epoch: Epoch, image: Image) -> None:
        self._since = self._since.after(record.value, epoch)
        if not is_due(self._since, image, epoch):
            return
        self._since = Since()
        anchor = anchor_of(record.offset, record.value)
        head = head_of(image, record.offset + 1, anchor, record.at_ms)
        if self.archive.snapshots.named(head.name) is None:
            decided = _as_it_is_now(to_facts(image.decided))
            self._due.append(_Due(image, head, decided, is_asked(epoch)))

    def _write_last(self) -> None:
        if self._failed:
            return
        self._write_some()
        while self._waiting:
            self._write_some()
        self.archive.segments.close()

    def _write_some(self) -> list[Kept]:
        """In the thread. Raises OSError; once it has, nothing is written any more."""
        if self._failed:
            raise OSError(FAILED)
        try:
            return self._written()
        except BaseException:
            self._failed = True
            raise

    def _written(self) -> list[Kept]:
        segments = self.archive.segments
        enough_bytes = self._written_bytes + MOST_AT_ONCE_BYTES
        while self._waiting and self._written_bytes < enough_bytes:
            record = self._waiting.popleft()
            self._written_bytes += RECORD_BYTES + len(record.value)
            segments.add(record)
        self.last = segments.sync()
        self._synced_bytes = self._written_bytes
        return self._write_snapshots()

    def _write_snapshots(self) -> list[Kept]:
        written = list[Kept]()
        while self._due and self._due[0].head.epoch <= self.archive.segments.last:
            due, began_s = self._due.popleft(), time.perf_counter()
            if self._due and not due.asked and self._passed < PASSED_WHILE_BEHIND:
                self._passed += 1
                continue
            self._passed = 0
            kept = self.archive.snapshots.write(due.image, due.head, due.decided)
            took_s = time.perf_counter() - began_s
            metrics.snapshot_seconds.observe(took_s)
            metrics.snapshot_epoch.set(kept.head.epoch)
            log.info(
                "a snapshot is written",
                epoch=kept.head.epoch,
                size_bytes=kept.size_bytes,
                took_s=round(took_s, 3),
            )
            written.append(kept)
        if written:
            self._forget()
        return written

    def _forget(self) -> None:
        snapshots = self.archive.snapshots
        kept = {each.head.epoch: each for each in snapshots.all()}
        for epoch in forgotten([*kept], self._snapshots_kept, needed=self.needed):
            snapshots.forget(kept[epoch])


def _as_it_is_now(facts: Iterable[AnyFact]) -> Iterable[AnyFact]:
    """The newest decisions are in a table that grows on: they are taken now, the others in the thread."""
    rest = iter(facts)
    return itertools.chain([*itertools.islice(rest, 1)], rest)
