"""Who is declared dead: one node at a time, as an operator does who wants to keep the data.

With two of three replicas declared dead that live, nobody but the operator answers for what they acknowledge.
"""

from typing import TYPE_CHECKING

from stele.domain.commands import AnyCommand, Exclude, Remove
from stele.domain.names import UNFINISHED, NodeState

if TYPE_CHECKING:
    from stele.sim.world import World


def is_out(world: "World", node_id: str) -> bool:
    """It is no member, or not any more."""
    node = world.witness.image.node(node_id)
    return node is None or node.state is NodeState.LEFT


def gone(world: "World") -> list[str]:
    """Members, or nodes that asked to be one, whose disks are gone."""
    return sorted(node_id for node_id in world.gone if not is_out(world, node_id))


def may_be_declared(world: "World", node_id: str) -> bool:
    """True when nobody else is gone, excluded, or about to be."""
    under_way = {
        dead for request_id, dead in world.declarations.items() if _is_open(world, request_id)
    }
    excluded = world.witness.image.membership.excluded()
    others = {*world.gone, *excluded, *under_way} - {node_id}
    return not is_out(world, node_id) and all(is_out(world, other) for other in others)


def declare(world: "World", command: Remove | Exclude, node_id: str) -> str:
    """Ask for it, and keep in mind who is meant. Returns the request's id."""
    asked: AnyCommand = command
    request_id = world.request(asked)
    world.declarations[request_id] = node_id
    return request_id


def exclude_the_gone(world: "World") -> None:
    """What only the operator knows: these nodes will never come back."""
    excluded = world.witness.image.membership.excluded()
    for node_id in gone(world):
        if node_id not in excluded:
            declare(world, Exclude((node_id,)), node_id)


def _is_open(world: "World", request_id: str) -> bool:
    """It is not decided yet, or not done."""
    request = world.witness.image.request(request_id)
    if request is not None:
        return request.status in UNFINISHED
    return request_id not in world.witness.commands.epoch_of
