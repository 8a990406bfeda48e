"""The fair share of each node of a dc: as even as its racks and its nodes permit.

A share is in rings. A node that holds a replica of everything has share 1, and the nodes of a dc
have ``rf`` together. The rules of ``strategy`` limit it. A node never has two replicas. A rack has
one replica while there are as many racks as replicas. With fewer racks, each has at least one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stele.domain.ring.columns import Numbers
from stele.domain.ring.ranges import MIN_TOKEN, RING_SIZE, distance, wrapped
from stele.domain.ring.strategy import NodeLocation, Positions, next_of, walks_of_dc

Shares = npt.NDArray[np.float64]
Racks = npt.NDArray[np.int32]

ROUNDING: Final = 1e-9


def fair_shares(tokens: npt.NDArray[np.int64], racks: Racks, rf: int) -> Shares:
    """Return the shares that make the largest share per token as small as possible.

    ``tokens`` is the number of tokens of each node, ``racks`` its rack, numbered from 0.
    """
    rack_count = int(racks.max()) + 1
    replicas = min(rf, len(tokens))
    fair = np.zeros(len(tokens))
    settled = np.zeros(rack_count, np.bool_)
    while not settled.all():
        free = ~settled[racks]
        fair[free] = _proportional(tokens[free], replicas - int(settled.sum()))
        held = np.bincount(racks, fair, rack_count).astype(np.float64)
        bent = ~settled & _beyond_one(held, rack_count, rf)
        # A rack that breaks its limit is fixed at one replica. The others share the rest again, so
        # the loop ends after at most one pass for each rack.
        if not bent.any():
            break
        for rack in np.flatnonzero(bent).tolist():
            fair[racks == rack] = _proportional(tokens[racks == rack], 1)
        settled |= bent
    return fair


def _beyond_one(held: Shares, rack_count: int, rf: int) -> npt.NDArray[np.bool_]:
    """Return the racks whose share is on the wrong side of one replica of everything."""
    if rack_count > rf:
        return held > 1 + ROUNDING
    if rack_count < rf:
        return held < 1 - ROUNDING
    return np.ones(rack_count, np.bool_)


def _proportional(tokens: npt.NDArray[np.int64], replicas: int) -> Shares:
    """Return shares in proportion to the tokens, with the sum ``replicas``. None is above 1."""
    fair = np.ones(len(tokens))
    free = np.ones(len(tokens), np.bool_)
    while free.any():
        left = replicas - int((~free).sum())
        fair[free] = tokens[free] * (left / int(tokens[free].sum()))
        full = free & (fair > 1 + ROUNDING)
        if not full.any():
            break
        fair[full] = 1
        free &= ~full
    return fair


# The shares that a new token would take from other nodes, for every place of a dc's ring at once.
#
# A token of the new node that cuts range i makes it a replica of a part of that range. It also
# becomes a replica of some ranges before it: those whose walk reaches the token before it finds all
# replicas. In each of these one replica is then surplus, and that node loses what the new node
# gains.
#
# Ranges are numbered by the token at their end. A range of an earlier turn has a number that is
# lower by the number of tokens.


@dataclass(frozen=True, slots=True)
class DcRing:
    """The tokens of a dc in ring order with their owners, and the rack of each node, by numbers.

    The new node has the highest number, whether or not it has tokens yet.
    """

    tokens: npt.NDArray[np.int64]
    owners: Numbers
    racks: Racks

    @property
    def newcomer(self) -> int:
        return len(self.racks) - 1

    def sizes(self) -> Shares:
        """Return the part of the ring that ends at each token."""
        ends = self.tokens.astype(np.float64)
        starts = np.roll(ends, 1)
        starts[0] -= RING_SIZE
        return (ends - starts) / RING_SIZE

    def with_tokens(self, tokens: list[int]) -> Self:
        """Return the ring with more tokens of the new node."""
        added = np.array(sorted(tokens), np.int64)
        at = np.searchsorted(self.tokens, added)
        owners = np.insert(self.owners, at, self.newcomer)
        return type(self)(np.insert(self.tokens, at, added), owners, self.racks)

    def without_tokens(self, tokens: list[int]) -> Self:
        kept = ~np.isin(self.tokens, np.array(tokens, np.int64))
        return type(self)(self.tokens[kept], self.owners[kept], self.racks)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The shares that a token takes at each evaluated place, in rings.

    ``losers`` and ``taken`` have the shape (losses, places). They hold the losing nodes and their
    losses, which do not depend on the token's place in its range. From the range itself the token
    takes a part of ``at_most``, at the cost of the first loser.
    """

    losers: Numbers
    taken: Shares
    at_most: Shares
    reached: Positions
    """For each place the first range that the new node becomes a replica of."""


