"""The bytes of records, as witnesses read them from the topic and from the disks of archives."""

import io
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from stele.log.archive.container import Container, DamagedFileError
from stele_simulator.processes.disk import Disk

ZERO: Final = bytes(16)
HEAD: Final = Struct(">10x16s16s16s16sQQ")
"""The first 90 bytes of a record: ids before and after, of the log and of the witness; epoch and witness."""


class Known(NamedTuple):
    """A record that was in the topic once."""

    previous: bytes
    epoch: int
    log_id: bytes
    value: bytes


def segments(disk: Disk) -> Iterator[bytes]:
    """An archive's files, as a power failure leaves them."""
    for name, content in disk.on_platter.items():
        if name.startswith("/data/segments/") and name.endswith(".avro"):
            yield content.synced


@lru_cache(maxsize=512)
def states_in(content: bytes) -> dict[int, bytes]:
    """State ids by epoch that a segment's file tells, up to where it is damaged."""
    found: dict[int, bytes] = {}
    with suppress(DamagedFileError):
        container = Container(io.BytesIO(content), "ArchivedRecord")
        for record in container.records(container.blocks()):
            _, state_id, _, _, epoch, _ = HEAD.unpack_from(record["value"])
            found[epoch] = state_id
    return found
