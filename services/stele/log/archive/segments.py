"""Segments: all epochs of a log in files. The newest file is open and grows.

A full segment is sealed, and its name contains its first and last epochs. A segment that a crash
left open is sealed at the next start, without a block that the crash tore. Segments may overlap.
They may have gaps while other replicas send the missing epochs. Reads never cross a gap.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import IO, Final, NamedTuple

from stele.log.archive.container import (
    SCHEMA,
    SYNC,
    Archived,
    Block,
    Container,
    ContainerWriter,
    DamagedFileError,
    EpochSpan,
    NotArchivedError,
    as_container,
    check_follows,
    encoded,
    joined,
    read,
    renamed_aside,
    swept,
    sync_file,
    sync_folder,
    whole_bytes,
    whole_file,
)

DIGITS: Final = 20
OPEN: Final = "open"
DAMAGED: Final = ".damaged"
LOST: Final = ".lost"


class Segment:
    """A file of epochs ``first`` to ``last``. The positions of its blocks are read once."""

    def __init__(self, first: int, last: int, path: Path) -> None:
        self.first = first
        self.last = last
        self.path = path
        self.blocks: list[Block] = []
        self.firsts: list[int] = []
        """First epoch of each block."""

    def locate(self) -> None:
        """Read the positions of the blocks. Raises DamagedFileError."""
        if self.blocks:
            return
        with self.path.open("rb") as file:
            blocks = list(Container(file, SCHEMA).blocks())
        firsts = [self.first]
        for block in blocks:
            firsts.append(firsts[-1] + block.records)
        if firsts[-1] != self.last + 1:
            raise DamagedFileError(f"{self.path} ends with epoch {firsts[-1] - 1}")
        self.blocks, self.firsts = blocks, firsts[:-1]

    def read(self, first: int) -> Iterator[Archived]:
        """Yield the epochs from ``first`` on. Raises DamagedFileError."""
        self.locate()
        at = bisect_right(self.firsts, first) - 1
        try:
            with self.path.open("rb") as file:
                for record in read(Container(file, SCHEMA), self.blocks[at:]):
                    if first <= record.epoch <= self.last:
                        yield record
        except DamagedFileError as error:
            raise DamagedFileError(f"{self.path}: {error}") from error


def up_to(segment: Segment, first: int, last: int) -> list[Archived]:
    """Return a segment's epochs from ``first`` to ``last``.

    Raises DamagedFileError, also when the file is missing.
    """
    try:
        return [*takewhile(lambda record: record.epoch <= last, segment.read(first))]
    except OSError as error:
        raise DamagedFileError(f"{segment.path}: {error}") from error


def whole_runs(path: Path) -> list[list[Archived]]:
    """Return the readable records of a damaged file, as runs of consecutive epochs."""
    runs = list[list[Archived]]()
    with suppress(DamagedFileError), path.open("rb") as file:
        container = Container(file, SCHEMA)
        for block in container.salvaged():
            with suppress(DamagedFileError):
                for record in [*read(container, [block])]:
                    if not runs or not _follows(runs[-1][-1], record):
                        runs.append([])
                    runs[-1].append(record)
    return runs


def _follows(before: Archived, record: Archived) -> bool:
    return (before.epoch + 1, before.links[1]) == (record.epoch, record.links[0])


class OpenSegment:
    """The segment that grows. Records in ``pending`` are not in the file yet."""

    def __init__(self, folder: Path, first: int) -> None:
        self.path = folder / f"{first:0{DIGITS}}-{OPEN}.avro"
        self.file: IO[bytes] = self.path.open("w+b")
        self.writer = ContainerWriter(self.file, SCHEMA, {}, SYNC)
        self.segment = Segment(first, first - 1, self.path)
        self.pending: list[Archived] = []
        self.size_bytes = 0

    @property
    def next_epoch(self) -> int:
        return self.segment.last + len(self.pending) + 1


class SegmentLimits(NamedTuple):
    """Limits at which a segment is full."""

    epochs: int = 65_536
    size_bytes: int = 64 * 1024 * 1024


class Segments:
    """The segments of a folder. One thread may add records while others read."""

    def __init__(self, folder: Path, limits: SegmentLimits = SegmentLimits()) -> None:  # noqa: B008
        self.damaged: list[str] = []
        """Paths of the files that were set aside, each with the reason."""
        self._folder = swept(folder)
        self._limits = limits
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._open: OpenSegment | None = None
        for path in sorted(folder.glob(f"*-{OPEN}.avro")):
            self._seal_left(path)
        self._sealed: list[Segment] = sorted(self._found(), key=attrgetter("first"))

    # -- what is there --

    def spans(self) -> list[EpochSpan]:
        """Return the spans of readable epochs, the oldest first, with neighbours joined."""
        with self._lock:
            return joined(EpochSpan(s.first, s.last) for s in self._all())

    @property
    def first(self) -> int:
        """The first epoch of the newest span; 0 when there are none."""
        spans = self.spans()
        return spans[-1].first if spans else 0

    @property
    def last(self) -> int:
        """The newest epoch on the disk; 0 when there is none."""
        with self._lock:
            return max((segment.last for segment in self._all()), default=0)

    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
        with self._lock:
            return sum(segment.path.stat().st_size for segment in self._all())

    def bytes_after(self, epoch: int) -> int | None:
        """Return about how many bytes the epochs after ``epoch`` take; None if some are missing."""
        spans = self.spans()
        if not spans or epoch >= spans[-1].last:
            return 0
        if spans[-1].first > epoch + 1:
            return None
        with self._lock:
            found = [(s.first, s.last, s.path) for s in self._all() if s.last > epoch]
        total = 0.0
        for first, last, path in found:
            share = min(1.0, (last - epoch) / (last - first + 1))
            total += share * path.stat().st_size
        return int(total)

    # -- reading --

    def read(self, first: int) -> Iterator[Archived]:
        """Yield every epoch from ``first`` on, up to the newest or the next gap.

        Raises NotArchivedError when ``first`` is missing although a later epoch exists. Raises
        DamagedFileError; damaged epochs are missing from then on.
        """
        following, before = first, None
        while True:
            segment = self._with(following)
            if segment is None:
                if following == first and first <= self.last:
                    raise NotArchivedError(first)
                return
            try:
                for record in self._read(segment, following):
                    check_follows(before, record)
                    before, following = record, record.epoch + 1
                    yield record
            except FileNotFoundError as error:
                # Another thread may have sealed or trimmed the segment: read on in the file that
                # holds the epoch now. If it is still the same file, it was deleted by others.
                if self._with(following) is segment:
                    self.forget_deleted()
                    raise DamagedFileError(f"{segment.path} was deleted") from error

    def at_time(self, at_ms: int) -> int:
        """Return the first epoch not before ``at_ms``; one more than the newest if there is none.

        The bisection assumes that the writers' clocks were in order. Raises DamagedFileError.
        """
        with self._lock:
            segments = list(self._all())
        if not segments:
            return 1
        low, high = segments[0].first, segments[-1].last + 1
        while low < high:
            middle = (low + high) // 2
            try:
                found = next(self.read(middle), None)
            except NotArchivedError:  # in a gap: continue behind it
                low = middle + 1
                continue
            if found is None or found.at_ms >= at_ms:
                high = middle
            else:
                low = middle + 1
        return low

    # -- writing --

    def add(self, record: Archived) -> None:
        """Add the next epoch, or the first of a new span. It is on the disk after ``sync``."""
        if self._open is not None and record.epoch != self._open.next_epoch:
            self.seal()
        if self._open is None:
            with self._lock:
                self._open = OpenSegment(self._folder, record.epoch)
        self._open.pending.append(record)
        self._open.size_bytes += len(record.value)

    def sync(self) -> int:
        """Write the added epochs to the disk; return the newest epoch there. Raises OSError."""
        opened = self._open
        if opened is not None and opened.pending:
            records, begin = opened.pending, opened.file.seek(0, os.SEEK_END)
            opened.writer.block([encoded(record) for record in records])
            sync_file(opened.file)
            if not opened.path.exists():  # writes to a deleted file succeed, but are lost
                raise FileNotFoundError(f"{opened.path} was deleted while it was written to")
            if not opened.segment.blocks:
                sync_folder(self._folder)
            # Readers see the block only now: an epoch that they read must survive a crash.
            with self._lock:
                segment = opened.segment
                segment.blocks.append(Block(begin, opened.file.tell(), len(records)))
                segment.firsts.append(records[0].epoch)
                segment.last = records[-1].epoch
                opened.pending = []
            epochs = segment.last - segment.first + 1
            if epochs >= self._limits.epochs or opened.size_bytes >= self._limits.size_bytes:
                self.seal()
        return self.last

    def seal(self) -> None:
        """Seal the open segment, with the added epochs on the disk. Raises OSError."""
        opened = self._open
        if opened is None:
            return
        if opened.pending:
            self.sync()
            if self._open is None:  # ``sync`` seals a segment that became full
                return
        opened.file.close()
        # The open file is deleted last: until the sealed copy is on the disk, it is the only one.
        if opened.segment.blocks:
            self._replace(None, self._write(opened.segment.read(opened.segment.first)))
        self._open = None
        opened.path.unlink()

    def adopt(self, records: Iterable[Archived]) -> EpochSpan:
        """Store consecutive epochs of another replica in a new segment; return their span.

        Raises DamagedFileError when they are not consecutive, ValueError when there are none,
        OSError.
        """
        sealed = self._write(records)
        self._replace(None, sealed)
        return EpochSpan(sealed.first, sealed.last)

    def forget_deleted(self) -> int:
        """Forget sealed segments whose files were deleted by others; return how many."""
        with self._lock:
            gone = [segment for segment in self._sealed if not segment.path.exists()]
            self._sealed = [segment for segment in self._sealed if segment not in gone]
        self.damaged += (f"{segment.path}: it was deleted" for segment in gone)
        return len(gone)

    def trim(self, epoch: int) -> int:
        """Delete the epochs before ``epoch``; return how many.

        The segment that contains ``epoch`` is replaced by one that begins there. Raises
        DamagedFileError, OSError.
        """
        gone = sum(min(s.last, epoch - 1) - s.first + 1 for s in self.spans() if s.first < epoch)
        if self._open is not None and self._open.segment.first < epoch:
            self.seal()
        with self._lock:
            cut = [each for each in self._sealed if each.first < epoch <= each.last]
        for segment in cut:
            self._replace(segment, self._write(self._read(segment, epoch)))
            segment.path.unlink(missing_ok=True)
        with self._lock:
            old = [segment for segment in self._sealed if segment.last < epoch]
            self._sealed = [segment for segment in self._sealed if segment.last >= epoch]
        for segment in old:
            segment.path.unlink(missing_ok=True)
        return gone

    def set_aside(self, span: EpochSpan) -> int:
        """Move the epochs of ``span`` into ``*.lost`` files, which are not read; return how many.

        The change is on the disk when it returns. Raises DamagedFileError, OSError.
        """
        self.seal()
        with self._lock:
            touched = [s for s in self._sealed if s.first <= span.last and span.first <= s.last]
        lost = set[int]()
        for segment in touched:
            records = [*self._read(segment, segment.first)]
            before = [record for record in records if record.epoch < span.first]
            after = [record for record in records if record.epoch > span.last]
            lost.update(record.epoch for record in records[len(before) : len(records) - len(after)])
            # The epochs outside of the span are written first, so that no crash can lose them.
            self._replace(segment, *(self._write(kept) for kept in (before, after) if kept))
            renamed_aside(segment.path, LOST)
        if touched:
            sync_folder(self._folder)
        return len(lost)

    def lost(self) -> list[Segment]:
        """Return the segments that were set aside, to check if they were lost after all."""
        return [*self._found(LOST)]

    # -- inside --

    def _all(self) -> Iterator[Segment]:
        yield from self._sealed
        if self._open is not None and self._open.segment.blocks:
            yield self._open.segment

    def _replace(self, segment: Segment | None, *by: Segment) -> None:
        with self._lock:
            rest = [each for each in self._sealed if each is not segment]
            self._sealed = sorted([*rest, *by], key=attrgetter("first"))

    def _with(self, epoch: int) -> Segment | None:
        """Return the segment with this epoch that ends last; None if there is none."""
        with self._lock:
            found = [s for s in self._all() if s.first <= epoch <= s.last]
        return max(found, key=attrgetter("last"), default=None)

    def _read(self, segment: Segment, first: int) -> Iterator[Archived]:
        try:
            yield from segment.read(first)
        except DamagedFileError as error:
            self._give_up(segment, str(error))
            raise

    def _give_up(self, segment: Segment, why: str) -> None:
        """Set a damaged sealed segment aside, and keep its readable epochs. The rest is missing."""
        with self._lock:
            if segment not in self._sealed:
                return
            self._sealed.remove(segment)
        self._replace(None, *self._set_damaged_aside(segment.path, why))

    # -- files --

    def _write(self, records: Iterable[Archived]) -> Segment:
        """Write a sealed segment of the records; return it. Raises ValueError if there are none.

        It gets its name at the end, when its first and last epochs are known.
        """
        unnamed = self._folder / "segment.avro"
        first = 0

        def noted() -> Iterator[Archived]:
            nonlocal first
            for record in records:
                first = first or record.epoch
                yield record

        with self._writing:
            with whole_file(unnamed) as file:
                last = as_container(file, noted())
            if last is None:
                unnamed.unlink()
                raise ValueError("there are no epochs to keep")
            path = self._folder / f"{first:0{DIGITS}}-{last.epoch:0{DIGITS}}.avro"
            unnamed.replace(path)
            sync_folder(self._folder)
            return Segment(first, last.epoch, path)

    def _found(self, suffix: str = "") -> Iterator[Segment]:
        """Yield the sealed segments, or those that were renamed to end with ``suffix``."""
        for path in self._folder.glob(f"*.avro{suffix}"):
            first, _, last = path.name.partition(".")[0].partition("-")
            if first.isdecimal() and last.isdecimal():
                yield Segment(int(first), int(last), path)

    def _seal_left(self, path: Path) -> None:
        """Seal a segment that a process left open, without a block that the crash tore."""
        if not path.stat().st_size:
            path.unlink()  # the process ended before its first epoch was written
            return
        try:
            end = whole_bytes(path, SCHEMA)
            with path.open("r+b") as file:
                file.truncate(end)
                blocks = Container(file, SCHEMA)
                records = list(read(blocks, blocks.blocks()))
            if records:
                self._write(records)
            path.unlink()
        except DamagedFileError as error:
            self._set_damaged_aside(path, str(error))

    def _set_damaged_aside(self, path: Path, why: str) -> list[Segment]:
        """Rename a damaged file, and write its whole blocks as new segments; return these."""
        aside = renamed_aside(path, DAMAGED)
        self.damaged.append(f"{path}: {why}")
        return [self._write(run) for run in whole_runs(aside)]