@dataclass(frozen=True, slots=True)
class NaturalReplicas:
    """The natural replicas of a ring for one replication factor, as a new token would
    change them.
    """

    by_node: Shares
    """The share of each node, in rings."""
    losers: Numbers
    """For each range the node that loses its part to a new token which becomes a replica."""
    limits: Positions
    """For each range the last token before which a new one becomes its replica. Values never
    descend.
    """
    gains: Shares
    """Sizes of the ranges; 0 for ranges that the new node holds already."""


def loads_of(ring: DcRing, sizes: Shares, rf: int) -> NaturalReplicas:
    """Return the loads of a ring whose ranges have these ``sizes``.

    There must be more nodes than ``rf``. If there are no more racks than ``rf``, the new node's
    rack must have another node. Otherwise the new node holds everything, with any tokens.
    """
    count, racks = len(ring.tokens), ring.racks[ring.owners]
    walks = walks_of_dc(ring.owners, racks, rf)
    replicas = ring.owners[walks % count]
    by_node = np.zeros(len(ring.racks))
    for column in replicas:
        by_node += np.bincount(column, sizes, len(ring.racks))
    limits = _limits(ring, racks, walks, rf)
    held = (replicas == ring.newcomer).any(axis=0)
    return NaturalReplicas(by_node, ring.owners[limits % count], limits, np.where(held, 0, sizes))


def _limits(ring: DcRing, racks: Numbers, walks: Positions, rf: int) -> Positions:
    """Return for each range the place of the replica that a new replica before it makes surplus.

    With enough racks for all replicas, that is the replica in the new node's rack, or the last one
    if there is none. Otherwise it is the last replica that shares its rack with another. If the
    replica in the new node's rack comes later, it then belongs to these.
    """
    rack = ring.racks[ring.newcomer]
    inside = np.flatnonzero(racks == rack)
    if int(ring.racks.max()) + 1 >= rf:
        last: Positions = walks[-1]
        return np.minimum(next_of(inside, len(racks), True), last) if len(inside) else last
    limits = next_of(inside, len(racks), True)
    met = racks[walks % len(racks)]
    for place in range(1, len(walks)):
        repeats = (met[:place] == met[place]).any(axis=0)
        limits = np.where(repeats, np.maximum(limits, walks[place]), limits)
    return limits


