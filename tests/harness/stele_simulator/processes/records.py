"""The bytes of records, as witnesses read them from the topic and from the disks of archives.

Records are deleted from the topic once most members of the archive have them on their disks.
"""

import io
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from stele.log.archive.container import Container, DamagedFileError
from stele_simulator.processes.disk import Disk

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

MAJORITY: Final = "nothing is deleted that no majority has"
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


def check_truncation(world: "World", machine: "Machine", offset: int) -> None:
    """Records before ``offset`` go: most members have their epochs on the disk."""
    count = offset - world.topic.begin
    if count <= 0:
        return
    line = world.witness.deletes(count)
    if not line:
        return  # none of them has won
    members = [each for each in world.replicas if each.name in world.witness.members()]
    having = [each.name for each in members if not each.lost_its_disk and _has(each.disk, line)]
    needed = len(members) // 2 + 1 - sum(each.lost_its_disk for each in members)
    world.demand(
        len(having) >= needed,
        MAJORITY,
        f"{needed} of {len(members)} members have epochs {min(line, default=0)} to"
        f" {max(line, default=0)} on"
        f" their disks when {machine.name} deletes them",
        f"{having} have",
    )


def _has(disk: Disk, line: dict[int, bytes]) -> bool:
    """Return whether all of these epochs are in files that a power failure leaves."""
    found: dict[int, bytes] = {}
    for content in segments(disk):
        found |= states_in(content)
    return all(found.get(epoch) == state_id for epoch, state_id in line.items())
