"""NetworkTopologyStrategy compared with a slow model of its rule and with Cassandra's own vectors."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy
from hypothesis import given

from stele.domain.ring import strategy
from stele.domain.ring.ranges import MIN_TOKEN, RING_SIZE, Range
from stele.domain.ring.strategy import DcRule, NodeLocation, placement_of, walk
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


@given(ring=rings(), rf=some_rf)
def test_wrap_around_is_two_rows_with_equal_replicas(ring: Ring, rf: dict[str, int]) -> None:
    rows = network_topology(ring.tokens, ring.locations, rf)
    assert rows[0][1] == rows[-1][1]


@given(ring=rings(), rf=some_rf)
def test_dc_has_as_many_replicas_and_racks_as_possible(ring: Ring, rf: dict[str, int]) -> None:
    for _, replicas in network_topology(ring.tokens, ring.locations, rf):
        for dc in ("dc1", "dc2"):
            nodes = [node for node in ring.locations if ring.locations[node].dc == dc]
            chosen = [node for node in replicas if ring.locations[node].dc == dc]
            racks = {ring.locations[node].rack for node in nodes}
            assert len(chosen) == min(rf.get(dc, 0), len(nodes))
            expected_racks = min(len(chosen), len(racks))
            assert len({ring.locations[node].rack for node in chosen}) == expected_racks


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


@pytest.mark.parametrize("rf", [1, 2, 3, 5])
def test_replicas_in_one_rack_are_the_next_nodes_up_the_ring(rf: int) -> None:
    """Cassandra's SimpleStrategyTest, which equals one dc with one rack."""
    ring = one_rack_ring({10 * i: f"n{i}" for i in range(5)})
    placement = placement_of(ring.tokens, ring.locations, {"dc1": rf})
    for i in range(5):
        expected = tuple(f"n{(i + 1 + k) % 5}" for k in range(rf))
        assert placement.row_for(10 * i + 5).reads == expected


def test_three_dcs_give_six_replicas() -> None:
    """Cassandra's NetworkTopologyStrategyTest: tokens of an order-preserving partitioner, in hex."""
    owners = {
        "dc1": ["123", "234", "345", "90A"],
        "dc2": ["789", "890", "ABC"],
        "dc3": ["456", "567", "0AB"],
    }
    tokens = {int(name, 16): name for names in owners.values() for name in names}
    locations = {name: NodeLocation(dc, "r1") for dc, names in owners.items() for name in names}
    placement = placement_of(tokens, locations, {"dc1": 3, "dc2": 2, "dc3": 1})
    expected = ("123", "234", "345", "456", "789", "890")
    assert placement.row_for(int("123", 16)).reads == expected


@pytest.mark.parametrize(("gone", "expected"), [(0, {1, 2, 4, 5, 7, 8}), (2, {1, 3, 4, 5, 7, 8})])
def test_replicas_of_the_lowest_token(gone: int, expected: set[int]) -> None:
    """Cassandra's MetaStrategyTest: nodes 1 to 9 at tokens 1 to 9, three to a dc, rf 2 each."""
    nodes = [i for i in range(1, 10) if i != gone]
    locations = {str(i): NodeLocation(f"dc{(i + 2) // 3}", f"rack{(i + 2) // 3}") for i in nodes}
    tokens = {i: str(i) for i in nodes}
    rf = {"dc1": 2, "dc2": 2, "dc3": 2}
    assert placement_of(tokens, locations, rf).rows[0].reads == tuple(map(str, sorted(expected)))


def test_large_cluster_has_all_replicas_in_different_racks() -> None:
    """Cassandra's testLargeCluster: 896 nodes, 128/256/512 over 2/4/8 racks, rf 2/6/6."""
    dcs = {"dc1": (128, 2), "dc2": (256, 4), "dc3": (512, 8)}
    locations = {
        f"{dc}-{i}": NodeLocation(dc, f"r{i % racks}")
        for dc, (nodes, racks) in dcs.items()
        for i in range(nodes)
    }
    step = RING_SIZE // len(locations)
    mixed = sorted(locations, key=lambda node: int(node[4:]) * 7919 % 512)
    tokens = {MIN_TOKEN + step * i + 1: node for i, node in enumerate(mixed)}
    placement = placement_of(tokens, locations, {"dc1": 2, "dc2": 6, "dc3": 6})
    for token in (1111, 2222, -3333, 444 * 10**15, -5555 * 10**14):
        reads = placement.row_for(token).reads
        assert len(set(reads)) == 14
        assert len({locations[node] for node in reads}) == 2 + 4 + 6


def test_hundred_nodes_of_256_tokens_get_six_replicas_per_range() -> None:
    step = RING_SIZE // 25600
    # A stride coprime to 100 mixes the owners along the ring.
    tokens = {MIN_TOKEN + step * i + 1: f"n{i * 37 % 100 ^ i % 3}" for i in range(25600)}
    owners = sorted(set(tokens.values()))
    locations = {n: NodeLocation(f"dc{i % 2}", f"r{i % 3}") for i, n in enumerate(owners)}
    rows = network_topology(tokens, locations, {"dc0": 3, "dc1": 3})
    assert all(len(replicas) == 6 for _, replicas in rows)
