"""Which tokens a joining node takes, so that all hold their fair share of the replicas.

A token takes from several nodes, and under each replication factor from others. So places are weighed by
what they do to the loads under every factor that matters, and the best is taken, one after the other
(decision 014; reference: cassandra_tcm 5.7, where one factor is weighed).
"""

import hashlib
from collections.abc import Mapping, Set
from typing import Final

import numpy as np

from stele.domain.ring.balance import Balance, Goal
from stele.domain.ring.cuts import DcRing
from stele.domain.ring.shares import fair_shares
from stele.domain.ring.strategy import NodeLocation
from stele.domain.ring.tokens import MIN_TOKEN, RING_SIZE, distance, wrapped

DEFAULT_FACTOR: Final = 3
"""What is likely to be asked of a dc that has no keyspace yet."""
USUAL_FACTORS: Final = frozenset({1, 2, 3})
"""Weighed in any case: keyspaces come after nodes, and the first replica of a range is its primary."""
SPARE_WEIGHT: Final = 0.2
"""Of a factor that no keyspace has; those that one has count 1."""
MAX_FACTORS: Final = 4
"""Each takes as much time as the others."""

RANGES_FOR_A_TOKEN: Final = 128
"""For each token that is chosen by one count of the loads there must be so many ranges."""
MAX_COUNTS: Final = 32
"""Counts of the loads for one choice of all tokens, where there is room for several tokens a count."""
REVISED_RANGES: Final = 2048
MAX_REVISIONS: Final = 2
"""How often tokens are chosen anew when all are known: as often as this, and as all of them together go
through no more ranges. A large ring has nothing to mend."""


def allocate_tokens(
    owned: Mapping[int, str],
    locations: Mapping[str, NodeLocation],
    node: str,
    location: NodeLocation,
    num_tokens: int,
    seed: bytes,
    reserved: Set[int] = frozenset(),
    factors: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """``num_tokens`` new tokens for ``node``, sorted; the same arguments always give the same.

    ``owned`` maps each token of the whole ring to its owner. None of these is given out again, nor are
    those that are ``reserved``, nor is MIN_TOKEN. ``factors`` are the replication factors of keyspaces in
    the node's dc. Raises ValueError when ``num_tokens`` is below 1 or ``node`` owns tokens already.
    """
    if num_tokens < 1:
        raise ValueError(f"A node needs at least 1 token, not {num_tokens}.")
    owners = set(owned.values())
    if node in owners:
        raise ValueError(f"Node '{node}' owns tokens already.")
    taken = {*owned, *reserved, MIN_TOKEN}
    neighbours = sorted(owner for owner in owners if locations[owner].dc == location.dc)
    if not neighbours:
        return _evenly_spaced(num_tokens, seed + node.encode(), taken)
    racks = [*(locations[owner].rack for owner in neighbours), location.rack]
    numbers = dict.fromkeys(owners, -1) | {owner: i for i, owner in enumerate(neighbours)}
    ring = _dc_ring(owned, numbers, racks)
    return _chosen(ring, _goals(ring, num_tokens, factors), num_tokens, taken)


def _dc_ring(owned: Mapping[int, str], numbers: Mapping[str, int], racks: list[str]) -> DcRing:
    """The tokens of the nodes that have numbers from 0; the rack after all of theirs is the newcomer's."""
    tokens = np.fromiter(owned, np.int64, len(owned))
    owners = np.fromiter(map(numbers.__getitem__, owned.values()), np.int32, len(owned))
    order = np.argsort(tokens)
    order = order[owners[order] >= 0]
    # A rack that is new has the highest number, so that those of the others have no gap.
    known = sorted(set(racks[:-1]))
    names = {rack: number for number, rack in enumerate(dict.fromkeys((*known, racks[-1])))}
    placed = np.array([names[rack] for rack in racks], np.int32)
    return DcRing(tokens[order], owners[order], placed)


def _goals(ring: DcRing, num_tokens: int, factors: Set[int]) -> list[Goal]:
    """Those that the newcomer's tokens can do something for."""
    counts = np.append(np.bincount(ring.owners), num_tokens)
    alone = ring.racks[-1] not in ring.racks[:-1]
    racks = int(ring.racks.max()) + 1
    in_use = {factor for factor in factors if factor > 0} or {DEFAULT_FACTOR}
    goals = list[Goal]()
    for factor in sorted({*in_use, *USUAL_FACTORS}, key=lambda rf: (rf not in in_use, rf)):
        if factor >= len(counts) or (alone and racks <= factor):
            continue  # Whatever its tokens are, the newcomer holds all that there is.
        weight = 1.0 if factor in in_use else SPARE_WEIGHT
        goals.append(Goal(factor, weight, fair_shares(counts, ring.racks, factor)))
    return goals[:MAX_FACTORS]


def _chosen(ring: DcRing, goals: list[Goal], num_tokens: int, taken: set[int]) -> tuple[int, ...]:
    """The tokens, each the best when it was chosen; on a small ring the oldest give way to better ones."""
    found = list[int]()
    revisions = min(MAX_REVISIONS, REVISED_RANGES // len(ring.tokens))
    revised = 0
    while len(found) < num_tokens or revised < revisions * num_tokens:
        several = max(1, len(ring.tokens) // RANGES_FOR_A_TOKEN, num_tokens // MAX_COUNTS)
        if len(found) == num_tokens:
            old, found = found[:several], found[several:]
            revised += len(old)
            ring = ring.without_tokens(old)
            taken.difference_update(old)
        stop = min(len(found) + several, num_tokens)
        balance = Balance(ring, goals, stop - len(found))
        new = list[int]()
        for place, part in balance.pick(len(found), stop, num_tokens):
            start, end = int(ring.tokens[place - 1]), int(ring.tokens[place])
            size = distance(start, end) or RING_SIZE
            token = _next_free(wrapped(start + int(part * size)), taken)
            taken.add(token)
            new.append(token)
        ring = ring.with_tokens(new)
        found += new
    return tuple(sorted(found))


def _evenly_spaced(num_tokens: int, seed: bytes, taken: Set[int]) -> tuple[int, ...]:
    """Tokens at equal distances. The seed turns them, so that rings of dcs do not line up."""
    offset = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    spaced = (wrapped(offset + i * RING_SIZE // num_tokens) for i in range(num_tokens))
    return tuple(sorted(_next_free(token, taken) for token in spaced))


def _next_free(token: int, taken: Set[int]) -> int:
    """The token, or the nearest below it that nobody has."""
    while token in taken:
        token = wrapped(token - 1)
    return token
