"""NetworkTopologyStrategy: the natural replicas of every range (reference: cassandra_tcm 5.5).

A walk up the ring from a range's end meets the nodes; each dc takes ``min(rf, its nodes)`` of them, first
one from each rack while there are racks enough. Replicas stand in the order of the walk, so the first is
the primary. Only nodes that own tokens count as nodes, and only their racks as racks.

All walks are made at once, with arrays as long as the ring: ``strategy_walk`` is the rule put plainly.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.ring.numbers import NO_NODES, NodeNumbers, Numbers
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range
from stele.domain.ring.strategy_walk import DcRule, walk
from stele.domain.ring.tokens import MIN_TOKEN

MAX_GROUPS: Final = 16
"""Racks (or nodes) of a dc up to which the next token of each is looked up for every range: their number
times the ring's tokens is what that costs in memory."""

MAX_ROUNDS: Final = 64
"""Tokens that the walks pass together, one each a round, before the plain walk is taken. With random
tokens a handful is enough; only a ring on which some rack or node hardly owns a token needs more."""

Positions = npt.NDArray[np.int64]
"""Places of tokens in ring order; one turn further around the ring is higher by the number of tokens."""


class NodeLocation(msgspec.Struct, frozen=True):
    """Where a node stands. Racks of the same name in two dcs are two racks."""

    dc: str
    rack: str


def network_topology(
    tokens: Mapping[int, str], locations: Mapping[str, NodeLocation], rf: Mapping[str, int]
) -> tuple[tuple[Range, tuple[str, ...]], ...]:
    """Each range of the ring with its replicas, in ring order.

    ``tokens`` maps token to owner, ``rf`` maps dc to replication factor.
    """
    nodes = NO_NODES.with_nodes(sorted(set(tokens.values())))
    starts, replicas = _natural(tokens, locations, rf, nodes)
    bounds = starts.tolist()
    ranges = map(Range, bounds, (*bounds[1:], MIN_TOKEN))
    return tuple(zip(ranges, nodes.decode(replicas), strict=True))


def placement_of(
    tokens: Mapping[int, str],
    locations: Mapping[str, NodeLocation],
    rf: Mapping[str, int],
    nodes: NodeNumbers = NO_NODES,
) -> Placement:
    """The placement of a ring at rest: the natural replicas both serve reads and receive writes.

    Owners without a number in ``nodes`` get the next ones, in the order of their ids.
    """
    nodes = nodes.with_nodes(sorted(set(tokens.values())))
    starts, replicas = _natural(tokens, locations, rf, nodes)
    return Placement.at_rest(starts, replicas, nodes)


def _natural(
    tokens: Mapping[int, str],
    locations: Mapping[str, NodeLocation],
    rf: Mapping[str, int],
    nodes: NodeNumbers,
) -> tuple[npt.NDArray[np.int64], Numbers]:
    """The ranges' starts, and for each its replicas by number."""
    ring = np.fromiter(tokens, np.int64, len(tokens))
    owners = np.fromiter(map(nodes.numbers.__getitem__, tokens.values()), np.int32, len(tokens))
    order = np.argsort(ring)
    ring, owners = ring[order], owners[order]
    if not len(ring):
        return np.array([MIN_TOKEN]), np.empty((1, 0), np.int32)
    replicas = _walks(owners, _places(locations, nodes), rf)
    # The last range ends where the ring does; its replicas are those of the lowest token. A token at
    # the lower bound is the end of just that range, and starts the first one.
    if int(ring[0]) == MIN_TOKEN:
        return ring, np.roll(replicas, -1, axis=0)
    return np.insert(ring, 0, MIN_TOKEN), np.concatenate((replicas, replicas[:1]))


def _places(locations: Mapping[str, NodeLocation], nodes: NodeNumbers) -> list[NodeLocation | None]:
    """Where each node stands, by number; None of those that are not of this ring."""
    return [locations.get(name) for name in nodes.names]


