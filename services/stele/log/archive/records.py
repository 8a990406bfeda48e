"""Winners as segments keep them: epoch, place in the topic, time, and the record as it stood there."""

import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import IO, Final, NamedTuple

from stele.log.archive.container import (
    Block,
    Container,
    ContainerWriter,
    DamagedFileError,
    Record,
    long_bytes,
)
from stele.log.chain import FROZEN

SCHEMA: Final = "ArchivedRecord"
BLOCK_EPOCHS: Final = 1000
BLOCK_BYTES: Final = 1024 * 1024
SYNC: Final = b"stele-segment-01"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Archived(NamedTuple):
    """A winner; ``at_ms`` is its writer's time, milliseconds since 1970."""

    epoch: int
    offset: int
    at_ms: int
    value: bytes

    @property
    def links(self) -> tuple[bytes, bytes]:
        """The state ids before and after it."""
        previous, state_id, *_ = FROZEN.unpack_from(self.value)
        return previous, state_id


def encoded(record: Archived) -> bytes:
    """In the encoding of ``ArchivedRecord``."""
    value = record.value
    numbers = (record.epoch, record.offset, record.at_ms, zlib.crc32(value), len(value))
    return b"".join((*map(long_bytes, numbers), value))


def read(container: Container, blocks: Iterable[Block]) -> Iterator[Archived]:
    """The records of these blocks. Raises DamagedFileError."""
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
    """Raises DamagedFileError when the record is not the next one after ``before``."""
    if before is None:
        return
    if record.epoch != before.epoch + 1:
        raise DamagedFileError(f"epoch {record.epoch} comes after epoch {before.epoch}")
    if record.links[0] != before.links[1]:
        raise DamagedFileError(f"epoch {record.epoch} does not follow from epoch {before.epoch}")


def as_container(
    file: IO[bytes], records: Iterable[Archived], metadata: Mapping[str, str] = _NONE
) -> Archived | None:
    """Write the records, which follow one another, into ``file``; the last of them, None when there were none.

    Raises DamagedFileError when they do not.
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
    """The records that ``as_container`` wrote. Raises DamagedFileError."""
    return records_of(Container(io.BytesIO(content), SCHEMA))


def records_of(container: Container) -> list[Archived]:
    """All of them. Raises DamagedFileError."""
    found, last = list[Archived](), None
    for record in read(container, container.blocks()):
        check_follows(last, record)
        last = record
        found.append(record)
    return found
