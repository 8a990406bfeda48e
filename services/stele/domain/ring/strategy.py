"""NetworkTopologyStrategy as the plain walk up the ring that defines it.

``strategy`` finds the same with whole arrays. It uses this walk for rings on which arrays would be
slow, and the tests compare both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.ring.columns import NO_NODES, NodeNumbers, Numbers
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN


class DcRule(msgspec.Struct, frozen=True):
    """The most replicas of a dc, and how many of them may share a rack with another one."""

    replicas: int
    acceptable_rack_repeats: int


def walk(owners: Sequence[int], racks: Sequence[int], rule: DcRule) -> list[list[int]]:
    """Return the positions at which a walk from each token of one dc finds its replicas.

    ``owners`` and ``racks`` are those of the dc's tokens in ring order. A position after a turn
    around the ring is higher by the number of tokens.

    The loop goes down the ring twice and moves each node that it meets to the front. The nodes are
    thus always in the order in which a walk up from here meets them. No walk has to pass token by
    token.
    """
    count = len(owners)
    ahead: OrderedDict[int, None] = OrderedDict()
    rack_of = dict(zip(owners, racks, strict=True))
    met_at: dict[int, int] = {}
    found = list[list[int]]()
    for position in reversed(range(2 * count)):
        node = owners[position % count]
        met_at[node] = position
        ahead[node] = None
        ahead.move_to_end(node, last=False)
        if position < count:
            found.append([met_at[node] for node in _choose(ahead, rack_of, rule)])
    found.reverse()
    return found


def _choose(nodes: Iterable[int], rack_of: dict[int, int], rule: DcRule) -> list[int]:
    """Return the nodes that a walk takes, if it meets them in the order given."""
    chosen: list[int] = []
    racks = set[int]()
    repeats_left = rule.acceptable_rack_repeats
    for node in nodes:
        rack = rack_of[node]
        if rack not in racks:
            racks.add(rack)
        elif repeats_left > 0:
            repeats_left -= 1
        else:
            continue
        chosen.append(node)
        if len(chosen) == rule.replicas:
            break
    return chosen


# NetworkTopologyStrategy: the natural replicas of every range.
#
# The rule is that of Cassandra's ``locator/NetworkTopologyStrategy``. A walk up the ring from the
# end of a range visits the nodes. Each dc takes ``min(rf, its nodes)`` of them, first one from each
# rack while there are enough racks. Replicas are in the order of the walk, so the first is the
# primary. Only nodes that own tokens count as nodes, and only their racks as racks.
#
# All walks are computed at once, with arrays as long as the ring. ``strategy_walk`` states the rule
# plainly.


MAX_GROUPS: Final = 16
"""Racks (or nodes) of a dc up to which the next token of each is looked up for every range.

The memory for it is their number times the ring's tokens.
"""

MAX_ROUNDS: Final = 64
"""Tokens that the walks pass together, one in each round, before the plain walk is used.

With random tokens a few rounds suffice. Only a ring on which some rack or node owns very few tokens
needs more.
"""

Positions = npt.NDArray[np.int64]
"""Places of tokens in ring order. A place one turn further is higher by the number of tokens."""


class NodeLocation(msgspec.Struct, frozen=True):
    """The dc and rack of a node. Racks of the same name in two dcs are two racks."""

    dc: str
    rack: str


def placement_of(
    tokens: Mapping[int, str],
    locations: Mapping[str, NodeLocation],
    rf: Mapping[str, int],
    nodes: NodeNumbers = NO_NODES,
) -> Placement:
    """Return the placement of a ring at rest.

    The natural replicas both serve reads and receive writes.

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
    """Return the ranges' starts, and the replicas of each range by number."""
    ring = np.fromiter(tokens, np.int64, len(tokens))
    owners = np.fromiter(map(nodes.numbers.__getitem__, tokens.values()), np.int32, len(tokens))
    order = np.argsort(ring)
    ring, owners = ring[order], owners[order]
    if not len(ring):
        return np.array([MIN_TOKEN]), np.empty((1, 0), np.int32)
    replicas = _walks(owners, _places(locations, nodes), rf)
    # The last range ends at the ring's end and has the replicas of the lowest token. A token at the
    # lower bound is the end of that range and the start of the first one.
    if int(ring[0]) == MIN_TOKEN:
        return ring, np.roll(replicas, -1, axis=0)
    return np.insert(ring, 0, MIN_TOKEN), np.concatenate((replicas, replicas[:1]))


