"""Which tokens a joining node takes, so that all own their fair share (reference: cassandra_tcm 5.7).

With one replica in each rack, a node's load is what it owns of its rack's own ring; so that ring is
balanced. A dc of one rack is balanced as a whole.
"""

import hashlib
import heapq
from collections.abc import Mapping, Set
from fractions import Fraction
from itertools import pairwise

from stele.domain.ring.strategy import NodeLocation
from stele.domain.ring.tokens import MIN_TOKEN, RING_SIZE, distance, wrapped

Cut = tuple[int, int]
"""A range an owner has, as (-size in tokens, start): the largest is the first in a heap."""


def allocate_tokens(
    owned: Mapping[int, str],
    locations: Mapping[str, NodeLocation],
    node: str,
    location: NodeLocation,
    num_tokens: int,
    seed: bytes,
    reserved: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """``num_tokens`` new tokens for ``node``, sorted; the same arguments always give the same.

    ``owned`` maps each token of the whole ring to its owner. None of these is given out again, nor are
    those that are ``reserved``, nor is MIN_TOKEN. Raises ValueError when ``num_tokens`` is below 1 or
    ``node`` owns tokens already.
    """
    if num_tokens < 1:
        raise ValueError(f"A node needs at least 1 token, not {num_tokens}.")
    if node in owned.values():
        raise ValueError(f"Node '{node}' owns tokens already.")
    taken = {*owned, *reserved, MIN_TOKEN}
    ring = _ring_to_balance(owned, locations, location)
    if ring:
        return _cut_the_loaded(ring, num_tokens, taken)
    return _evenly_spaced(num_tokens, seed + node.encode(), taken)


def _ring_to_balance(
    owned: Mapping[int, str], locations: Mapping[str, NodeLocation], location: NodeLocation
) -> dict[int, str]:
    """The tokens of the node's rack, or of its dc when that has no other rack."""
    dc = {token: node for token, node in owned.items() if locations[node].dc == location.dc}
    if all(locations[node].rack == location.rack for node in dc.values()):
        return dc
    return {token: node for token, node in dc.items() if locations[node] == location}


def _evenly_spaced(num_tokens: int, seed: bytes, taken: Set[int]) -> tuple[int, ...]:
    """Tokens at equal distances. The seed turns them, so that rings of racks and dcs do not line up."""
    offset = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    spaced = (wrapped(offset + i * RING_SIZE // num_tokens) for i in range(num_tokens))
    return tuple(sorted(_next_free(token, taken) for token in spaced))


def _cut_the_loaded(ring: Mapping[int, str], num_tokens: int, taken: Set[int]) -> tuple[int, ...]:
    """Cut the largest range of whoever owns most for its number of tokens, until the share is reached.

    Each cut takes an equal part of what is missing to the fair share, which is proportional to the
    number of tokens. It is always smaller than the range that is cut: the most loaded owner has at least
    the average size of range, and the largest of its ranges has at least that.
    """
    ranges = _ranges_by_owner(ring)
    weight = {owner: len(cuts) for owner, cuts in ranges.items()}
    load = {owner: -sum(size for size, _ in cuts) for owner, cuts in ranges.items()}
    missing = RING_SIZE * num_tokens // (len(ring) + num_tokens)
    found = list[int]()
    for left in range(num_tokens, 0, -1):
        owner = max(sorted(load), key=lambda node: Fraction(load[node], weight[node]))
        negative_size, start = ranges[owner][0]
        part = min(missing // left, -negative_size - 1)
        token = _next_free(wrapped(start + part), taken)
        part = distance(start, token)
        heapq.heapreplace(ranges[owner], (negative_size + part, token))
        load[owner] -= part
        missing -= part
        found.append(token)
    return tuple(sorted(found))


def _ranges_by_owner(ring: Mapping[int, str]) -> dict[str, list[Cut]]:
    """Each owner's ranges as a heap, largest first."""
    tokens = sorted(ring)
    found: dict[str, list[Cut]] = {}
    for start, end in pairwise((tokens[-1], *tokens)):
        found.setdefault(ring[end], []).append((-distance(start, end), start))
    for cuts in found.values():
        heapq.heapify(cuts)
    return found


def _next_free(token: int, taken: Set[int]) -> int:
    """The token, or the nearest below it that nobody has."""
    while token in taken:
        token = wrapped(token - 1)
    return token
