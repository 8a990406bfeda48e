"""Keeps the archive up to date with the log: appends winners to segments and writes due snapshots.

The event loop only queues what arrives; one thread writes it. Other processes are informed only of
what is on the disk.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from stele.catch_up import metrics
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.model.archive import (
    SNAPSHOT_EPOCHS,
    SNAPSHOT_MB,
    AdmitDivergence,
    AgreeToTrim,
    AnnounceReader,
    AnnounceReplica,
    AnnounceSnapshot,
    ProposeTrim,
    SnapshotAsked,
    TrimArchive,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.model.cluster import LogRecovered
from stele.domain.request_memory import to_facts
from stele.log.archive.archive import Archive, archived
from stele.log.archive.container import Archived, DamagedFileError, NotArchivedError
from stele.log.archive.snapshots import Kept, SnapshotHead, head_of
from stele.log.chain import anchor_of
from stele.log.fold import Start
from stele.runtime.logs import get_logger

# When a snapshot is due.
#
# Only the log decides, so all replicas take snapshots at the same epochs. Pure.


MB: Final = 1_000_000
UPKEEP: Final = frozenset(
    command.__struct_config__.tag
    for command in (
        AdmitDivergence,
        AgreeToTrim,
        AnnounceReader,
        AnnounceReplica,
        AnnounceSnapshot,
        ProposeTrim,
        TrimArchive,
        TruncateLog,
        WithdrawSnapshot,
    )
)
"""Commands that replicas and readers send on their own, mostly because of a new snapshot."""


class Since(NamedTuple):
    """Counts the epochs since the last snapshot.

    ``is_news``: some of them were more than archive upkeep.
    """

    epochs: int = 0
    size_bytes: int = 0
    is_news: bool = False

    def after(self, value: bytes, epoch: Epoch) -> Since:
        is_news = self.is_news or epoch.command not in UPKEEP
        return Since(self.epochs + 1, self.size_bytes + len(value), is_news)


def is_due(since: Since, image: Image, epoch: Epoch) -> bool:
    """Return whether to take a snapshot of ``image``, the state after ``epoch``, which ``since``
    includes.

    Upkeep that follows from a snapshot makes no further snapshot due. A log without other changes
    stops growing.
    """
    if is_asked(epoch):
        return True
    settings = image.features.settings
    return since.is_news and (
        since.epochs >= SNAPSHOT_EPOCHS.of(settings)
        or since.size_bytes >= SNAPSHOT_MB.of(settings) * MB
    )


def is_asked(epoch: Epoch) -> bool:
    """Return whether every replica takes a snapshot at this epoch.

    After a recovery its writer always has one.
    """
    return any(isinstance(fact, SnapshotAsked | LogRecovered) for fact in epoch.facts)


# Which snapshots to keep: the newest, and some older ones to fold the past from. Pure.


OLDER: Final = 32
"""With 32, the past of a log of ten million epochs is folded from at most 300,000 epochs before."""


def forgotten(
    epochs: list[int], newest: int, older: int = OLDER, needed: Set[int] = frozenset()
) -> list[int]:
    """Return the snapshots to delete, the oldest first.

    The ``newest`` newest and the ``needed`` ones stay.

    Every second one of the others is deleted, repeatedly, until at most ``older`` of them remain.
    """
    ordered = sorted(epochs)
    rest = ordered[:-newest] if newest else ordered
    kept = rest
    while len(kept) > older:
        kept = kept[::2]
    return [epoch for epoch in rest if epoch not in {*kept, *needed}]


# A bounded share of the processor for background work.


SHARE: Final = 0.25
"""Share of one processor."""
TURN_S: Final = 0.01
"""Longest stretch of work, in seconds. Other work of the process waits no longer than this."""


def resting(
    share: float = SHARE,
    now_s: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Callable[[], None]:
    """Return a function that a thread calls repeatedly.

    It sleeps so that the thread works ``share`` of the time.
    """
    clock, pause = now_s or time.monotonic, sleep or time.sleep
    began_s = clock()

    def rest() -> None:
        nonlocal began_s
        worked_s = clock() - began_s
        if worked_s >= TURN_S:
            pause(worked_s * (1 - share) / share)
            began_s = clock()

    return rest


MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Limit of the write queue.

If the disk is slower than the log, reading pauses and answers continue.
"""
MOST_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Written in one step, before listeners are notified and due snapshots are taken, so that
neither waits long.
"""
RECORD_BYTES: Final = 250
"""Memory that a queued record takes beside its value, as measured."""
PASSED_WHILE_BEHIND: Final = 9
"""Due snapshots that are skipped, of ten, while later ones are due already.

