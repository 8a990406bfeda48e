"""The files of segments in a folder: written whole, found again, sealed where a process left one open, and set
aside where they are damaged.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from stele.log.archive.container import Container, DamagedFileError, whole_bytes
from stele.log.archive.files import renamed_aside, swept, sync_folder, whole_file
from stele.log.archive.records import SCHEMA, Archived, as_container, read
from stele.log.archive.segment import DIGITS, OPEN, Segment, whole_runs

DAMAGED: Final = ".damaged"


class SegmentFiles:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self.damaged: list[str] = []
        """Files that were set aside, and why."""
        self.folder = swept(folder)
        self._writing = threading.Lock()
        for path in sorted(folder.glob(f"*-{OPEN}.avro")):
            self.seal_left(path)

    def write(self, records: Iterable[Archived]) -> Segment:
        """A sealed segment of these. It is named once it is known which they are."""
        with self._writing:
            return self._written(records)

    def _written(self, records: Iterable[Archived]) -> Segment:
        unnamed = self.folder / "segment.avro"
        first = 0

        def noted() -> Iterator[Archived]:
            nonlocal first
            for record in records:
                first = first or record.epoch
                yield record

        with whole_file(unnamed) as file:
            last = as_container(file, noted())
        if last is None:
            unnamed.unlink()
            raise ValueError("there are no epochs to keep")
        path = self.folder / f"{first:0{DIGITS}}-{last.epoch:0{DIGITS}}.avro"
        unnamed.replace(path)
        sync_folder(self.folder)
        return Segment(first, last.epoch, path)

    def seal_left(self, path: Path) -> None:
        """What a process left open when it ended."""
        if not path.stat().st_size:
            path.unlink()  # it ended before the first epoch was there
            return
        try:
            end = whole_bytes(path, SCHEMA)
            with path.open("r+b") as file:
                file.truncate(end)
                blocks = Container(file, SCHEMA)
                records = list(read(blocks, blocks.blocks()))
            if records:
                self.write(records)
            path.unlink()
        except DamagedFileError as error:
            self.set_aside(path, str(error))

    def found(self, suffix: str = "") -> Iterator[Segment]:
        """Sealed ones, or those that were renamed to end with ``suffix``."""
        for path in self.folder.glob(f"*.avro{suffix}"):
            first, _, last = path.name.partition(".")[0].partition("-")
            if first.isdecimal() and last.isdecimal():
                yield Segment(int(first), int(last), path)

    def set_aside(self, path: Path, why: str) -> list[Segment]:
        """Nobody reads the file any more; its whole blocks are kept as segments of their own."""
        aside = renamed_aside(path, DAMAGED)
        self.damaged.append(f"{path}: {why}")
        return [self.write(run) for run in whole_runs(aside)]
