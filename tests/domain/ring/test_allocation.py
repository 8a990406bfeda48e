from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.ring import allocation
from stele.domain.ring.allocation import allocate_tokens
from stele.domain.ring.ranges import MIN_TOKEN, RING_SIZE, distance, held_tokens
from stele.domain.ring.strategy import NodeLocation, placement_of
from tests.domain.ring.rings import ONE_RACK, Ring, join, leave, rings, some_location

TOKENS = 16
MAX_OVER_MEAN = 1.15
FEW_EXAMPLES = settings(max_examples=4)
"""Each grows a cluster, 20 to 50 ms a node."""


def growing(
    locations: Iterable[NodeLocation], num_tokens: int = TOKENS, seed: bytes = b"s"
) -> Iterator[Ring]:
    """Yield the ring after each node's join, in order."""
    ring = Ring({}, {})
    for i, location in enumerate(locations):
        ring = with_node(ring, f"n{i}", location, num_tokens, seed)
        yield ring


def grown(locations: Iterable[NodeLocation], num_tokens: int = TOKENS, seed: bytes = b"s") -> Ring:
    *_, ring = growing(locations, num_tokens, seed)
    return ring


def with_node(
    ring: Ring, node: str, location: NodeLocation, num_tokens: int = TOKENS, seed: bytes = b"s"
) -> Ring:
    tokens = allocate_tokens(ring.tokens, ring.locations, node, location, num_tokens, seed)
    return join(ring, node, location, *tokens)


def in_turn(nodes: int, racks: int, dc: str = "dc1") -> list[NodeLocation]:
    return [NodeLocation(dc, f"r{i % racks}") for i in range(nodes)]


def shares(ring: Ring, rf: int, dc: str = "dc1") -> dict[str, float]:
    """Return the share of each node of the dc. 1 is a replica of everything."""
    held = held_tokens(placement_of(ring.tokens, ring.locations, {dc: rf}).rows)
    return {node: size / RING_SIZE for node, size in held.items()}


def unevenness(loads: Mapping[str, float], tokens: Mapping[str, int] | None = None) -> float:
    """Return the largest load over the mean. With ``tokens`` it is the load per token."""
    weights = tokens or dict.fromkeys(loads, 1)
    mean = sum(loads.values()) / sum(weights[node] for node in loads)
    return max(load / weights[node] for node, load in loads.items()) / mean