def cuts_at(loads: NaturalReplicas, places: Positions) -> Cuts:
    """Return the shares that a token in each of these ranges takes.

    Adjacent ranges that the same node loses count as one loss.
    """
    count = len(loads.limits)
    before = np.concatenate(((0.0,), loads.gains.cumsum()))
    changes = np.flatnonzero(loads.losers[1:] != loads.losers[:-1]) + 1
    begins = np.zeros(count, np.int64)
    begins[changes] = changes
    begins = np.maximum.accumulate(begins)

    def gained(end: Positions) -> Shares:
        """Return all gains up to a range, from the start of the turn before."""
        return np.asarray(before[end % count] + end // count * before[-1])

    # Ranges before range 0 belong to the turn before. All places are therefore put into the second
    # turn.
    at = places + count
    reached = np.searchsorted(loads.limits, at)
    reached = np.where(reached < count, reached, np.searchsorted(loads.limits, places) + count)
    reached = np.maximum(reached, places + 1)
    begin = np.maximum(begins[places] + count, reached)
    lose, taken = [loads.losers[places]], [gained(at) - gained(begin)]
    # Each pass goes one loser further back, until every place has reached its first range.
    while (begin > reached).any():
        end, last = begin, (begin - 1) % count
        begin = np.maximum(begins[last] + (end - 1 - last), reached)
        lose.append(loads.losers[last])
        taken.append(gained(end) - gained(begin))
    return Cuts(np.array(lose), np.array(taken), loads.gains[places], reached - count)


# The places for tokens that even out the loads most, under several replication factors at once.
#
# The cost of uneven loads is a sum over nodes and factors: a penalty for each node's deviation from
# its fair share. For one token the cost is a quadratic function of the token's place in its range.
# The best place of each range therefore follows directly.


STEEPNESS: Final = 2.0
"""A deviation x costs ``x**2 + STEEPNESS * x**4``.

One node far off its share counts more than many that are nearly right. A steeper penalty makes
nodes with few tokens less even, because their deviations are too large for one quadratic step.
"""
RANGE_WEIGHT: Final = 0.001
"""Weight of the squared sizes of ranges, in mean ranges.

Without it a few ranges stay huge. Later nodes cannot cut them without taking too much, while other
tokens own almost none of the ring.
"""
NARROWEST: Final = 1 / 64
"""The smallest part of a range that a token cuts off."""
PLACES_FOR_A_TOKEN: Final = 4
MIN_PLACES: Final = 1024
"""Number of places that are evaluated. If there are more, the most promising ones are."""
TOKENS_FOR_A_SCORE: Final = 64
"""With more tokens than this, several are chosen from one evaluation of all places."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Even loads for one replication factor; ``fair`` is each node's share, in rings."""

    factor: int
    weight: float
    fair: Shares


class Balance:
    """One evaluation of a ring, which picks places for tokens that do not affect each other."""

    def __init__(self, ring: DcRing, goals: Sequence[Goal], wanted: int) -> None:
        self._goals = goals
        self._newcomer = ring.newcomer
        self._several = 1 + wanted // TOKENS_FOR_A_SCORE
        sizes = ring.sizes()
        loads = [loads_of(ring, sizes, goal.factor) for goal in goals]
        self._held = [one.by_node for one in loads]
        most = max(MIN_PLACES, PLACES_FOR_A_TOKEN * wanted)
        self._places = self._promising(loads, sizes, most)
        self._cuts = [cuts_at(one, self._places) for one in loads]
        self._reached = np.minimum.reduce([cuts.reached for cuts in self._cuts])
        self._ranges = RANGE_WEIGHT * (sizes[self._places] * len(sizes)) ** 2
        self._count = len(sizes)
        self._open = sizes[self._places] * len(sizes) > NARROWEST

    def pick(self, done: int, stop: int, total: int) -> Iterator[tuple[int, float]]:
        """Yield ranges, and in each the part before the token, for the next tokens.

        They are the tokens ``done`` to ``stop`` of ``total``.

        Fewer are yielded if the remaining ones would affect each other; at least one if any place
        is open.
        """
        while done < stop and self._open.any():
            part, cost = self._best(target=(done + 1) / total)
            # Tokens that take from the same node change each other's cost, so one pick uses each
            # loser once.
            touched = set[int]()
            several = min(self._several, stop - done)
            for at in np.argsort(cost, kind="stable")[: 4 * several].tolist():
                losers = {int(node) for cuts in self._cuts for node in cuts.losers[:, at]}
                if not self._open[at] or not touched.isdisjoint(losers):
                    continue
                touched |= losers
                self._take(at, float(part[at]))
                yield int(self._places[at]), float(part[at])
                done, several = done + 1, several - 1
                if not several:
                    break

    def _promising(self, loads: Sequence[NaturalReplicas], sizes: Shares, most: int) -> Positions:
        """Return the ranges with the best cuts in half, judged by the first loser alone."""
        if len(sizes) <= most:
            return np.arange(len(sizes))
        gain = (RANGE_WEIGHT / 2 * len(sizes) ** 2) * sizes**2
        for goal, one in zip(self._goals, loads, strict=True):
            slope, _ = _penalty(one.by_node / goal.fair - 1)
            gain += goal.weight / 2 * one.gains * (slope / goal.fair)[one.losers]
        return np.sort(np.argsort(-gain, kind="stable")[:most])

    def _best(self, target: float) -> tuple[Shares, Shares]:
        """Return for each place the best part to cut off, and the change of all penalties.

        The new node's penalty is its distance to ``target``, the part of its fair share that it
        should have so far.
        """
        square, linear, fixed = 2 * self._ranges, -2 * self._ranges, np.zeros(len(self._places))
        for goal, cuts, held in zip(self._goals, self._cuts, self._held, strict=True):
            slope, curve = _penalty(held / goal.fair - 1)
            losers, first = cuts.losers, cuts.losers[0]
            lost, at_most = cuts.taken / goal.fair[losers], cuts.at_most / goal.fair[first]
            fixed += goal.weight * ((curve[losers] * lost - slope[losers]) * lost).sum(axis=0)
            linear += goal.weight * at_most * (2 * curve[first] * lost[0] - slope[first])
            square += goal.weight * curve[first] * at_most**2
            own = goal.fair[self._newcomer]
            off = (held[self._newcomer] + cuts.taken.sum(axis=0)) / own - target
            gain = cuts.at_most / own
            fixed += goal.weight * off**2
            linear += goal.weight * 2 * off * gain
            square += goal.weight * gain**2
        part = np.clip(-linear / (2 * square), NARROWEST, 1 - NARROWEST)
        cost = (square * part + linear) * part + fixed
        return part, np.where(self._open, cost, np.inf)

    def _take(self, at: int, part: float) -> None:
        """Count the token in, and close all places whose ranges it touches."""
        for cuts, held in zip(self._cuts, self._held, strict=True):
            _move(cuts, held, at, part, self._newcomer)
        place, reached = self._places[at], self._reached[at]
        # Places repeat each turn of the ring, so the ranges of the turns before and after count
        # too.
        for turn in (-self._count, 0, self._count):
            apart = (self._places + turn < reached) | (self._reached + turn > place)
            self._open &= apart


def _penalty(deviation: Shares) -> tuple[Shares, Shares]:
    """Return the first derivative of the penalty, and half of the second."""
    squared = deviation**2
    return (2 + 4 * STEEPNESS * squared) * deviation, 1 + 6 * STEEPNESS * squared


def _move(cuts: Cuts, held: Shares, at: int, part: float, newcomer: int) -> None:
    taken = cuts.taken[:, at].copy()
    taken[0] += part * cuts.at_most[at]
    for loser, amount in zip(cuts.losers[:, at].tolist(), taken.tolist(), strict=True):
        held[loser] -= amount
        held[newcomer] += amount


# Choose the tokens of a joining node so that every node holds its fair share of the replicas.
#
# A token takes ranges from several nodes, and from others under each replication factor. Each place
# is therefore weighed by its effect on the loads under every factor that matters. The best places
# are taken one after the other (docs/decisions/014). Cassandra's ``dht/tokenallocator`` weighs one
# factor.


DEFAULT_FACTOR: Final = 3
"""Assumed replication factor of a dc without keyspaces."""
USUAL_FACTORS: Final = frozenset({1, 2, 3})
"""Factors that are always weighed. Keyspaces come after nodes, and a range's first replica is its
primary.
"""
SPARE_WEIGHT: Final = 0.2
"""Weight of a factor that no keyspace has. A factor in use has weight 1."""
MAX_FACTORS: Final = 4
"""Largest number of factors. Each takes the same time."""

RANGES_FOR_A_TOKEN: Final = 128
"""Ranges that the ring must have for each token that is chosen from one count of the loads."""
MAX_COUNTS: Final = 32
"""Most counts of the loads for one choice of all tokens, if a count allows several tokens."""
REVISED_RANGES: Final = 2048
MAX_REVISIONS: Final = 2
"""Most rounds of choosing tokens again after all are known.

``REVISED_RANGES`` limits the ranges of all rounds together. A large ring does not need it.
"""

REMEMBERED: Final = 1024
"""Choices that are kept. A group of nodes that waits for room is planned again after
every epoch.
"""
_known: Final = dict[bytes, tuple[int, ...]]()
"""Chosen tokens by the fingerprint of everything that they depend on."""


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
    """Return ``num_tokens`` new tokens for ``node``, sorted. Equal arguments give equal tokens.

    ``owned`` maps each token of the whole ring to its owner. These tokens, those in ``reserved``
    and MIN_TOKEN are never chosen. ``factors`` are the replication factors of keyspaces in the
    node's dc. Raises ValueError when ``num_tokens`` is below 1 or ``node`` owns tokens already.
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
    key = _fingerprint(ring, num_tokens, taken, factors)
    found = _known.get(key)
    if found is None:
        found = _chosen(ring, _goals(ring, num_tokens, factors), num_tokens, taken)
        _known[key] = found
        if len(_known) > REMEMBERED:
            # Plans are made in threads too. A list is made in one step, an iterator would raise
            # RuntimeError when another thread inserts.
            oldest, *_ = [*_known]
            _known.pop(oldest, None)
    return found


def _fingerprint(ring: DcRing, num_tokens: int, taken: Set[int], factors: Set[int]) -> bytes:
    """Return a digest of everything that the choice of tokens depends on."""
    others = np.sort(np.fromiter(taken, np.int64, len(taken)))
    digest = hashlib.blake2b(digest_size=32)
    for column in (ring.tokens, ring.owners, ring.racks, others):
        digest.update(len(column).to_bytes(8, "big") + column.tobytes())
    digest.update(repr((num_tokens, sorted(factors))).encode())
    return digest.digest()


def _dc_ring(owned: Mapping[int, str], numbers: Mapping[str, int], racks: list[str]) -> DcRing:
    """Return the ring of a dc: the tokens of the nodes with numbers from 0.

    ``racks`` are the racks of these nodes, followed by the rack of the new node.
    """
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
    """Return the goals that the new node's tokens can influence."""
    counts = np.append(np.bincount(ring.owners), num_tokens)
    alone = ring.racks[-1] not in ring.racks[:-1]
    racks = int(ring.racks.max()) + 1
    in_use = {factor for factor in factors if factor > 0} or {DEFAULT_FACTOR}
    goals = list[Goal]()
    for factor in sorted({*in_use, *USUAL_FACTORS}, key=lambda rf: (rf not in in_use, rf)):
        if factor >= len(counts) or (alone and racks <= factor):
            continue  # Any tokens make it a replica of everything.
        weight = 1.0 if factor in in_use else SPARE_WEIGHT
        goals.append(Goal(factor, weight, fair_shares(counts, ring.racks, factor)))
    return goals[:MAX_FACTORS]


def _chosen(ring: DcRing, goals: list[Goal], num_tokens: int, taken: set[int]) -> tuple[int, ...]:
    """Return the tokens, each the best when it was chosen.

    A small ring replaces the oldest by better ones.
    """
    found = list[int]()
    revisions = min(MAX_REVISIONS, REVISED_RANGES // len(ring.tokens))
    revised = 0
    while len(found) < num_tokens or revised < revisions * num_tokens:
        several = max(1, len(ring.tokens) // RANGES_FOR_A_TOKEN, num_tokens // MAX_COUNTS)
        if len(found) == num_tokens:
            old, found = found[:several], found[several:]
            revised += len(old)
            # The old tokens leave the ring first, so that the loads are counted without them and
            # they can be chosen again.
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
    """Return tokens at equal distances.

    The seed shifts them, so that tokens of several dcs differ.
    """
    offset = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    spaced = (wrapped(offset + i * RING_SIZE // num_tokens) for i in range(num_tokens))
    return tuple(sorted(_next_free(token, taken) for token in spaced))


def _next_free(token: int, taken: Set[int]) -> int:
    """Return the token, or the nearest free one below it."""
    while token in taken:
        token = wrapped(token - 1)
    return token
