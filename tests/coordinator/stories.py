"""Where the stories of these tests begin: an operation that has come to a certain state."""

from __future__ import annotations

from stele.domain.names import RequestStatus, TransitionState
from tests.coordinator.world import World, three_nodes


def status_of(world: World, request_id: str) -> RequestStatus:
    return world.image.requests.requests[request_id].status


def reach(world: World, state: TransitionState, *, fenced: bool = True) -> None:
    def there() -> bool:
        topology = world.image.topology.topology
        is_fenced = topology.fence_version == topology.version
        return topology.transition_state is state and is_fenced >= fenced

    world.until(there, f"state {state}")


def joining(state: TransitionState, *, fenced: bool = True, rf: int = 2) -> World:
    """Three nodes and a2, which is joining and has come to ``state``; it does no work yet."""
    world = three_nodes(rf)
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, state, fenced=fenced)
    return world
