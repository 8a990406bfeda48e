"""A node that starts with an older copy of its own disk, without its newest acknowledgements."""

from random import Random
from typing import TYPE_CHECKING, Final

from stele.agent.older_copy import starts_of
from stele.domain.messages import Ack
from stele_simulator.kernel import us
from stele_simulator.processes.disk import Disk
from stele_simulator.processes.members import NodeMachine
from stele_simulator.processes.swapped_disks import AGAIN_S, BEGINS_S, FIRST_S, may_be_swapped
from stele_simulator.scenario import Action, seconds_within

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

OLDER: Final = "older"
OLDER_SHARE: Final = 0.15
"""Share of the disasters."""
OLDER_S: Final = (4.0, 15.0)
"""So long it is in the machine."""
LEAST_HEARD: Final = 288
"""Least number of acknowledgements between the copy and its use. A copy that is hardly older cannot be
detected, since its counter may be 256 ahead. One acknowledgement of a later start is enough.
"""
NEWEST: Final = "a disk is the newest of its node"


def make_older(random: Random, nodes: int, length_s: float) -> list[Action]:
    """Plan the node, the time of the copy, and the time until its use."""
    if random.random() >= OLDER_SHARE:
        return []
    at_s = FIRST_S + max(0.0, 0.6 * length_s - FIRST_S) * random.random()
    seconds = seconds_within(random, OLDER_S)
    return [Action(round(at_s, 3), OLDER, f"n{random.randint(1, nodes)}", seconds)]


class Copy:
    """A copy of a node's disk, and the number of acknowledgements of that node since."""

    def __init__(self, node: NodeMachine, host_id: str, seconds: float) -> None:
        self.node = node
        self.host_id = host_id
        self.seconds = seconds
        self.files = node.disk.copy()
        self._starts = node.disk_identity().boots
        self._heard = 0
        self._is_of_before = False
        """Whether a later start has acknowledged something."""

    def hears(self, ack: Ack) -> None:
        if ack.host_id == self.host_id:
            self._heard += 1
            self._is_of_before |= starts_of(ack) > self._starts

    def is_old_enough(self) -> bool:
        return self._is_of_before or self._heard >= LEAST_HEARD


class OlderCopies:
    """Nodes that run with an older copy of their disk."""

    def __init__(self, world: "World") -> None:
        self.refused = 0
        self._world = world
        self._made = list[Copy]()
        """Copies that are not old enough yet."""
        self._mounted = list[Copy]()
        self._over = False

    def begin(self, action: Action) -> None:
        """As soon as the node is a member that runs with its own disk."""
        world = self._world
        node = next((each for each in world.nodes if each.name == action.target), None)
        if self._over or node is None:
            return
        row = world.witness.image.membership.normal().get(node.node_id)
        if row is None or not may_be_swapped(node):
            world.kernel.at(world.kernel.now_us + us(AGAIN_S), None, self.begin, action)
            return
        world.trace(f"a copy of the disk of {node.name} is made")
        copy = Copy(node, row.host_id, action.seconds)
        self._made.append(copy)
        world.kernel.at(world.kernel.now_us + us(AGAIN_S), None, self._put_back, copy)

    def end(self) -> None:
        """Each node has its newest disk from now on."""
        self._over = True
        for copy in [*self._mounted]:
            self._put_right(copy)

    def has(self, node: NodeMachine) -> bool:
        return any(copy.node is node for copy in self._mounted)

    def acknowledges(self, name: str) -> None:
        """Raises Violation."""
        self._world.demand(
            not any(copy.node.name == name for copy in self._mounted),
            NEWEST,
            f"{name} acknowledges nothing with an older copy of its disk",
            "it does",
        )

    def lands(self, ack: Ack) -> None:
        """The brokers have it."""
        for copy in self._made:
            copy.hears(ack)

    def _put_back(self, copy: Copy) -> None:
        """Once it is old enough, the newest disk is taken out for it."""
        world, node = self._world, copy.node
        row = world.witness.image.node(node.node_id)
        if self._over or row is None or row.host_id != copy.host_id:
            self._made.remove(copy)
            return
        if not may_be_swapped(node) or not copy.is_old_enough():
            world.kernel.at(world.kernel.now_us + us(AGAIN_S), None, self._put_back, copy)
            return
        world.trace(f"{node.name} gets the copy of its disk back for {copy.seconds:g} s")
        node.crash()
        disk = Disk(world.kernel.random(f"older/{node.name}").random)
        disk.put_back(copy.files)
        node.mounted = disk
        self._made.remove(copy)
        self._mounted.append(copy)
        node.start_later(BEGINS_S * world.chance.random())
        world.kernel.at(world.kernel.now_us + us(copy.seconds), None, self._put_right, copy)

    def _put_right(self, copy: Copy) -> None:
        if copy not in self._mounted:
            return
        node = copy.node
        self._world.demand(
            node.gate is None or not node.gate.is_open,
            NEWEST,
            f"{node.name} does not serve with an older copy of its disk",
            "its gate is open",
        )
        self._mounted.remove(copy)
        self.refused += node.is_refused
        node.crash()
        node.mounted, node.is_refused = None, False
        node.start_later(BEGINS_S * self._world.chance.random())
        self._world.trace(f"{node.name} has its newest disk again")
