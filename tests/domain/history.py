"""The start of most tests of the core: a log, a cluster of three nodes in it, and the world that drives it."""

from functools import cache

from stele.domain.commands import ClaimCoordinator, CreateKeyspace, FoundCluster, Join
from stele.domain.image import Image
from tests.coordinator.world import World
from tests.domain.epochs import LOG_ID, History

__all__ = ["LOG_ID", "History", "World", "join", "joining", "three_nodes"]


def join(index: int, rack: str = "", shards: int = 1) -> Join:
    rack = rack or f"r{index}"
    return Join(
        node_id=f"n{index}",
        cluster="demo",
        address=f"http://n{index}",
        dc="dc1",
        rack=rack,
        host_id=f"host-n{index}",
        shards=shards,
    )


def three_nodes(shards: int = 1, cluster_id: str = "demo/1") -> tuple[History, World]:
    """Return a cluster of n1, n2, n3 in three racks with keyspace ``library`` at replication factor 3."""
    world = World()
    history = world.history
    assert history.apply(FoundCluster(cluster_id, LOG_ID.hex())) is None
    assert history.apply(ClaimCoordinator("c1", 1)) is None
    world.brain.term = 1
    for index in (1, 2, 3):
        assert history.apply(join(index, shards=shards)) is None
    world.run()
    assert history.apply(CreateKeyspace("library", {"dc1": 3})) is None
    return history, world


@cache
def joining() -> Image:
    """Return an image of these nodes in which the join of n4 has started."""
    history, world = three_nodes()
    assert history.apply(join(4)) is None
    world.until(lambda: history.image.topology.transitions, "the join has begun")
    return history.image
