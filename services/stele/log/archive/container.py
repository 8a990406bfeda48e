"""Spans of consecutive epochs, and the gaps between them."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple, Protocol, runtime_checkable

from fastavro import reader as avro_reader
from fastavro.write import Writer

from stele.log.avro import read_long
from stele.log.avro_writer import write_bytes, write_long
from stele.log.chain import FROZEN
from stele.log.schemas import header_of, load_schemas

LAST_EPOCH: Final = 1 << 62
"""The last epoch of a span without an end."""


class NotArchivedError(LookupError):
    """An epoch is missing: it is before the first one, or in a gap."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        super().__init__(f"Epoch {epoch} is not in this archive.")


class EpochSpan(NamedTuple):
    """Epochs ``first`` to ``last``, both included."""

    first: int
    last: int


def joined(spans: Iterable[EpochSpan]) -> list[EpochSpan]:
    """Return ordered spans without overlaps, with neighbours joined."""
    found = list[EpochSpan]()
    for first, last in sorted(spans):
        if found and first <= found[-1].last + 1:
            found[-1] = EpochSpan(found[-1].first, max(last, found[-1].last))
        else:
            found.append(EpochSpan(first, last))
    return found


def gaps(spans: Iterable[EpochSpan]) -> list[EpochSpan]:
    """Return the gaps between spans."""
    found = joined(spans)
    return [EpochSpan(a.last + 1, b.first - 1) for a, b in itertools.pairwise(found)]


# Avro object container files: written with checksums, read by block, truncated after a crash.
#
# The format is Avro's own (Apache Avro Specification, "Object Container Files"), so any Avro
# library reads these files. The codec is ``zstandard``. A reader finds a block without unpacking
# those before it, because each one begins with its count and its size.


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODEC: Final = "zstandard"
_COMPRESSION: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
"""Parameters of the compression. Level 3 makes files of records 5 % smaller and takes twice as
long. The checksum detects bytes that have changed on the disk.
"""
SYNC_BYTES: Final = 16
MAGIC: Final = b"Obj\x01"
_LONGEST_HEAD: Final = 24
"""Most bytes of a block's count and size, and a few more."""

Record = dict[str, Any]


class DamagedFileError(Exception):
    """A file of the archive is not as it was written. The text gives place and reason."""


class Block(NamedTuple):
    """A block of a file: its first byte, the byte after its sync mark, its number of records."""

    begin: int
    end: int
    records: int


class ContainerWriter:
    """Writes blocks of records of the schema ``name`` into ``file``.

    Equal records give equal bytes. ``sync`` is the mark of 16 bytes after each block.
    """

    def __init__(
        self, file: IO[bytes], name: str, metadata: Mapping[str, str], sync: bytes
    ) -> None:
        assert len(sync) == SYNC_BYTES
        self._file = file
        self._sync = sync
        schema = load_schemas().newest[name]
        Writer(file, schema, codec=CODEC, metadata=dict(metadata), sync_marker=sync)  # the header

    def block(self, encoded: Sequence[bytes]) -> None:
        """Write a block of these records, each in its schema's encoding."""
        packed = zstd.compress(b"".join(encoded), options=_COMPRESSION)
        head = bytearray()
        write_long(head, len(encoded))
        write_long(head, len(packed))
        self._file.write(b"".join((head, packed, self._sync)))


