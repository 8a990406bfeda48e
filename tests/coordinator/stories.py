"""Operations that have reached a certain state, at which the stories of these tests start."""

from stele.domain.commands import CreateKeyspace, Join, SetSetting
from stele.domain.names import RequestStatus, TransitionState
from tests.coordinator.world import World, empty_cluster, three_nodes


def status_of(world: World, request_id: str) -> RequestStatus:
    return world.image.requests.requests[request_id].status


def error_of(world: World, request_id: str) -> str:
    return world.image.requests.requests[request_id].error


def reach(
    world: World, request_id: str, state: TransitionState, *, fenced: bool | None = True
) -> None:
    """Run until the request's transition is in a state, with its version fenced or not. None accepts both."""

    def there() -> bool:
        topology = world.image.topology
        transition = topology.of_request(request_id)
        if transition is None or transition.state is not state:
            return False
        return fenced is None or fenced == (topology.fence_version >= transition.entered_version)

    world.until(there, f"{request_id} to be in {state}")


def undoing(world: World) -> World:
    """Return the world with a setting by which silence rolls operations back."""
    assert world.apply(SetSetting("on_unresponsive", "undo")) is None
    return world


def joining(state: TransitionState, *, fenced: bool | None = None, rf: int = 2) -> World:
    """Return three nodes and a2, whose join has reached ``state``. It does no work yet."""
    world = three_nodes(rf)
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", state, fenced=fenced)
    return world


def wide() -> World:
    """Return nine nodes of one token and a keyspace of replication 1: operations can run in parallel."""
    world = empty_cluster()
    world.add("a1 a2 a3 a4 a5 a6 a7 a8 a9")
    world.run()
    assert world.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    for node in world.nodes.values():
        node.orders.clear()
    return world


def spread() -> World:
    """Return nodes a1 to a9 with the tokens 100 to 900 and replication 1: each passes its range to the next."""
    world = empty_cluster()
    for index in range(1, 10):
        name = f"a{index}"
        asked = Join(
            node_id=name,
            cluster="demo",
            address=f"http://{name}",
            dc="dc1",
            rack="r",
            initial_tokens=(100 * index,),
            host_id=f"host-{name}",
        )
        assert world.apply(asked, f"join-{name}") is None
    world.run()
    assert world.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    return world
