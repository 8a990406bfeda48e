"""Check whether operations with disjoint locks commute, with random rings, joins, leaves, moves and racks.

Locks on the changed rows only are not enough: the last test finds two operations that then differ from their
serial execution.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring import transition
from stele.domain.ring.placement import Placement, PlacementError, apply
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, contains, upper_bound
from stele.domain.ring.strategy import NodeLocation, placement_of
from stele.domain.ring.transition import (
    disjoint,
    equals_at_rest,
    locks_of,
    overlaps,
)
from tests.domain.ring.rings import Prepared, Ring, join, leave, prepare_rings, some_token

TOKENS = 1 << 16
"""Tokens are drawn from so many, around zero: close enough to fall next to each other now and then."""


class World(msgspec.Struct, frozen=True):
    """Size of the rings, whether nodes move, and whether a join may add a rack and a leave empty one."""

    nodes: int
    tokens: int
    rf: int
    racks: int
    operations: int = 2
    racks_change: bool = False
    moves: bool = False
    trials: int = 60


class Operation(msgspec.Struct, frozen=True):
    """A join, which has a location, a leave, or a move, which is both."""

    node: str
    tokens: tuple[int, ...]
    location: NodeLocation | None = None


WORLDS = (
    World(8, 1, 2, 2),
    World(10, 1, 3, 3),
    World(12, 1, 3, 1),
    World(12, 2, 2, 2),
    World(14, 2, 3, 3),
    World(14, 1, 3, 4),
    World(10, 1, 3, 2, racks_change=True),
    World(12, 1, 3, 3, racks_change=True),
    World(12, 1, 2, 1, racks_change=True),
    World(16, 1, 2, 2, operations=3),
    World(18, 1, 3, 3, operations=3),
    World(16, 1, 2, 2, moves=True),
    World(20, 1, 3, 3, moves=True, trials=120),
    World(20, 2, 2, 1, moves=True, trials=120),
    World(20, 1, 3, 2, racks_change=True, moves=True, trials=240),
    World(26, 1, 2, 2, operations=3, moves=True, trials=120),
)

Locks = Callable[[Prepared], Sequence[Range]]


def ring_of(world: World, rng: random.Random) -> Ring:
    ring = Ring({}, {})
    for i in range(world.nodes):
        location = NodeLocation("dc1", f"r{i % world.racks}")
        ring = join(ring, f"n{i}", location, *free_tokens(ring, world.tokens, rng))
    return ring


def free_tokens(ring: Ring, count: int, rng: random.Random) -> tuple[int, ...]:
    tokens = set[int]()
    while len(tokens) < count:
        tokens.add(rng.randrange(-TOKENS // 2, TOKENS // 2))
        tokens -= ring.tokens.keys()
    return tuple(sorted(tokens))


def some_operation(ring: Ring, world: World, rng: random.Random) -> Operation:
    if rng.random() < (0.2 if world.moves else 0.5):
        racks = sorted({place.rack for place in ring.locations.values()})
        location = NodeLocation("dc1", rng.choice(racks + ["new"] * world.racks_change))
        return Operation(f"j{rng.randrange(10**9)}", free_tokens(ring, world.tokens, rng), location)
    node = rng.choice(sorted(ring.locations))
    if world.moves and rng.random() < 0.7:
        tokens = free_tokens(ring, world.tokens, rng)
        return Operation(node, tokens, ring.locations[node])
    return Operation(node, tuple(t for t, owner in ring.tokens.items() if owner == node))


def after(ring: Ring, operations: Sequence[Operation]) -> Ring:
    for operation in operations:
        ring = leave(ring, operation.node)
        if operation.location is not None:
            ring = join(ring, operation.node, operation.location, *operation.tokens)
    return ring


def possible(ring: Ring, world: World, operations: Sequence[Operation]) -> bool:
    """Return whether nodes and tokens are distinct, replicas suffice, and the racks are allowed."""
    tokens = [token for operation in operations for token in operation.tokens]
    if len({o.node for o in operations}) < len(operations) or len(set(tokens)) < len(tokens):
        return False
    left = after(ring, [o for o in operations if o.location is None])
    racks = {place.rack for place in left.locations.values()}
    return len(left.locations) >= world.rf and (world.racks_change or len(racks) == world.racks)


def accepted(
    world: World, seed: int, locks: Locks
) -> Iterator[tuple[Ring, dict[Operation, Prepared]]]:
    """Yield rings with operations whose locks are pairwise disjoint, each planned independently."""
    rng = random.Random(seed)
    for _ in range(world.trials):
        ring = ring_of(world, rng)
        operations = [some_operation(ring, world, rng) for _ in range(world.operations)]
        if possible(ring, world, operations):
            plans = {operation: prepared(ring, operation, world) for operation in operations}
            locked = map(locks, plans.values())
            if not any(overlaps(a, b) for a, b in combinations(locked, 2)):
                yield ring, plans


def prepared(ring: Ring, operation: Operation, world: World) -> Prepared:
    then = after(ring, [operation])
    return prepare_rings(
        ring.tokens, then.tokens, ring.locations, then.locations, {"dc1": world.rf}
    )


def at_rest(ring: Ring, world: World) -> Placement:
    return placement_of(ring.tokens, ring.locations, {"dc1": world.rf})


def production_locks(found: Prepared) -> Sequence[Range]:
    return locks_of(found.plan, found.before)


def changed_rows_only(found: Prepared) -> Sequence[Range]:
    return disjoint(Range(row.start, row.end) for row in found.plan.rows)


def serial(ring: Ring, plans: Mapping[Operation, Prepared], world: World) -> bool:
    """Return whether the independently planned operations give the computed ring in every order."""
    computed = {
        frozenset(some): at_rest(after(ring, some), world)
        for count in range(len(plans) + 1)
        for some in combinations(plans, count)
    }
    for order in permutations(plans):
        placement = computed[frozenset()]
        for done, operation in enumerate(order, start=1):
            try:
                delta = transition.finish(placement, plans[operation].plan, 0)
                placement = apply(placement, delta.removed, delta.added)
            except PlacementError:
                return False
            if not equals_at_rest(placement, computed[frozenset(order[:done])]):
                return False
    return True


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_operations_with_disjoint_locks_equal_serial_execution(world: World) -> None:
    tried = 0
    for ring, plans in accepted(world, 1, production_locks):
        tried += 1
        assert serial(ring, plans, world), (ring, list(plans))
    assert tried >= 5, "too few operations had disjoint locks to say anything"


def test_steps_of_two_operations_may_alternate() -> None:
    """Split, write both, then roll back or continue: rows not locked by the other operation are unchanged."""
    world = World(14, 1, 3, 3)
    steps = (transition.split_delta, transition.write_both_read_old, transition.write_both_read_new)
    for ring, plans in accepted(world, 2, production_locks):
        one, two = plans.values()
        placement = at_rest(ring, world)
        for version, step in enumerate((*steps, transition.finish), start=1):
            for found in (one, two):
                delta = step(placement, found.plan, version)
                placement = apply(placement, delta.removed, delta.added)
        assert equals_at_rest(placement, at_rest(after(ring, list(plans)), world))
        placement = at_rest(ring, world)
        for version, step in enumerate((*steps, transition.rollback), start=1):
            delta = step(placement, one.plan, version)
            placement = apply(placement, delta.removed, delta.added)
            for locked in locks_of(two.plan, two.before):
                assert placement.overlapping(locked) == two.before.overlapping(locked)
        assert equals_at_rest(placement, at_rest(ring, world))


def test_locks_on_changed_rows_only_are_not_enough() -> None:
    for world in WORLDS:
        for ring, plans in accepted(world, 1, changed_rows_only):
            if not serial(ring, plans, world):
                return
    raise AssertionError(
        "no two operations were found whose changed rows are disjoint and that differ"
    )


some_bounds = st.lists(some_token | st.just(MIN_TOKEN), min_size=2, max_size=2).map(
    lambda pair: Range(min(pair), max(pair) if min(pair) < max(pair) else MIN_TOKEN)
)


@given(intervals=st.lists(some_bounds, max_size=8), token=some_token | st.just(MAX_TOKEN))
def test_disjoint_intervals_contain_the_same_tokens(intervals: list[Range], token: int) -> None:
    found = disjoint(intervals)
    held = any(contains(interval, token) for interval in intervals)
    assert sum(contains(interval, token) for interval in found) == held
    assert all(upper_bound(a.end) < b.start for a, b in pairwise(found))


@given(a=st.lists(some_bounds, max_size=4), b=st.lists(some_bounds, max_size=4))
def test_locks_overlap_if_an_end_of_one_lies_in_the_other(a: list[Range], b: list[Range]) -> None:
    """Two unions of (start, end] overlap exactly if an end of one lies in the other."""
    ends = [x.end for x in (*a, *b)]
    shared = any(
        any(contains(x, end) for x in a) and any(contains(y, end) for y in b) for end in ends
    )
    assert overlaps(disjoint(a), disjoint(b)) == shared == overlaps(disjoint(b), disjoint(a))