class Container:
    """A container file of records of ``name``. Raises DamagedFileError for any other file."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        file.seek(0)
        if file.read(len(MAGIC)) != MAGIC:
            raise DamagedFileError("it does not begin as an Avro container file")
        file.seek(0)
        try:
            found = avro_reader(file)
        except Exception as error:  # damaged bytes can raise anything in the library
            raise DamagedFileError(f"its header cannot be read: {error!r}") from error
        self.metadata: dict[str, str] = found.metadata
        if _kind_of(found.metadata["avro.schema"]) != name:
            raise DamagedFileError(f"it does not hold records of {name} by a schema that is known")
        self._sync: bytes = found._header["sync"]  # noqa: SLF001 - fastavro has no other name for it
        self.begin = file.tell()
        file.seek(0)
        self._header = file.read(self.begin)

    def blocks(self, begin: int = 0) -> Iterator[Block]:
        """Yield the whole blocks from byte ``begin`` on, up to the file's end or a torn block."""
        at, file_end = begin or self.begin, self._file.seek(0, os.SEEK_END)
        while True:
            self._file.seek(at)
            head = self._file.read(_LONGEST_HEAD)
            try:
                records, place = read_long(head, 0)
                size, place = read_long(head, place)
            except (IndexError, ValueError):
                return
            end = at + place + size + SYNC_BYTES
            # Count and size may be garbage: they count only with the sync mark behind the block.
            if records <= 0 or size < 0 or end > file_end:
                return
            self._file.seek(end - SYNC_BYTES)
            if self._file.read(SYNC_BYTES) != self._sync:
                return
            yield Block(at, end, records)
            at = end

    def salvaged(self) -> Iterator[Block]:
        """Yield all whole blocks. The search continues behind the next mark after a torn block."""
        at = self.begin
        while at:
            for block in self.blocks(at):
                yield block
                at = block.end
            at = self.mark_behind(at)

    def mark_behind(self, at: int) -> int:
        """Return the end of the first mark from byte ``at`` on; 0 if no whole block can follow."""
        self._file.seek(at)
        found = self._file.read().find(self._sync)
        return 0 if found < 0 else at + found + SYNC_BYTES

    def records(self, blocks: Iterable[Block]) -> Iterator[Record]:
        """Yield the records of the blocks. Raises DamagedFileError."""
        for begin, end, count in blocks:
            self._file.seek(begin)
            raw = self._header + self._file.read(end - begin)
            try:
                found: list[Record] = list(avro_reader(io.BytesIO(raw)))
            except Exception as error:  # damaged bytes can raise anything in the library
                raise DamagedFileError(
                    f"the block at byte {begin} is damaged: {error!r}"
                ) from error
            if len(found) != count:
                raise DamagedFileError(
                    f"the block at byte {begin} has {len(found)} records, not {count}"
                )
            yield from found


@lru_cache(maxsize=64)
def _kind_of(schema: str) -> str:
    """Return the record name of a schema; empty if it is unknown. A fingerprint takes 0.5 ms."""
    kind, _ = load_schemas().by_header.get(header_of(json.loads(schema)), ("", None))
    return kind


def whole_bytes(path: Path, name: str) -> int:
    """Return the size of a file's whole blocks, in bytes. The rest was torn by a crash.

    Raises DamagedFileError, also for whole blocks behind a torn one: a crash tears only the last
    one.
    """
    with path.open("rb") as file:
        container = Container(file, name)
        end = max((block.end for block in container.blocks()), default=container.begin)
        if container.mark_behind(end):
            raise DamagedFileError(f"the block at byte {end} is damaged")
        return end


# Winners in the form of segments: epoch, offset in the topic, time, and the unchanged record.


SCHEMA: Final = "ArchivedRecord"
BLOCK_EPOCHS: Final = 1000
BLOCK_BYTES: Final = 1024 * 1024
SYNC: Final = b"stele-segment-01"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Archived(NamedTuple):
    """A winner. ``at_ms`` is the time on its writer's clock, in milliseconds since 1970."""

    epoch: int
    offset: int
    at_ms: int
    value: bytes

    @property
    def links(self) -> tuple[bytes, bytes]:
        """The state ids before and after this epoch."""
        previous, state_id, *_ = FROZEN.unpack_from(self.value)
        return previous, state_id