def _walks(owners: Numbers, places: list[NodeLocation | None], rf: Mapping[str, int]) -> Numbers:
    """Replicas found by the walk from each token; ``owners`` are the tokens' owners in ring order."""
    count = len(owners)
    met = list[Positions]()
    for dc in sorted(dc for dc in rf if rf[dc] > 0):
        inside = np.array([place is not None and place.dc == dc for place in places])
        here = np.flatnonzero(inside[owners])
        if len(here):
            positions = walks_of_dc(owners[here], _racks(owners[here], places), rf[dc])
            # From the next token of the dc, as places of the whole ring.
            around = positions[:, next_of(here, count) % len(here)]
            turns = (next_of(here, count) // len(here) + around // len(here)) * count
            met.append(here[around % len(here)] + turns)
    if not met:
        return np.empty((count, 0), np.int32)
    walked = np.sort(np.concatenate(met), axis=0) if len(met) > 1 else met[0]
    return np.ascontiguousarray(owners[walked % count].T)


def _racks(owners: Numbers, places: list[NodeLocation | None]) -> Numbers:
    """The rack of each token's owner, all of one dc, by a number of its own."""
    known = np.unique(owners)
    names = [place.rack for place in (places[node] for node in known.tolist()) if place is not None]
    numbers = {rack: number for number, rack in enumerate(sorted(set(names)))}
    by_node = np.zeros(int(known[-1]) + 1, np.int32)
    by_node[known] = [numbers[name] for name in names]
    return by_node[owners]


def walks_of_dc(owners: Numbers, racks: Numbers, rf: int) -> Positions:
    """Where the walk from each token of a dc finds its replicas: shape (replicas, tokens), ascending.

    ``owners`` are its tokens' owners in ring order, ``racks`` these owners' racks, numbered without gaps.
    """
    if rf == 1:
        return np.arange(len(owners))[np.newaxis]
    nodes, rack_count = len(np.unique(owners)), int(racks.max()) + 1
    wanted = min(rf, nodes)
    found: Positions | None
    if nodes <= rf:
        found = _first_of_each(owners, wanted)
    elif rack_count >= rf:
        few = rack_count <= MAX_GROUPS
        found = _first_of_each(racks, wanted) if few else _distinct(racks, None, wanted)
    else:
        found = _distinct(owners, _first_of_each(racks, rack_count), wanted - rack_count)
    if found is None:
        rule = DcRule(rf, rf - rack_count)
        found = np.array(walk(owners.tolist(), racks.tolist(), rule), np.int64).T
    return found


def _first_of_each(groups: Numbers, wanted: int) -> Positions:
    """The next token of each group at or after each token, the ``wanted`` nearest of them, ascending."""
    found = [next_of(np.flatnonzero(groups == g), len(groups), True) for g in np.unique(groups)]
    return np.sort(np.array(found), axis=0)[:wanted]


def next_of(here: Positions, count: int, unwrapped: bool = False) -> Positions:
    """For each place of the ring the next of ``here``, sorted, at or after it.

    As an index into ``here``, which is its length where the next one is around the ring; or
    ``unwrapped``, as a place.
    """
    # With ``np.diff`` and ``np.append`` it takes several times as long.
    places = np.empty(len(here) + 2, np.int64)
    places[0], places[1:-1], places[-1] = -1, here, count - 1
    steps = places[1:] - places[:-1]
    if not unwrapped:
        return np.repeat(np.arange(len(steps)), steps)
    places[-1] = here[0] + count
    return np.repeat(places[1:], steps)


def _distinct(groups: Numbers, taken: Positions | None, wanted: int) -> Positions | None:
    """The next ``wanted`` tokens at or after each whose groups differ, from each other and ``taken``'s.

    All of them with those of ``taken``, ascending; None if some walk is longer than MAX_ROUNDS.
    """
    count = len(groups)
    found = [] if taken is None else list(taken)
    met = [groups[place % count] for place in found]
    at = np.arange(count)
    for _ in range(wanted):
        at = at.copy()
        walking = np.arange(count)
        for _ in range(MAX_ROUNDS):
            here = groups[at[walking] % count]
            known = np.zeros(len(walking), np.bool_)
            for group in met:
                known |= here == group[walking]
            walking = walking[known]
            if not len(walking):
                break
            at[walking] += 1
        else:
            return None
        found.append(at)
        met.append(groups[at % count])
    return np.sort(np.array(found), axis=0)
