"""Deletions from the topic: most members of the archive have these records on their disks."""

from typing import TYPE_CHECKING, Final

from stele_simulator.processes.disk import Disk
from stele_simulator.processes.records import segments, states_in

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

MAJORITY: Final = "nothing is deleted that no majority has"


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
    """All of these epochs are in files that a power failure leaves."""
    found: dict[int, bytes] = {}
    for content in segments(disk):
        found |= states_in(content)
    return all(found.get(epoch) == state_id for epoch, state_id in line.items())
