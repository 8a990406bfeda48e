"""The sources that a rebuilt node needs, proved by enumeration of all quorums, for one dc and for two."""

from itertools import combinations

import pytest

from stele.domain.commands import Rebuild
from stele.domain.ring.quorum import quorum_of
from stele.domain.topology.operations.rebuild import REBUILD
from tests.coordinator.test_rebuild import REQUEST, two_dcs
from tests.coordinator.world import World

Replicas = tuple[str, ...]
FACTORS = ((1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (3, 3))


def may_lack(old: Replicas, node: str, sources: tuple[str, ...], needed: int) -> bool:
    """Return whether an acknowledged write may be on none of this number of sources."""
    quorums = combinations(old, quorum_of(len(old)))
    writes = [{*quorum} - {node} for quorum in quorums]
    return any(
        write.isdisjoint(asked) for asked in combinations(sources, needed) for write in writes
    )


def replicas(world: World, node: str) -> set[Replicas]:
    """Return the replicas of the node's ranges."""
    placement = world.image.placement_of("library")
    assert placement is not None
    return {row.reads for row in placement.rows if node in row.reads}


@pytest.mark.parametrize("dc", ["", "dc1", "dc2"])
@pytest.mark.parametrize("node", ["a1", "b1"])
@pytest.mark.parametrize("rf", FACTORS)
def test_rebuild_sources_are_sufficient_and_minimal(
    rf: tuple[int, int], node: str, dc: str
) -> None:
    world = two_dcs(*rf)
    world.nodes[node].mute = True
    refused = world.apply(Rebuild(node_id=node, source_dc=dc), REQUEST)
    if refused is not None:
        assert refused.code == "too_few_sources"
        nodes = world.image.membership.nodes
        for old in replicas(world, node):
            others = tuple(n for n in old if n != node and dc in ("", nodes[n].dc))
            assert may_lack(old, node, others, len(others))
        return
    world.until(lambda: REQUEST in world.image.topology.transitions, "it to open")
    transition = world.transition(REQUEST)
    for plan in transition.plans.values():
        for row in plan.rows:
            asked = REBUILD.sources(world.image, transition, row, node, frozenset())
            assert asked is not None
            sources, needed = asked
            assert node not in sources and needed <= len(sources)
            assert not may_lack(row.old, node, sources, needed)
            assert needed == 1 or may_lack(row.old, node, sources, needed - 1)