def encoded(record: Archived) -> bytes:
    """Return a record in the encoding of the schema ``ArchivedRecord``."""
    value = record.value
    out = bytearray()
    for number in (record.epoch, record.offset, record.at_ms, zlib.crc32(value)):
        write_long(out, number)
    write_bytes(out, value)
    return bytes(out)


def read(container: Container, blocks: Iterable[Block]) -> Iterator[Archived]:
    """Yield the records of the blocks, each checked. Raises DamagedFileError."""
    for record in container.records(blocks):
        yield _checked(record)


def _checked(record: Record) -> Archived:
    epoch, value = record["epoch"], record["value"]
    if zlib.crc32(value) != record["crc32"] or len(value) < FROZEN.size:
        raise DamagedFileError(f"epoch {epoch} is damaged")
    if FROZEN.unpack_from(value)[4] != epoch:
        raise DamagedFileError(f"a record of another epoch stands where {epoch} should")
    return Archived(epoch, record["offset"], record["at_ms"], value)


def check_follows(before: Archived | None, record: Archived) -> None:
    """Raise DamagedFileError if ``before`` is given and the record does not directly follow it."""
    if before is None:
        return
    if record.epoch != before.epoch + 1:
        raise DamagedFileError(f"epoch {record.epoch} comes after epoch {before.epoch}")
    if record.links[0] != before.links[1]:
        raise DamagedFileError(f"epoch {record.epoch} does not follow from epoch {before.epoch}")


def as_container(
    file: IO[bytes], records: Iterable[Archived], metadata: Mapping[str, str] = _NONE
) -> Archived | None:
    """Write consecutive records into ``file``; return the last one, or None if there are none.

    Raises DamagedFileError when a record does not follow the one before it.
    """
    writer, block, size = ContainerWriter(file, SCHEMA, metadata, SYNC), list[bytes](), 0
    last: Archived | None = None
    for record in records:
        check_follows(last, record)
        last = record
        block.append(encoded(record))
        size += len(record.value)
        if len(block) >= BLOCK_EPOCHS or size >= BLOCK_BYTES:
            writer.block(block)
            block, size = [], 0
    if block:
        writer.block(block)
    return last


def from_container(content: bytes) -> list[Archived]:
    """Return the records that ``as_container`` wrote. Raises DamagedFileError."""
    return records_of(Container(io.BytesIO(content), SCHEMA))


def records_of(container: Container) -> list[Archived]:
    """Return all records of a container. Raises DamagedFileError."""
    found, last = list[Archived](), None
    for record in read(container, container.blocks()):
        check_follows(last, record)
        last = record
        found.append(record)
    return found


# Atomic files: after a power failure, a file is whole or absent.


UNFINISHED: Final = ".unfinished"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write ``path`` in a with-block. On success the file gets its name when it is on disk."""
    # The order matters: sync the content, rename, sync the folder. A rename before the content is
    # on disk could leave an empty file of this name after a power failure.
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with unfinished.open("w+b") as file:
            yield file
            sync_file(file)
        unfinished.replace(path)
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


@runtime_checkable
class Synced(Protocol):
    """A file or folder that is not the operating system's, and has a ``sync`` for its own disk."""

    def sync(self) -> None: ...


def sync_file(file: IO[bytes]) -> None:
    """Flush a file to the disk."""
    file.flush()
    if isinstance(file, Synced):
        file.sync()
    else:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    if isinstance(folder, Synced):
        folder.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def renamed_aside(path: Path, suffix: str) -> Path:
    """Rename a file to end with ``suffix``, so that it is not read any more; return the new path.

    An existing file of that name stays. The new one then gets a number, as in ``7-9.2.avro.lost``.
    """
    stem, _, ending = path.name.partition(".")
    aside, number = path.with_name(path.name + suffix), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{stem}.{number}.{ending}{suffix}")
    return path.replace(aside)


def swept(folder: Path) -> Path:
    """Create a folder if necessary, delete unfinished files that a crash left, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"*{UNFINISHED}"):
        path.unlink()
    return folder
