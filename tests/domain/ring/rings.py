"""Random rings and changes of them for the properties, and short notations of small ones."""

from collections.abc import Mapping

import msgspec
from hypothesis import strategies as st

from stele.domain.ring.columns import NO_NODES, NodeNumbers
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, RangeReplicas
from stele.domain.ring.strategy import NodeLocation, _natural, placement_of
from stele.domain.ring.transition import TransitionPlan, prepare

MAX_NODES = 12
MAX_TOKENS = 8
ONE_RACK = NodeLocation(dc="dc1", rack="r1")

# Small tokens lie close together, large ones touch the ring's ends. Each kind finds its own mistakes.
some_token = st.one_of(st.integers(-200, 200), st.integers(MIN_TOKEN + 1, MAX_TOKEN))
some_location = st.builds(
    NodeLocation,
    dc=st.sampled_from(["dc1", "dc2", "dc3"]),
    rack=st.sampled_from(["r1", "r2", "r3"]),
)
some_rf = st.dictionaries(st.sampled_from(["dc1", "dc2", "dc3"]), st.integers(1, 3), min_size=1)


class Ring(msgspec.Struct, frozen=True):
    """Tokens with their owners, and the locations of the owners."""

    tokens: dict[int, str]
    locations: dict[str, NodeLocation]


def network_topology(
    tokens: Mapping[int, str], locations: Mapping[str, NodeLocation], rf: Mapping[str, int]
) -> tuple[tuple[Range, tuple[str, ...]], ...]:
    """Return each range of the ring with its replicas, in ring order.

    ``tokens`` maps token to owner, ``rf`` maps dc to replication factor.
    """
    nodes = NO_NODES.with_nodes(sorted(set(tokens.values())))
    starts, replicas = _natural(tokens, locations, rf, nodes)
    bounds = starts.tolist()
    ranges = map(Range, bounds, (*bounds[1:], MIN_TOKEN))
    return tuple(zip(ranges, nodes.decode(replicas), strict=True))


class Prepared(msgspec.Struct, frozen=True):
    """A plan, and the placements at rest before and after it."""

    before: Placement
    after: Placement
    plan: TransitionPlan


def prepare_rings(
    old_tokens: Mapping[int, str],
    new_tokens: Mapping[int, str],
    old_locations: Mapping[str, NodeLocation],
    new_locations: Mapping[str, NodeLocation],
    rf: Mapping[str, int],
    nodes: NodeNumbers = NO_NODES,
) -> Prepared:
    """Plan the transition from the ring ``old_tokens`` (token -> owner) to the ring ``new_tokens``."""
    before = placement_of(old_tokens, old_locations, rf, nodes)
    after = placement_of(new_tokens, new_locations, rf, before.nodes)
    plan = prepare(before, after, old_tokens.keys(), new_tokens.keys())
    return Prepared(before, after, plan)


@st.composite
def rings(draw: st.DrawFn, min_nodes: int = 1) -> Ring:
    locations = draw(st.lists(some_location, min_size=min_nodes, max_size=MAX_NODES))
    if not locations:
        return Ring({}, {})
    count, per_node = len(locations), draw(st.integers(1, MAX_TOKENS))
    tokens = draw(st.lists(some_token, unique=True, min_size=count, max_size=count * per_node))
    return Ring(
        {token: f"n{i % count}" for i, token in enumerate(tokens)},
        {f"n{i}": location for i, location in enumerate(locations)},
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[Ring, Ring]:
    """Return a ring before and after one node joined, left, was replaced, or moved to other tokens."""
    kind = draw(st.sampled_from(["join", "leave", "replace", "move"]))
    before = draw(rings(min_nodes=0 if kind == "join" else 1))
    if kind == "join":
        return before, _with_tokens(draw, before, "new", draw(some_location))
    node = draw(st.sampled_from(sorted(before.locations)))
    without = leave(before, node)
    if kind == "leave":
        return before, without
    if kind == "move":
        return before, _with_tokens(draw, without, node, before.locations[node])
    taken_over = {t: "new" if n == node else n for t, n in before.tokens.items()}
    location = draw(st.sampled_from([before.locations[node], draw(some_location)]))
    return before, Ring(taken_over, {**without.locations, "new": location})


def _with_tokens(draw: st.DrawFn, ring: Ring, node: str, location: NodeLocation) -> Ring:
    free = some_token.filter(lambda token: token not in ring.tokens)
    tokens = draw(st.lists(free, unique=True, min_size=1, max_size=MAX_TOKENS))
    return join(ring, node, location, *tokens)


def join(ring: Ring, node: str, location: NodeLocation, *tokens: int) -> Ring:
    return Ring({**ring.tokens, **dict.fromkeys(tokens, node)}, {**ring.locations, node: location})


def leave(ring: Ring, node: str) -> Ring:
    return Ring(
        {t: n for t, n in ring.tokens.items() if n != node},
        {n: location for n, location in ring.locations.items() if n != node},
    )


def one_rack_ring(tokens: Mapping[int, str]) -> Ring:
    return Ring(dict(tokens), dict.fromkeys(tokens.values(), ONE_RACK))


def written(placement: Placement) -> list[str]:
    """Return rows as ``(start,end] reads | writes``, MIN_TOKEN as MIN. Equal writes are left out."""
    return [_written_row(row) for row in placement.rows]


def _written_row(row: RangeReplicas) -> str:
    start, end = ("MIN" if t == MIN_TOKEN else str(t) for t in (row.start, row.end))
    writes = "" if row.writes == row.reads else f" | {''.join(row.writes)}"
    return f"({start},{end}] {''.join(row.reads)}{writes}"