def _places(locations: Mapping[str, NodeLocation], nodes: NodeNumbers) -> list[NodeLocation | None]:
    """Return the dc and rack of each node by number; None for nodes that are not in this ring."""
    return [locations.get(name) for name in nodes.names]


def _walks(owners: Numbers, places: list[NodeLocation | None], rf: Mapping[str, int]) -> Numbers:
    """Return the replicas that the walk from each token finds; ``owners`` are in ring order."""
    count = len(owners)
    met = list[Positions]()
    for dc in sorted(dc for dc in rf if rf[dc] > 0):
        inside = np.array([place is not None and place.dc == dc for place in places])
        here = np.flatnonzero(inside[owners])
        if len(here):
            positions = walks_of_dc(owners[here], _racks(owners[here], places), rf[dc])
            # Walks begin at the next token of the dc. Places are converted to places of the whole
            # ring.
            around = positions[:, next_of(here, count) % len(here)]
            turns = (next_of(here, count) // len(here) + around // len(here)) * count
            met.append(here[around % len(here)] + turns)
    if not met:
        return np.empty((count, 0), np.int32)
    walked = np.sort(np.concatenate(met), axis=0) if len(met) > 1 else met[0]
    return np.ascontiguousarray(owners[walked % count].T)


def _racks(owners: Numbers, places: list[NodeLocation | None]) -> Numbers:
    """Return the rack of each token's owner, by number. All owners are of one dc."""
    known = np.unique(owners)
    names = [place.rack for place in (places[node] for node in known.tolist()) if place is not None]
    numbers = {rack: number for number, rack in enumerate(sorted(set(names)))}
    by_node = np.zeros(int(known[-1]) + 1, np.int32)
    by_node[known] = [numbers[name] for name in names]
    return by_node[owners]


def walks_of_dc(owners: Numbers, racks: Numbers, rf: int) -> Positions:
    """Return the places at which the walk from each token of a dc finds its replicas.

    The shape is (replicas, tokens), ascending.

    ``owners`` are its tokens' owners in ring order. ``racks`` are these owners' racks, numbered
    without gaps.
    """
    if rf == 1:
        return np.arange(len(owners))[np.newaxis]
    nodes, rack_count = len(np.unique(owners)), int(racks.max()) + 1
    wanted = min(rf, nodes)
    found: Positions | None
    # Every node holds everything, so the walk takes all of them.
    if nodes <= rf:
        found = _first_of_each(owners, wanted)
    # One replica in each of the nearest racks.
    elif rack_count >= rf:
        few = rack_count <= MAX_GROUPS
        found = _first_of_each(racks, wanted) if few else _distinct(racks, None, wanted)
    else:
        # One replica in each rack first, then the next other nodes.
        found = _distinct(owners, _first_of_each(racks, rack_count), wanted - rack_count)
    if found is None:
        rule = DcRule(rf, rf - rack_count)
        found = np.array(walk(owners.tolist(), racks.tolist(), rule), np.int64).T
    return found


def _first_of_each(groups: Numbers, wanted: int) -> Positions:
    """Return the nearest ``wanted`` groups' next tokens at or after each token, ascending."""
    found = [next_of(np.flatnonzero(groups == g), len(groups), True) for g in np.unique(groups)]
    return np.sort(np.array(found), axis=0)[:wanted]


def next_of(here: Positions, count: int, unwrapped: bool = False) -> Positions:
    """Return for each place of the ring the next of ``here``, which is sorted, at or after it.

    The result is an index into ``here``, equal to its length where the next one is in the next
    turn. With ``unwrapped`` the result is a place.
    """
    # ``np.diff`` and ``np.append`` take several times as long.
    places = np.empty(len(here) + 2, np.int64)
    places[0], places[1:-1], places[-1] = -1, here, count - 1
    steps = places[1:] - places[:-1]
    if not unwrapped:
        return np.repeat(np.arange(len(steps)), steps)
    places[-1] = here[0] + count
    return np.repeat(places[1:], steps)


def _distinct(groups: Numbers, taken: Positions | None, wanted: int) -> Positions | None:
    """Return the next ``wanted`` tokens of distinct groups at or after each token.

    Their groups also differ from those of ``taken``, whose tokens are included. All are ascending.
    Returns None if some walk is longer than MAX_ROUNDS.
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
