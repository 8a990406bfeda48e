from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring.allocation import allocate_tokens
from stele.domain.ring.ranges import upper_bound
from stele.domain.ring.strategy import NodeLocation, network_topology
from stele.domain.ring.tokens import MIN_TOKEN, RING_SIZE, distance
from tests.domain.ring.rings import ONE_RACK, Ring, join, leave, rings, some_location

TOKENS = 16
MAX_OVER_MEAN = 1.25


def grown(locations: Iterable[NodeLocation], num_tokens: int = TOKENS, seed: bytes = b"s") -> Ring:
    """A ring that nodes joined one after the other."""
    ring = Ring({}, {})
    for i, location in enumerate(locations):
        ring = with_node(ring, f"n{i}", location, num_tokens, seed)
    return ring


def with_node(ring: Ring, node: str, location: NodeLocation, num_tokens: int, seed: bytes) -> Ring:
    tokens = allocate_tokens(ring.tokens, ring.locations, node, location, num_tokens, seed)
    return join(ring, node, location, *tokens)


def owned(ring: Ring) -> Counter[str]:
    """How much of the ring each node owns, in tokens."""
    found: Counter[str] = Counter()
    tokens = sorted(ring.tokens)
    for start, end in pairwise((tokens[-1], *tokens)):
        found[ring.tokens[end]] += distance(start, end)
    return found


def unevenness(loads: Counter[str]) -> float:
    """Largest load over the mean."""
    return max(loads.values()) * len(loads) / loads.total()


@given(nodes=st.integers(2, 20), seed=st.binary(max_size=8))
def test_nodes_of_one_rack_own_about_the_same(nodes: int, seed: bytes) -> None:
    assert unevenness(owned(grown([ONE_RACK] * nodes, seed=seed))) <= MAX_OVER_MEAN


@given(nodes=st.integers(3, 12), left=st.integers(0, 11))
def test_nodes_that_join_after_a_leave_even_it_out(nodes: int, left: int) -> None:
    ring = leave(grown([ONE_RACK] * nodes), f"n{left % nodes}")
    for i in range(3):
        ring = with_node(ring, f"late{i}", ONE_RACK, TOKENS, b"s")
    late = owned(ring)["late2"] * len(ring.locations) / RING_SIZE
    assert late == pytest.approx(1, rel=0.01), "the last to come has its fair share"


@given(per_rack=st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_replicas_are_even_within_each_of_three_racks(per_rack: list[int]) -> None:
    locations = [NodeLocation("dc1", f"r{r}") for r, n in enumerate(per_rack) for _ in range(n)]
    ring = grown(locations)
    for rack in ("r0", "r1", "r2"):
        loads: Counter[str] = Counter()
        for range_, replicas in network_topology(ring.tokens, ring.locations, {"dc1": 3}):
            size = upper_bound(range_.end) - range_.start
            loads.update({n: size for n in replicas if ring.locations[n].rack == rack})
        assert loads.total() == RING_SIZE, "one replica of everything stands in each rack"
        assert unevenness(loads) <= MAX_OVER_MEAN


def test_a_node_of_twice_the_tokens_owns_twice_as_much() -> None:
    ring = with_node(grown([ONE_RACK] * 4), "big", ONE_RACK, 2 * TOKENS, b"s")
    loads = owned(ring)
    assert loads["big"] / RING_SIZE == pytest.approx(2 / 6, rel=0.01)
    assert unevenness(Counter({n: s for n, s in loads.items() if n != "big"})) <= MAX_OVER_MEAN


@given(weights=st.lists(st.sampled_from([8, 16, 32]), min_size=2, max_size=12))
def test_nodes_of_unlike_size_own_about_as_much_for_each_token(weights: list[int]) -> None:
    ring = Ring({}, {})
    for i, num_tokens in enumerate(weights):
        ring = with_node(ring, f"n{i}", ONE_RACK, num_tokens, b"s")
    per_token = {n: load // weights[int(n[1:])] for n, load in owned(ring).items()}
    assert max(per_token.values()) * sum(weights) / RING_SIZE <= MAX_OVER_MEAN


@given(ring=rings(min_nodes=0), location=some_location, num_tokens=st.integers(1, 16))
def test_tokens_are_new_distinct_and_sorted(
    ring: Ring, location: NodeLocation, num_tokens: int
) -> None:
    tokens = allocate_tokens(ring.tokens, ring.locations, "new", location, num_tokens, b"s")
    assert list(tokens) == sorted(set(tokens))
    assert len(tokens) == num_tokens
    assert not {MIN_TOKEN, *ring.tokens} & set(tokens)
    assert all(MIN_TOKEN < token < -MIN_TOKEN for token in tokens)


def test_a_token_that_another_dc_owns_is_passed_over() -> None:
    wanted = allocate_tokens({}, {}, "new", ONE_RACK, 4, b"s")
    elsewhere = dict.fromkeys(wanted, "far")
    locations = {"far": NodeLocation("dc2", "r1")}
    got = allocate_tokens(elsewhere, locations, "new", ONE_RACK, 4, b"s")
    assert got == tuple(token - 1 for token in wanted)


def test_the_first_tokens_of_a_ring_are_evenly_spaced() -> None:
    tokens = allocate_tokens({}, {}, "a", ONE_RACK, 16, b"s")
    assert {distance(s, e) for s, e in pairwise((tokens[-1], *tokens))} == {RING_SIZE // 16}


def test_rings_of_different_racks_are_turned_against_each_other() -> None:
    racks = [NodeLocation("dc1", "r1"), NodeLocation("dc1", "r2")]
    ring = grown(racks)
    assert set(ring.tokens.values()) == {"n0", "n1"}
    assert len(ring.tokens) == 2 * TOKENS
    for rack in ("n0", "n1"):
        own = sorted(t for t, n in ring.tokens.items() if n == rack)
        assert {distance(s, e) for s, e in pairwise((own[-1], *own))} == {RING_SIZE // TOKENS}


def test_the_choice_depends_on_the_seed_and_on_nothing_else() -> None:
    ring = grown([ONE_RACK] * 3)
    turned = dict(reversed(ring.tokens.items()))
    one = allocate_tokens(ring.tokens, ring.locations, "new", ONE_RACK, 8, b"s")
    assert one == allocate_tokens(turned, ring.locations, "new", ONE_RACK, 8, b"s")
    first = [allocate_tokens({}, {}, "new", ONE_RACK, 8, seed) for seed in (b"s", b"t")]
    assert first[0] != first[1]


def test_a_node_needs_tokens_and_gets_them_once() -> None:
    ring = grown([ONE_RACK])
    with pytest.raises(ValueError, match="at least 1 token"):
        allocate_tokens(ring.tokens, ring.locations, "new", ONE_RACK, 0, b"s")
    with pytest.raises(ValueError, match="owns tokens already"):
        allocate_tokens(ring.tokens, ring.locations, "n0", ONE_RACK, 4, b"s")
