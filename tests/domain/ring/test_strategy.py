"""NetworkTopologyStrategy compared with a slow model of its rule and with Cassandra's own vectors."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy
from hypothesis import given

from stele.domain.ring import strategy
from stele.domain.ring.ranges import MIN_TOKEN, Range
from stele.domain.ring.strategy import DcRule, NodeLocation, walk
from tests.domain.ring.rings import Ring, network_topology, one_rack_ring, rings, some_rf


def replicas_by_model(ring: Ring, rf: Mapping[str, int], end: int) -> tuple[str, ...]:
    """Return the replicas by sets: the first node of each rack, and one more node for each missing rack."""
    up = sorted(t for t in ring.tokens if end != MIN_TOKEN and t >= end)
    around = sorted(t for t in ring.tokens if t not in up)
    walk = list(dict.fromkeys(ring.tokens[t] for t in (*up, *around)))
    taken: set[str] = set()
    for dc, copies in rf.items():
        here = [node for node in walk if ring.locations[node].dc == dc]
        by_rack: dict[str, list[str]] = {}
        for node in here:
            by_rack.setdefault(ring.locations[node].rack, []).append(node)
        firsts = [nodes[0] for nodes in by_rack.values()]
        others = [node for node in here if node not in firsts]
        taken.update(firsts[:copies], others[: max(0, copies - len(firsts))])
    return tuple(node for node in walk if node in taken)


@given(ring=rings(min_nodes=0), rf=some_rf)
def test_replicas_equal_those_of_the_slow_model(ring: Ring, rf: dict[str, int]) -> None:
    rows = network_topology(ring.tokens, ring.locations, rf)
    assert rows == tuple((r, replicas_by_model(ring, rf, r.end)) for r, _ in rows)


class Host(NamedTuple):
    """The fields of the driver's host that its strategy uses."""

    name: str
    datacenter: str
    rack: str


@given(ring=rings(), rf=some_rf)
def test_replicas_equal_those_of_the_cassandra_driver(ring: Ring, rf: dict[str, int]) -> None:
    hosts = {name: Host(name, at.dc, at.rack) for name, at in ring.locations.items()}
    tokens = sorted(ring.tokens)
    owners = {Murmur3Token(token): hosts[ring.tokens[token]] for token in tokens}
    asked = {dc: str(copies) for dc, copies in rf.items()}
    of_driver = NetworkTopologyStrategy(asked).make_token_replica_map(owners, [*owners])
    ours = {
        range_.end: {*names} for range_, names in network_topology(ring.tokens, ring.locations, rf)
    }
    for token in tokens:
        assert ours[token] == {host.name for host in of_driver[Murmur3Token(token)]}


@pytest.mark.parametrize(("groups", "rounds"), [(0, 64), (0, 2), (16, 2)])
@given(ring=rings(), rf=some_rf)
def test_all_search_methods_find_the_same_replicas(
    groups: int, rounds: int, ring: Ring, rf: dict[str, int]
) -> None:
    """These are lookups by rack, walks made together, and the plain walk that replaces long walks."""
    rows = network_topology(ring.tokens, ring.locations, rf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy, "MAX_GROUPS", groups)
        patch.setattr(strategy, "MAX_ROUNDS", rounds)
        assert network_topology(ring.tokens, ring.locations, rf) == rows


@pytest.mark.parametrize("racks", [1, 2, 3, 5, 20, 60])
def test_replicas_of_a_vnode_ring_equal_those_of_the_plain_walk(racks: int) -> None:
    rng = random.Random(racks)
    owners = [rng.randrange(60) for _ in range(960)]
    # The first node owns nearly nothing, and with two racks it is the only node of its rack.
    owners = [owner or 1 for owner in owners[1:]] + [0]
    tokens = {MIN_TOKEN + 1000 * (i + 1): f"n{owner}" for i, owner in enumerate(owners)}
    rack_of = [min(node, 1) if racks == 2 else node % racks for node in range(60)]
    locations = {f"n{node}": NodeLocation("dc1", f"r{rack_of[node]}") for node in range(60)}
    found = walk(owners, [rack_of[owner] for owner in owners], DcRule(3, 3 - racks))
    expected = [tuple(f"n{owners[place % 960]}" for place in places) for places in found]
    rows = network_topology(tokens, locations, {"dc1": 3})
    assert [replicas for _, replicas in rows] == [*expected, expected[0]]


def test_nodes_without_tokens_are_ignored() -> None:
    ring = one_rack_ring({0: "a", 10: "b"})
    waiting = {"c": NodeLocation("dc1", "r2"), "d": NodeLocation("dc2", "r1")}
    rf = {"dc1": 2, "dc2": 1}
    with_waiting = network_topology(ring.tokens, {**ring.locations, **waiting}, rf)
    assert with_waiting == network_topology(ring.tokens, ring.locations, rf)


def test_ring_without_tokens_is_one_range_without_replicas() -> None:
    assert network_topology({}, {}, {"dc1": 3}) == ((Range(MIN_TOKEN, MIN_TOKEN), ()),)


def test_token_at_the_lower_bound_owns_the_last_range() -> None:
    ring = one_rack_ring({MIN_TOKEN: "a", 10: "b"})
    rows = network_topology(ring.tokens, ring.locations, {"dc1": 1})
    assert rows == ((Range(MIN_TOKEN, 10), ("b",)), (Range(10, MIN_TOKEN), ("a",)))