When a replica reads a long log, readers start from the later snapshots. The archive is complete
without the skipped ones.
"""

FAILED: Final = "the disk did not take what came before"
LOOK_S: Final = 0.02
"""Interval for checking whether the queue is written, in seconds."""

T = TypeVar("T")

log = get_logger(__name__)


class KeeperClosedError(Exception):
    """The log is being recovered from this archive.

    No other change is allowed, and the process ends.
    """


class _DueSnapshot(NamedTuple):
    """A snapshot to be written once the segments contain its epoch."""

    image: Image
    head: SnapshotHead
    decided: Iterable[AnyFact]
    asked: bool
    """A caller waits for this snapshot, so it is not skipped."""


class Keeper:
    """Archives the log: ``on_winner`` queues each winner, ``run`` writes."""

    def __init__(self, archive: Archive, snapshots_kept: int, sync_interval_s: float) -> None:
        self.archive = archive
        self.last = archive.segments.last
        """The newest epoch on the disk."""
        self.needed: frozenset[int] = frozenset()
        """Epochs whose snapshots are never deleted."""
        self.recovering = asyncio.Lock()
        """Held while a recovery of the log from here is under way, which ends this process."""
        self._snapshots_kept = snapshots_kept
        self._sync_interval_s = sync_interval_s
        self._since = Since()
        self._added = self.last
        self._waiting: deque[Archived] = deque()
        self._noted_bytes = 0
        """Size of all records ever queued. Only the event loop changes it."""
        self._written_bytes = 0
        """Size of all records ever written. Only the thread changes it."""
        self._synced_bytes = 0
        """Size of those written records that are synced to the disk."""
        self._due: deque[_DueSnapshot] = deque()
        self._passed = 0
        self._closed = False
        self._failed = False
        self._thread = ThreadPoolExecutor(1, "archive")

    def begin(self) -> Start:
        """Return where to read the log from: after all that the archive holds without a gap.

        Blocks. Damaged files are set aside. Raises LogError, UnreadableSnapshotError,
        DamagedFileError.
        """
        while True:
            start, _ = self.archive.begin(decided=True)
            damaged = len(self.archive.damaged)
            try:
                start = self.fold_on(start)
            except NotArchivedError:
                pass  # the topic or another replica has it
            except DamagedFileError:
                # A file was set aside, so try again without it. If none was, a retry would fail in
                # the same way.
                if len(self.archive.damaged) == damaged:
                    raise
                continue
            self._added = start.image.epoch
            return self.archive.places_before(start)

    def fold_on(self, start: Start) -> Start:
        """Fold the epochs on the disk that follow ``start``, write due snapshots among them, and
        return the end.
        """
        self._since = Since()
        last = self.archive.segments.last
        began = self.archive.fold_on(start, last, self._note)
        self._write_snapshots()
        return began

    def restart(self, start: Start) -> None:
        """Continue after a snapshot that was adopted."""
        self._since = Since()
        self._added = start.image.epoch

    def on_winner(self, offset: int, value: bytes, epoch: Epoch, image: Image) -> None:
        """Queue a winner that was read. ``image`` is the state after it."""
        record = archived(offset, value, epoch)
        self._note(record, epoch, image)
        # Epochs up to `_added` are in the archive, or before an adopted snapshot.
        if record.epoch <= self._added:
            return
        self._added = record.epoch
        self._waiting.append(record)
        self._noted_bytes += RECORD_BYTES + len(value)

    def has_room(self) -> bool:
        """Return whether the reader may read more of the log now. Any thread may call it."""
        return self._noted_bytes - self._written_bytes < MOST_WAITING_BYTES

    async def run(self) -> None:
        """Write queued records until ``close``. Raises OSError when the disk fails."""
        loop = asyncio.get_running_loop()
        while not self._closed:
            if self._waiting or self._due:
                await loop.run_in_executor(self._thread, self._write_some)
            metrics.archived_epoch.set(self.last)
            if not self._waiting:
                await asyncio.sleep(self._sync_interval_s)

    async def written(self) -> None:
        """Return once all that was queued before the call is synced to the disk.

        Raises OSError if that fails.
        """
        noted_bytes = self._noted_bytes
        while self._synced_bytes < noted_bytes:
            if self._failed:
                raise OSError(FAILED)
            await asyncio.sleep(LOOK_S)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """Write what is queued, and end. Further calls do nothing.

        After a disk failure nothing is written. The next start finds what the disk took in part.
        """
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._write_last)
        self._thread.shutdown()

    async def snapshot_at(self, epoch: int, state_id: bytes) -> Kept:
        """Return a snapshot of exactly this state.

        An existing one is read to its end. Otherwise the epochs up to this state are folded in a
        separate thread.

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
        """Delete everything before an epoch whose snapshot is here.

        Return the number of deleted epochs. Raises DamagedFileError, OSError, KeeperClosedError.
        """
        return await self._beside(partial(self.archive.trim, epoch))

    async def adopt(self, records: Iterable[Archived]) -> None:
        """Archive epochs that another replica sent.

        Raises DamagedFileError, ValueError, OSError, KeeperClosedError.
        """
        await self._beside(partial(self.archive.segments.adopt, records))

    async def set_aside_up_to(self, epoch: int) -> int:
        """Set aside the contiguous epochs to ``epoch``, which are not in the log.

        Return their number. Raises DamagedFileError, OSError, KeeperClosedError.
        """
        return await self._beside(partial(self.archive.set_aside_up_to, epoch))

    async def _beside(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the writing thread.

        Raises KeeperClosedError, and the errors of ``work``.
        """
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
            self._due.append(_DueSnapshot(image, head, decided, is_asked(epoch)))

    def _write_last(self) -> None:
        if self._failed:
            return
        self._write_some()
        while self._waiting:
            self._write_some()
        self.archive.segments.seal()

    def _write_some(self) -> None:
        """Write a batch in the thread.

        Raises OSError; after the first failure nothing more is written.
        """
        if self._failed:
            raise OSError(FAILED)
        segments = self.archive.segments
        enough_bytes = self._written_bytes + MOST_AT_ONCE_BYTES
        try:
            while self._waiting and self._written_bytes < enough_bytes:
                record = self._waiting.popleft()
                self._written_bytes += RECORD_BYTES + len(record.value)
                segments.add(record)
            # Sync before the counter moves: `written` promises that these bytes survive a crash.
            self.last = segments.sync()
            self._synced_bytes = self._written_bytes
            self._write_snapshots()
        except BaseException:
            self._failed = True
            raise

    def _write_snapshots(self) -> None:
        is_written = False
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
            is_written = True
        if is_written:
            self._forget()

    def _forget(self) -> None:
        snapshots = self.archive.snapshots
        kept = {each.head.epoch: each for each in snapshots.all()}
        for epoch in forgotten([*kept], self._snapshots_kept, needed=self.needed):
            snapshots.forget(kept[epoch])


def _as_it_is_now(facts: Iterable[AnyFact]) -> Iterable[AnyFact]:
    """Return the facts of this moment. The newest decisions are in a table that still grows.

    The first fact is therefore taken now; the thread takes the others.
    """
    rest = iter(facts)
    return itertools.chain([*itertools.islice(rest, 1)], rest)
