"""What a new token would take from whom, for every place of a dc's ring at once.

A token of the newcomer that cuts range i makes it a replica of a part of that range, and of some ranges
before it: those from which a walk comes to the token before it has its replicas. In each of them one
replica is then one too many, and that node loses what the newcomer gains.

Ranges are numbered by the token at their end; a range of a turn earlier is lower by the number of tokens.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from stele.domain.ring.numbers import Numbers
from stele.domain.ring.shares import Racks, Shares
from stele.domain.ring.strategy import Positions, next_of, walks_of_dc
from stele.domain.ring.tokens import RING_SIZE


@dataclass(frozen=True, slots=True)
class DcRing:
    """The tokens of a dc in ring order with their owners, and the rack of each node, by numbers.

    The newcomer is the node of the highest number, whether or not it has tokens yet.
    """

    tokens: npt.NDArray[np.int64]
    owners: Numbers
    racks: Racks

    @property
    def newcomer(self) -> int:
        return len(self.racks) - 1

    def sizes(self) -> Shares:
        """The part of the ring that ends at each token."""
        ends = self.tokens.astype(np.float64)
        starts = np.roll(ends, 1)
        starts[0] -= RING_SIZE
        return (ends - starts) / RING_SIZE

    def with_tokens(self, tokens: list[int]) -> Self:
        """With more tokens of the newcomer."""
        added = np.array(sorted(tokens), np.int64)
        at = np.searchsorted(self.tokens, added)
        owners = np.insert(self.owners, at, self.newcomer)
        return type(self)(np.insert(self.tokens, at, added), owners, self.racks)

    def without_tokens(self, tokens: list[int]) -> Self:
        kept = ~np.isin(self.tokens, np.array(tokens, np.int64))
        return type(self)(self.tokens[kept], self.owners[kept], self.racks)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of each place that is looked at, what a token there takes, in rings.

    ``losers`` and ``taken`` have the shape (losses, places): who loses how much whatever the token's
    place in its range. Of that range itself it takes a part of ``at_most``, from the first of the losers.
    """

    losers: Numbers
    taken: Shares
    at_most: Shares
    reached: Positions
    """The first of the ranges of which the newcomer becomes a replica."""


@dataclass(frozen=True, slots=True)
class Loads:
    """The natural replicas of a ring for one replication factor, as a new token would change them."""

    by_node: Shares
    """What each node holds, in rings."""
    losers: Numbers
    """Who loses a range's part to a new token that becomes a replica of it."""
    limits: Positions
    """The last token before which a new one becomes a replica of the range. They never descend."""
    gains: Shares
    """Sizes of the ranges; 0 of those that the newcomer holds already."""


def loads_of(ring: DcRing, sizes: Shares, rf: int) -> Loads:
    """``sizes`` are the ring's. Nodes must be more than ``rf``, and if racks are not, the newcomer's must
    have another node: else it holds all that there is, wherever its tokens are.
    """
    count, racks = len(ring.tokens), ring.racks[ring.owners]
    walks = walks_of_dc(ring.owners, racks, rf)
    replicas = ring.owners[walks % count]
    by_node = np.zeros(len(ring.racks))
    for column in replicas:
        by_node += np.bincount(column, sizes, len(ring.racks))
    limits = _limits(ring, racks, walks, rf)
    held = (replicas == ring.newcomer).any(axis=0)
    return Loads(by_node, ring.owners[limits % count], limits, np.where(held, 0, sizes))


def _limits(ring: DcRing, racks: Numbers, walks: Positions, rf: int) -> Positions:
    """Of each range the replica that a new one in front of it makes one too many, as a place.

    While racks are enough for all replicas it is the one of the newcomer's rack, or the last if there is
    none. Otherwise it is the last of those that stand in a rack which has one, and that of the newcomer's
    rack, if it is further on, is one of these from then on.
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


def cuts_at(loads: Loads, places: Positions) -> Cuts:
    """What a token in each of these ranges takes. Ranges whose parts one node loses make up one loss."""
    count = len(loads.limits)
    before = np.concatenate(((0.0,), loads.gains.cumsum()))
    changes = np.flatnonzero(loads.losers[1:] != loads.losers[:-1]) + 1
    begins = np.zeros(count, np.int64)
    begins[changes] = changes
    begins = np.maximum.accumulate(begins)

    def gained(end: Positions) -> Shares:
        """All that is gained up to a range, from the start of the turn before."""
        return np.asarray(before[end % count] + end // count * before[-1])

    # What is before range 0 belongs to the turn before, so all places stand in the second turn.
    at = places + count
    reached = np.searchsorted(loads.limits, at)
    reached = np.where(reached < count, reached, np.searchsorted(loads.limits, places) + count)
    reached = np.maximum(reached, places + 1)
    begin = np.maximum(begins[places] + count, reached)
    lose, taken = [loads.losers[places]], [gained(at) - gained(begin)]
    while (begin > reached).any():
        end, last = begin, (begin - 1) % count
        begin = np.maximum(begins[last] + (end - 1 - last), reached)
        lose.append(loads.losers[last])
        taken.append(gained(end) - gained(begin))
    return Cuts(np.array(lose), np.array(taken), loads.gains[places], reached - count)
