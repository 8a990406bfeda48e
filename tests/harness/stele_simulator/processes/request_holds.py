"""Versions in use by requests of whole nodes, compared with their acknowledgements (I6).

The checks compare rows of the log's images, version by version. They use none of production's rules.
"""

from collections.abc import Callable, Set
from typing import TYPE_CHECKING

import msgspec

from stele.agent.agent import Agent
from stele.domain.fencing import Hold
from stele.domain.messages import Ack
from stele_simulator.patching import Patch
from stele_simulator.processes.members import NodeMachine
from stele_simulator.ranges_in_use import Sides, row_of

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World


class Held(msgspec.Struct, eq=False):
    """A request that a node coordinates, or that it does for another: the row that it goes by, up to which
    version that row has stayed the same, and the state that the node knew when it began.
    """

    data_id: str
    token: int
    row: Sides
    same_until: int
    state_id: bytes


class HoldWitness:
    """Sees requests begin and end at each node."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._held: dict[str, dict[Hold, Held]] = {}
        self._lives: dict[str, int] = {}

    def begins(self, node: NodeMachine, hold: Hold, version: int) -> None:
        """It chose its replicas by this version."""
        image, routed = node.image, self._world.witness.log.by_version.get(version)
        row = None if routed is None else row_of(routed, hold.data_id, hold.token)
        if image is not None and row is not None:
            held = Held(hold.data_id, hold.token, row, version, image.state_id)
            self._of(node)[hold] = held

    def ends(self, node: NodeMachine, hold: Hold) -> None:
        """End a request: its last answer has arrived, or its client has given up."""
        self._of(node).pop(hold, None)

    def acknowledged(self, machine: "Machine", ack: Ack) -> None:
        """A node says that no request of its goes by an older version than this."""
        witness = self._world.witness
        if not isinstance(machine, NodeMachine) or not (mine := self._of(machine)):
            return
        line = witness.line(witness.head)
        if ack.state_id not in line:
            return  # epochs were lost, which it has not noticed
        for held in mine.values():
            if held.state_id not in line:
                continue
            self._follow(held, ack.version)
            self._world.demand(
                ack.oldest_version_in_use <= held.same_until,
                "I6",
                f"{machine.name} says that it works by version {held.same_until}, the last in which token"
                f" {held.token} of {held.data_id} has the replicas of one of its requests, or an older one",
                f"it says {ack.oldest_version_in_use} at epoch {ack.epoch}",
            )

    def drained(self, members: Set[str], version: int) -> None:
        """The next version comes with the fence of this one, since every member has said that no request goes
        by an older row any more: so no replica need refuse any (I3).
        """
        for node in [each for each in self._world.nodes if each.node_id in members]:
            late = [held for held in self._of(node).values() if self._is_late(held, version)]
            self._world.demand(
                not late,
                "I3",
                f"no request of {node.name} goes by a row from before version {version} when the next one comes"
                " with its fence",
                f"{len(late)} do, of tokens {sorted(held.token for held in late)[:5]}",
            )

    def _is_late(self, held: Held, version: int) -> bool:
        """It began before its node knew this version, by a row that is another one now."""
        witness = self._world.witness
        began = witness.image_at(held.state_id)
        if began is None or held.state_id not in witness.line(witness.head):
            return False  # epochs were lost
        self._follow(held, version)
        return began.topology.version < version and held.same_until < version

    def _follow(self, held: Held, version: int) -> None:
        """As far as this version. A recovery leaves many out."""
        by_version = self._world.witness.log.by_version
        for later in sorted(each for each in by_version if held.same_until < each <= version):
            if row_of(by_version[later], held.data_id, held.token) != held.row:
                return
            held.same_until = later

    def _of(self, node: NodeMachine) -> dict[Hold, Held]:
        """Requests end with the process, also when that ends by itself."""
        if self._lives.get(node.name) != node.incarnation:
            self._lives[node.name] = node.incarnation
            self._held[node.name] = {}
        return self._held[node.name]


def watch_holds(patch: Patch, world: "World", who: Callable[[], object]) -> None:
    """For as long as the patch lasts; ``who`` is the machine that runs."""
    plain_hold, plain_release = Agent.hold, Agent.release

    def hold(self: Agent, version: int, data_id: str, token: int) -> Hold:
        found, node = plain_hold(self, version, data_id, token), who()
        if isinstance(node, NodeMachine):
            world.holds.begins(node, found, version)
        return found

    def release(self: Agent, hold: Hold) -> None:
        node = who()
        if isinstance(node, NodeMachine):
            world.holds.ends(node, hold)
        plain_release(self, hold)

    patch.attribute(Agent, "hold", hold)
    patch.attribute(Agent, "release", release)
