"""Two nodes that come up with each other's disk: neither may serve with what is the other's."""

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from stele.agent.identity import FILE
from stele_simulator.kernel import us
from stele_simulator.processes.members import FOLDER, NodeMachine
from stele_simulator.scenario import Action, seconds_within

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

SWAPPED: Final = "swapped"
SWAPPED_SHARE: Final = 0.1
"""Share of the disasters."""
SWAPPED_S: Final = (4.0, 15.0)
BEGINS_S: Final = 1.0
FIRST_S: Final = 5.0
AGAIN_S: Final = 1.0
"""Until it is tried again, where one of the two is away."""
IDENTITY: Final = "a disk is its own node's"


def make_swapped(random: Random, nodes: int, length_s: float) -> list[Action]:
    """Plan swapped disks: the machines, times and durations."""
    if random.random() >= SWAPPED_SHARE:
        return []
    one, two = random.sample(range(1, nodes + 1), 2)
    at_s = FIRST_S + max(0.0, length_s - FIRST_S) * random.random()
    seconds = seconds_within(random, SWAPPED_S)
    return [Action(round(at_s, 3), SWAPPED, f"n{one}", seconds, text=f"n{two}")]


class Pair(NamedTuple):
    one: NodeMachine
    two: NodeMachine


class Swaps:
    """Which disks are in the other's machine."""

    def __init__(self, world: "World") -> None:
        self.refused = 0
        self._world = world
        self._pairs = list[Pair]()
        self._over = False

    def begin(self, action: Action) -> None:
        """Swap as soon as both machines are up, with disks of their own, and not in the operator's hands."""
        world, named = self._world, {node.name: node for node in self._world.nodes}
        if self._over or action.target not in named or action.text not in named:
            return
        pair = Pair(named[action.target], named[action.text])
        if not all(map(may_be_swapped, pair)):
            world.kernel.at(world.kernel.now_us + us(AGAIN_S), None, self.begin, action)
            return
        self._pairs.append(pair)
        world.trace(
            f"{pair.one.name} and {pair.two.name} get each other's disk for {action.seconds} s"
        )
        for node, other in (pair, pair[::-1]):
            node.crash()
            node.mounted = other.disk
            node.start_later(BEGINS_S * world.chance.random())
        world.kernel.at(world.kernel.now_us + us(action.seconds), None, self._put_right, pair)

    def end(self) -> None:
        """Each disk is in its own machine from now on."""
        self._over = True
        for pair in [*self._pairs]:
            self._put_right(pair)

    def began(self, node: NodeMachine) -> None:
        """Its process has taken the folder for its own. Raises Violation."""
        self._world.demand(
            node.mounted is None or self._world.older_disk_copies.has(node),
            IDENTITY,
            f"{node.node_id} ends at once with another node's disk",
            "it goes on",
        )

    def _put_right(self, pair: Pair) -> None:
        if pair not in self._pairs:
            return
        self._pairs.remove(pair)
        for node in pair:
            self.refused += node.is_refused
            node.crash()
            node.mounted, node.is_refused = None, False
            node.start_later(BEGINS_S * self._world.chance.random())
        self._world.trace(f"{pair.one.name} and {pair.two.name} have their own disks again")


def may_be_swapped(node: NodeMachine) -> bool:
    """Return whether a machine runs with the disk of its own node, which no operation is about to delete."""
    has_identity = f"{FOLDER}/{FILE}" in node.disk.files
    is_being_moved = node.is_off or node.is_refused or node.mounted is not None
    return node.alive and has_identity and node.kept is None and not is_being_moved
