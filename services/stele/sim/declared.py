"""Who is declared dead: mostly one node at a time, as an operator does who wants to keep the data.

With two of three replicas declared dead that live, nobody but the operator answers for what they acknowledge.
So of several at one time all but the first are unplugged: they are down until their request is decided.
"""

from typing import TYPE_CHECKING, Final

from stele.domain.commands import AnyCommand, Exclude, Remove
from stele.domain.names import UNFINISHED, NodeState

if TYPE_CHECKING:
    from stele.sim.world import World

LOOK_AGAIN_S: Final = 1.0


def is_out(world: "World", node_id: str) -> bool:
    """It is no member, or not any more."""
    node = world.witness.image.node(node_id)
    return node is None or node.state is NodeState.LEFT


def gone(world: "World") -> list[str]:
    """Members, or nodes that asked to be one, whose disks are gone."""
    return sorted(node_id for node_id in world.gone if not is_out(world, node_id))


def dead_to_be(world: "World", names: list[str]) -> list[str]:
    """Those of them who may be declared dead now, as many as the scenario lets be dead at one time."""
    out_of_sight = _out_of_sight(world)
    room = world.scenario.dead_at_once - len(out_of_sight - {*names})
    return [name for name in names if not is_out(world, name)][: max(0, room)]


def _out_of_sight(world: "World") -> set[str]:
    """Members that are gone, excluded, or about to be."""
    under_way = {
        node_id
        for request_id, dead in world.declarations.items()
        if is_open(world, request_id)
        for node_id in dead
    }
    excluded = world.witness.image.membership.excluded()
    return {n for n in {*world.gone, *excluded, *under_way} if not is_out(world, n)}


def declare(world: "World", command: Remove | Exclude, *dead: str) -> str:
    """Ask for it, and keep in mind who is meant. Returns the request's id."""
    asked: AnyCommand = command
    request_id = world.request(asked)
    note(world, request_id, dead)
    return request_id


def note(world: "World", request_id: str, dead: tuple[str, ...]) -> None:
    """This request declares these nodes dead: all but the first of those that are dead now are unplugged."""
    known = _out_of_sight(world) - {*dead}
    world.declarations[request_id] = dead
    for node_id in dead if known else dead[1:]:
        if not is_unplugged(world, node_id):
            world.unplugged[node_id] = request_id
        node = world.nodes[node_id]
        if node.alive:
            world.crash(node, LOOK_AGAIN_S)


def is_unplugged(world: "World", name: str) -> bool:
    """It stays down until the request that declares it dead is decided."""
    return name in world.unplugged and is_open(world, world.unplugged[name])


def exclude_the_gone(world: "World") -> None:
    """What only the operator knows: these nodes will never come back."""
    excluded = world.witness.image.membership.excluded()
    for node_id in gone(world):
        if node_id not in excluded:
            declare(world, Exclude((node_id,)), node_id)


def is_open(world: "World", request_id: str) -> bool:
    """It is not decided yet, or not done."""
    request = world.witness.image.request(request_id)
    if request is not None:
        return request.status in UNFINISHED
    return request_id not in world.witness.commands.epoch_of
