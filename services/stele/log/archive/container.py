"""Avro object container files: written with checks, found block by block, cut where a crash tore them.

The format is Avro's own, so any Avro library reads these files; the codec is ``zstandard``. A block is found
without unpacking those before it, since each begins with its count and its size.
"""

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from fastavro import reader as avro_reader
from fastavro.write import Writer

from stele.log.avro import read_long
from stele.log.schemas import header_of, load_schemas

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODEC: Final = "zstandard"
_COMPRESSION: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
"""Level 3 makes files of records a twentieth smaller and takes twice as long. What changed on the disk cannot
be unpacked.
"""
SYNC_BYTES: Final = 16
MAGIC: Final = b"Obj\x01"
_LONGEST_HEAD: Final = 24
"""Bytes of a block's count and size, and some more."""

_SEVEN_BITS: Final = 0x7F
_MORE: Final = 0x80

Record = dict[str, Any]


class DamagedFileError(Exception):
    """A file of the archive does not hold what was written; the text says where and why."""


class Block(NamedTuple):
    """Where a block stands in its file, how long it is with its marks, and how many records it has."""

    begin: int
    end: int
    records: int


class ContainerWriter:
    """Writes blocks of records of the schema ``name`` into ``file``; equal records give equal bytes.

    ``sync`` are the 16 bytes between blocks.
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
        head = long_bytes(len(encoded)) + long_bytes(len(packed))
        self._file.write(b"".join((head, packed, self._sync)))


def long_bytes(number: int) -> bytes:
    """A number in Avro's encoding."""
    rest = number << 1 if number >= 0 else (~number << 1) | 1
    out = bytearray()
    while rest > _SEVEN_BITS:
        out.append(rest & _SEVEN_BITS | _MORE)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class Container:
    """A container file of records of ``name``. Raises DamagedFileError where it is none."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        file.seek(0)
        if file.read(len(MAGIC)) != MAGIC:
            raise DamagedFileError("it does not begin as an Avro container file")
        file.seek(0)
        try:
            found = avro_reader(file)
        except Exception as error:  # whatever the bytes make of the library
            raise DamagedFileError(f"its header cannot be read: {error!r}") from error
        self.metadata: dict[str, str] = found.metadata
        if _kind_of(found.metadata["avro.schema"]) != name:
            raise DamagedFileError(f"it does not hold records of {name} by a schema that is known")
        self._sync: bytes = found._header["sync"]  # noqa: SLF001 - fastavro has no other name for it
        self.begin = file.tell()
        file.seek(0)
        self._header = file.read(self.begin)

    def blocks(self, begin: int = 0) -> Iterator[Block]:
        """All whole blocks from byte ``begin`` on; ends where the file ends, or where a block is torn."""
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
            if records <= 0 or size < 0 or end > file_end:
                return
            self._file.seek(end - SYNC_BYTES)
            if self._file.read(SYNC_BYTES) != self._sync:
                return
            yield Block(at, end, records)
            at = end

    def salvaged(self) -> Iterator[Block]:
        """All whole blocks, also those that stand behind a torn one: they begin behind the next mark."""
        at = self.begin
        while at:
            for block in self.blocks(at):
                yield block
                at = block.end
            at = self.mark_behind(at)

    def mark_behind(self, at: int) -> int:
        """Where the first mark from byte ``at`` on ends; 0 when none comes: nothing whole can follow."""
        self._file.seek(at)
        found = self._file.read().find(self._sync)
        return 0 if found < 0 else at + found + SYNC_BYTES

    def records(self, blocks: Iterable[Block]) -> Iterator[Record]:
        """The records of these blocks. Raises DamagedFileError."""
        for begin, end, count in blocks:
            self._file.seek(begin)
            raw = self._header + self._file.read(end - begin)
            try:
                found: list[Record] = list(avro_reader(io.BytesIO(raw)))
            except Exception as error:  # whatever the bytes make of the library
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
    """What records of this schema are; empty when it is not known. Its fingerprint takes half a millisecond."""
    kind, _ = load_schemas().by_header.get(header_of(json.loads(schema)), ("", None))
    return kind


def whole_bytes(path: Path, name: str) -> int:
    """How much of a file are whole blocks: the rest was torn by a crash.

    Raises DamagedFileError, also where blocks stand behind what is torn: a crash tears the last one alone.
    """
    with path.open("rb") as file:
        container = Container(file, name)
        end = max((block.end for block in container.blocks()), default=container.begin)
        if container.mark_behind(end):
            raise DamagedFileError(f"the block at byte {end} is damaged")
        return end
