"""Segments: all epochs of a log in files, the newest of which is open and grows.

A segment is sealed when it is full; its name says which epochs it has. What a crash left of an open one is
sealed at the next start, but for a block that it tore. Segments may overlap, and have gaps between them while
others are asked for what is missing: nothing is ever read across a gap.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from stele.log.archive.container import Block, DamagedFileError
from stele.log.archive.files import renamed_aside, sync_file, sync_folder
from stele.log.archive.records import Archived, check_follows, encoded
from stele.log.archive.segment import OpenSegment, Segment
from stele.log.archive.segment_files import SegmentFiles
from stele.log.archive.spans import NotArchivedError, Span, joined

LOST: Final = ".lost"


class Limits(NamedTuple):
    """When a segment is full."""

    epochs: int = 65_536
    size_bytes: int = 64 * 1024 * 1024


class Segments:
    """The segments of a folder. One thread may add while others read."""

    def __init__(self, folder: Path, limits: Limits = Limits()) -> None:  # noqa: B008
        self._files = SegmentFiles(folder)
        self._limits = limits
        self._lock = threading.Lock()
        self._open: OpenSegment | None = None
        self._sealed: list[Segment] = sorted(self._files.found(), key=attrgetter("first"))

    # -- what is there --

    @property
    def damaged(self) -> list[str]:
        """Files that were set aside, and why."""
        return self._files.damaged

    def spans(self) -> list[Span]:
        """What can be read, the oldest first; neighbours are joined."""
        with self._lock:
            return joined(Span(s.first, s.last) for s in self._all())

    @property
    def first(self) -> int:
        """The first epoch from which all are there up to the newest; 0 when there are none."""
        spans = self.spans()
        return spans[-1].first if spans else 0

    @property
    def last(self) -> int:
        """The newest epoch that is on the disk; 0 when there is none."""
        with self._lock:
            return max((segment.last for segment in self._all()), default=0)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        with self._lock:
            return sum(segment.path.stat().st_size for segment in self._all())

    def bytes_after(self, epoch: int) -> int | None:
        """About how many bytes of files the epochs after this one take; None when some of them are missing."""
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
        """Every epoch from ``first`` on, until the newest or the next gap.

        Raises NotArchivedError when ``first`` is not there though others are, and DamagedFileError: what is
        damaged is missing from then on.
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
            except FileNotFoundError as error:  # sealed or trimmed meanwhile: look where it is
                if self._with(following) is segment:
                    self.forget_deleted()
                    raise DamagedFileError(f"{segment.path} was deleted") from error

    def at_time(self, at_ms: int) -> int:
        """The first epoch whose time is not before ``at_ms``, as far as the writers' clocks were in order; one
        more than the newest when there is none. Raises DamagedFileError.
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
            except NotArchivedError:
                low = middle + 1
                continue
            if found is None or found.at_ms >= at_ms:
                high = middle
            else:
                low = middle + 1
        return low

    # -- writing --

    def add(self, record: Archived) -> None:
        """The next epoch, or the first of a new span; it is on the disk after ``sync``."""
        if self._open is not None and record.epoch != self._open.next_epoch:
            self.seal()
        if self._open is None:
            with self._lock:
                self._open = OpenSegment(self._files.folder, record.epoch)
        self._open.pending.append(record)
        self._open.size_bytes += len(record.value)

    def sync(self) -> int:
        """Put what was added on the disk; the newest epoch that is there. Raises OSError."""
        opened = self._open
        if opened is not None and opened.pending:
            records, begin = opened.pending, opened.file.seek(0, os.SEEK_END)
            opened.writer.block([encoded(record) for record in records])
            sync_file(opened.file)
            if not opened.path.exists():
                raise FileNotFoundError(f"{opened.path} was deleted while it was written to")
            if not opened.segment.blocks:
                sync_folder(self._files.folder)
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
        """End the open segment; what was added is on the disk then. Raises OSError."""
        opened = self._open
        if opened is None:
            return
        if opened.pending:
            self.sync()
            if self._open is None:
                return
        opened.file.close()
        if opened.segment.blocks:
            sealed = self._files.write(opened.segment.read(opened.segment.first))
            with self._lock:
                self._sealed.append(sealed)
                self._sealed.sort(key=attrgetter("first"))
                self._open = None
        self._open = None
        opened.path.unlink()

    def adopt(self, records: Iterable[Archived]) -> Span:
        """Keep epochs that another replica has given, in a segment of their own. They follow one another.

        Raises DamagedFileError when they do not, ValueError when there are none, OSError.
        """
        sealed = self._files.write(records)
        with self._lock:
            self._sealed.append(sealed)
            self._sealed.sort(key=attrgetter("first"))
        return Span(sealed.first, sealed.last)

    def forget_deleted(self) -> int:
        """Sealed segments whose files somebody has deleted are not here any more; how many."""
        with self._lock:
            gone = [segment for segment in self._sealed if not segment.path.exists()]
            self._sealed = [segment for segment in self._sealed if segment not in gone]
        self._files.damaged += (f"{segment.path}: it was deleted" for segment in gone)
        return len(gone)

    def forget_before(self, epoch: int) -> int:
        """Delete segments all of whose epochs are before ``epoch``; how many."""
        with self._lock:
            gone = [segment for segment in self._sealed if segment.last < epoch]
            self._sealed = [segment for segment in self._sealed if segment.last >= epoch]
        for segment in gone:
            segment.path.unlink(missing_ok=True)
        return len(gone)

    def trim(self, epoch: int) -> int:
        """Delete the epochs before ``epoch``; how many. The segment that it is in is written anew from there.

        Raises DamagedFileError, OSError.
        """
        gone = sum(min(s.last, epoch - 1) - s.first + 1 for s in self.spans() if s.first < epoch)
        if self._open is not None and self._open.segment.first < epoch:
            self.seal()
        with self._lock:
            cut = [each for each in self._sealed if each.first < epoch <= each.last]
        for segment in cut:
            left = self._files.write(self._read(segment, epoch))
            with self._lock:
                self._sealed = [each for each in self._sealed if each is not segment] + [left]
                self._sealed.sort(key=attrgetter("first"))
            segment.path.unlink(missing_ok=True)
        self.forget_before(epoch)
        return gone

    def set_aside(self, span: Span) -> int:
        """Put the epochs of ``span`` into files that nobody reads, ``*.lost``; how many. They are there also
        after a power failure.

        Raises DamagedFileError, OSError.
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
            remaining = [self._files.write(kept) for kept in (before, after) if kept]
            with self._lock:
                self._sealed = [each for each in self._sealed if each is not segment] + remaining
                self._sealed.sort(key=attrgetter("first"))
            renamed_aside(segment.path, LOST)
        if touched:
            sync_folder(self._files.folder)
        return len(lost)

    def lost(self) -> list[Segment]:
        """What was set aside, for whoever can tell that it was not lost."""
        return [*self._files.found(LOST)]

    def close(self) -> None:
        """Put what was added on the disk, and end the open segment. Raises OSError."""
        self.seal()

    # -- inside --

    def _all(self) -> Iterator[Segment]:
        yield from self._sealed
        if self._open is not None and self._open.segment.blocks:
            yield self._open.segment

    def _with(self, epoch: int) -> Segment | None:
        """The segment with this epoch that goes on the longest."""
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
        """A sealed segment is damaged: what can be read of it is kept, the rest is missing."""
        with self._lock:
            if segment not in self._sealed:
                return
            self._sealed.remove(segment)
        kept = self._files.set_aside(segment.path, why)
        with self._lock:
            self._sealed = sorted([*self._sealed, *kept], key=attrgetter("first"))
