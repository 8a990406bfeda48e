"""Permissions of guards: work was valid by some state of the log that was recent at the request."""

from collections import deque
from typing import TYPE_CHECKING, Final

from stele_simulator.kernel import us

if TYPE_CHECKING:
    from stele_simulator.processes.guards import Work
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.witness import Witness
    from stele_simulator.processes.world import World

PERMITTED: Final = "nothing stale is permitted"
PERMITTED_DRIFT: Final = 1.01
"""Clocks of those who prove, show and ask go up to a thousandth too fast or slow."""
PERMITTED_SLACK_S: Final = 0.1
HEADS_KEPT: Final = 2000


class PermissionWitness:
    """Sees which head the topic had when, and every permission."""

    def __init__(self, world: "World", witness: "Witness") -> None:
        self.given = 0
        self._world = world
        self._witness = witness
        self._heads: deque[tuple[int, bytes]] = deque(maxlen=HEADS_KEPT)
        """From which time on the topic had which head."""

    def head_changes(self, head: bytes) -> None:
        self._heads.append((self._world.kernel.now_us, head))

    def permitted(self, machine: "Machine", work: "Work", began_us: int, limit_s: float) -> None:
        """Check a permission: the work was valid by some state of the log within the limit before the
        request, or later.
        """
        if not self._witness.quiet():
            return
        since_us = began_us - us(limit_s * PERMITTED_DRIFT + PERMITTED_SLACK_S)
        guards = [each.name for each in self._world.guards]
        told_us = self._world.stale_leaders.told_since(guards, since_us)
        if told_us is not None:  # a proof is no newer than the end that a replaced leader tells
            since_us = min(since_us, told_us)
        self.given += 1
        states = list[bytes]()
        for at_us, head in reversed(self._heads):
            states.append(head)
            if at_us <= since_us:
                break
        self._world.demand(
            any(self._permits(head, work) for head in states),
            PERMITTED,
            f"work of version {work.version} and session '{work.session}' of log {work.log_id}, which"
            f" {machine.name} was permitted, could go on by a state of the last {limit_s} s",
            f"none of {len(states)} states up to epoch {self._witness.epoch_of(self._witness.head)} permits it",
        )

    def _permits(self, head: bytes, work: "Work") -> bool:
        if self._witness.log_of(head).hex() != work.log_id:
            return False
        topology = self._witness.image_of(head).topology
        if 0 <= work.version < topology.fence_version:
            return False
        return not work.session or any(t.session == work.session for t in topology.open())