def test_three_replicas_in_three_racks_are_even_up_to_a_hundred_nodes() -> None:
    """While racks have unequal sizes, the nodes of the smallest one must hold more than the mean."""
    for size, ring in enumerate(growing(in_turn(100, 3)), start=1):
        if size < 3:
            continue
        loads = shares(ring, 3)
        lowest_possible = 1 / (size // 3)
        assert max(loads.values()) <= MAX_OVER_MEAN * lowest_possible, f"{size} nodes"
        if size % 3 == 0 or size > 18:
            assert unevenness(loads) <= MAX_OVER_MEAN, f"{size} nodes"


@pytest.mark.parametrize(
    ("racks", "factors"), [(1, (1, 2, 3)), (2, (1, 3)), (3, (1, 2)), (5, (1, 2, 3))]
)
def test_ring_is_even_for_usual_replication_factors(racks: int, factors: tuple[int, ...]) -> None:
    for size, ring in enumerate(growing(in_turn(14, racks)), start=1):
        for rf in factors:
            if size > rf:
                assert unevenness(shares(ring, rf)) <= MAX_OVER_MEAN, f"{size} nodes, rf {rf}"


def test_two_replicas_in_two_racks_are_even_within_each_rack() -> None:
    for ring in growing(in_turn(12, 2)):
        for rack in ("r0", "r1"):
            inside = {n: s for n, s in shares(ring, 2).items() if ring.locations[n].rack == rack}
            assert not inside or unevenness(inside) <= MAX_OVER_MEAN


@FEW_EXAMPLES
@given(per_rack=st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_replicas_are_even_within_each_of_three_racks(per_rack: list[int]) -> None:
    ring = grown([NodeLocation("dc1", f"r{r}") for r, n in enumerate(per_rack) for _ in range(n)])
    for rack in ("r0", "r1", "r2"):
        inside = {n: s for n, s in shares(ring, 3).items() if ring.locations[n].rack == rack}
        assert sum(inside.values()) == pytest.approx(1), "one replica of everything in each rack"
        assert unevenness(inside) <= MAX_OVER_MEAN


def test_unusual_replication_factor_is_evened_out_if_in_use() -> None:
    rings = [Ring({}, {})] * 2
    for i in range(12):
        for which, factors in enumerate((set[int](), {5})):
            ring = rings[which]
            tokens = allocate_tokens(
                ring.tokens, ring.locations, f"n{i}", ONE_RACK, 8, b"s", factors=factors
            )
            rings[which] = join(ring, f"n{i}", ONE_RACK, *tokens)
    unused, used = (unevenness(shares(ring, 5)) for ring in rings)
    assert used <= 1.05 < unused


def test_dcs_are_evened_out_independently() -> None:
    near, far = in_turn(6, 3), in_turn(6, 3, "dc2")
    ring = grown([place for pair in zip(near, far, strict=True) for place in pair])
    for dc in ("dc1", "dc2"):
        for rf in (1, 2, 3):
            assert unevenness(shares(ring, rf, dc)) <= MAX_OVER_MEAN


@FEW_EXAMPLES
@given(nodes=st.integers(4, 9), left=st.sets(st.integers(0, 8), min_size=1, max_size=2))
def test_joins_after_leaves_restore_the_balance(nodes: int, left: set[int]) -> None:
    ring = grown([ONE_RACK] * nodes)
    for node in left:
        ring = leave(ring, f"n{node % nodes}")
    for i in range(6):
        ring = with_node(ring, f"late{i}", ONE_RACK)
    assert all(unevenness(shares(ring, rf)) <= MAX_OVER_MEAN for rf in (1, 2, 3))


def test_later_joins_compensate_badly_chosen_tokens() -> None:
    near_each_other = Ring(dict.fromkeys(range(1, 17), "n0"), {"n0": ONE_RACK})
    ring = near_each_other
    for i in range(1, 8):
        ring = with_node(ring, f"n{i}", ONE_RACK)
    loads = {node: share for node, share in shares(ring, 1).items() if node != "n0"}
    assert unevenness(loads) <= 1.25


@FEW_EXAMPLES
@given(weights=st.lists(st.sampled_from([8, 16, 32]), min_size=5, max_size=9))
def test_nodes_of_unequal_weight_own_equal_shares_per_token(weights: list[int]) -> None:
    ring = Ring({}, {})
    for i, num_tokens in enumerate(weights):
        ring = with_node(ring, f"n{i}", ONE_RACK, num_tokens)
    assert unevenness(shares(ring, 1), Counter(ring.tokens.values())) <= 1.25


def test_node_with_twice_the_tokens_holds_twice_the_data() -> None:
    ring = with_node(grown([ONE_RACK] * 7), "big", ONE_RACK, 2 * TOKENS)
    assert shares(ring, 1)["big"] == pytest.approx(2 / 9, rel=0.1)
    assert shares(ring, 3)["big"] == pytest.approx(3 * 2 / 9, rel=0.1)


@given(ring=rings(min_nodes=0), location=some_location, num_tokens=st.integers(1, 16))
@settings(max_examples=30)
def test_tokens_are_new_distinct_and_sorted(
    ring: Ring, location: NodeLocation, num_tokens: int
) -> None:
    tokens = allocate_tokens(ring.tokens, ring.locations, "new", location, num_tokens, b"s")
    assert list(tokens) == sorted(set(tokens))
    assert len(tokens) == num_tokens
    assert not {MIN_TOKEN, *ring.tokens} & set(tokens)
    assert all(MIN_TOKEN < token < -MIN_TOKEN for token in tokens)


def test_token_owned_in_another_dc_is_skipped() -> None:
    wanted = allocate_tokens({}, {}, "new", ONE_RACK, 4, b"s")
    elsewhere = dict.fromkeys(wanted, "far")
    locations = {"far": NodeLocation("dc2", "r1")}
    got = allocate_tokens(elsewhere, locations, "new", ONE_RACK, 4, b"s")
    assert got == tuple(token - 1 for token in wanted)


def test_reserved_token_is_skipped() -> None:
    ring = grown([ONE_RACK] * 2)
    wanted = allocate_tokens(ring.tokens, ring.locations, "new", ONE_RACK, 4, b"s")
    got = allocate_tokens(
        ring.tokens, ring.locations, "new", ONE_RACK, 4, b"s", reserved=set(wanted)
    )
    assert not set(got) & set(wanted)


def test_first_tokens_of_a_ring_are_evenly_spaced() -> None:
    tokens = allocate_tokens({}, {}, "a", ONE_RACK, 16, b"s")
    assert {distance(s, e) for s, e in pairwise((tokens[-1], *tokens))} == {RING_SIZE // 16}


def test_choice_of_tokens_depends_only_on_its_arguments() -> None:
    ring = grown([ONE_RACK] * 3)
    turned = dict(reversed(ring.tokens.items()))
    one = allocate_tokens(ring.tokens, ring.locations, "new", ONE_RACK, 8, b"s")
    assert one == allocate_tokens(turned, ring.locations, "new", ONE_RACK, 8, b"s")
    first = [allocate_tokens({}, {}, "new", ONE_RACK, 8, seed) for seed in (b"s", b"t")]
    assert first[0] != first[1]


def test_tokens_of_the_same_ring_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that waits for room is planned again after every epoch."""
    ring, place = grown(in_turn(5, 3), seed=b"once"), NodeLocation("dc1", "r1")
    chosen = allocate_tokens(ring.tokens, ring.locations, "new", place, 3, b"s")
    monkeypatch.setattr(allocation, "_chosen", None)
    again = dict(reversed(ring.tokens.items()))
    assert allocate_tokens(again, ring.locations, "new", place, 3, b"s") == chosen
    with pytest.raises(TypeError):
        allocate_tokens(ring.tokens, ring.locations, "new", place, 3, b"s", factors={5})


def test_node_needs_tokens_and_gets_them_once() -> None:
    ring = grown([ONE_RACK])
    with pytest.raises(ValueError, match="at least 1 token"):
        allocate_tokens(ring.tokens, ring.locations, "new", ONE_RACK, 0, b"s")
    with pytest.raises(ValueError, match="owns tokens already"):
        allocate_tokens(ring.tokens, ring.locations, "n0", ONE_RACK, 4, b"s")
