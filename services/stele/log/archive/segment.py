"""One segment: a file of epochs that follow one another, sealed or still growing."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Final

from stele.log.archive.container import Block, Container, ContainerWriter, DamagedFileError
from stele.log.archive.records import SCHEMA, SYNC, Archived, read

DIGITS: Final = 20
OPEN: Final = "open"


class Segment:
    """A file of epochs ``first`` to ``last``; where its blocks are is looked up once."""

    def __init__(self, first: int, last: int, path: Path) -> None:
        self.first = first
        self.last = last
        self.path = path
        self.blocks: list[Block] = []
        self.firsts: list[int] = []

    def locate(self) -> None:
        """Raises DamagedFileError."""
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
        """From ``first`` on. Raises DamagedFileError."""
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
    """Its epochs from ``first`` to ``last``. Raises DamagedFileError, also when its file is not there now."""
    try:
        return [*takewhile(lambda record: record.epoch <= last, segment.read(first))]
    except OSError as error:
        raise DamagedFileError(f"{segment.path}: {error}") from error


def whole_runs(path: Path) -> list[list[Archived]]:
    """What can be read of a damaged file, cut wherever something is missing."""
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
    """The segment that grows: ``pending`` is not in the file yet."""

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
