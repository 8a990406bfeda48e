"""The state of one round of replica changes: streams used, and replicas by node."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.balance.cluster import NodeRole
from stele.domain.balance.moves import WEIGHT, BalanceLimits, by_shard, fits
from stele.domain.balance.scopes import standing
from stele.domain.image import Image
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.copies import RackPlace, fewest, room
from stele.domain.tablets.load import Conditions

MOST_LOOKED_AT: Final = 4096
"""Largest number of tablets without room that one round examines. Other tablets follow in a later
one.
"""
LARGE_RACK: Final = 0.55
"""Fraction of the mean weight of the dc's racks. A smaller rack gets tablets to even out racks only
up to its share.
"""


@dataclass
class ReplicaChanges:
    """The state of one round of replica changes.

    ``count`` is the number of replicas by table and node.
    """

    image: Image
    what: Tablets
    conditions: Conditions
    limits: BalanceLimits
    passed: int = 0
    """Tablets that were examined without result."""
    places: list[RackPlace] = field(init=False)
    dc_of: list[str] = field(init=False)
    rack_of: list[str] = field(init=False)
    racks: dict[str, dict[int, str]] = field(init=False)
    """By dc the members that take tablets, with their racks. Members that are down are included."""
    takes: npt.NDArray[np.bool_] = field(init=False)
    weight: npt.NDArray[np.float64] = field(init=False)
    count: npt.NDArray[np.int64] = field(init=False)
    load: npt.NDArray[np.float64] = field(init=False)
    silent: frozenset[int] = field(init=False)
    by_shard: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """By node and table the number of replicas on each shard, for nodes that received some in this
    round.
    """

    def __post_init__(self) -> None:
        state, ids = self.what.state, self.what.node_ids
        self.places = [RackPlace(node.dc, node.rack) for node in state.nodes]
        self.dc_of = [node.dc for node in state.nodes]
        self.rack_of = [node.rack for node in state.nodes]
        place = {node_id: at for at, node_id in enumerate(ids)}
        self.racks = {
            dc: {place[n.node_id]: n.rack for n in room(self.image, dc)} for dc in {*self.dc_of}
        }
        self.weight = standing(state, draining=False).estimate
        self.takes = (state.state == NodeRole.NORMAL) & (self.weight > 0)
        self.takes[[*state.shut]] = False
        # A copy: choices of this round count for the next ones, but the state keeps the present
        # numbers.
        self.count, self.load = state.count.copy(), state.load.sum(axis=0)
        self.silent = frozenset(
            at for at, node_id in enumerate(ids) if node_id in self.conditions.down
        )

    def is_free(self, node: int) -> bool:
        """Return True if the node can take another replica now."""
        return bool(self.takes[node]) and len(self._free_shards(node)) > 0

    def _free_shards(self, node: int) -> list[int]:
        """Return the shards of a node that can take another replica now."""
        state = self.what.state
        first, shards = int(state.first_shard[node]), int(state.shards[node])
        writing = state.writing[first : first + shards].tolist()
        return [at for at, load in enumerate(writing) if fits(load, self.limits.writes)]

    def _shard_for(self, table: int, node: int) -> int:
        """Return the free shard with the fewest replicas of the table, then with the smallest load.

        The node is free, so it has such a shard.
        """
        state = self.what.state
        if node not in self.by_shard:
            tables, counts, _ = by_shard(state, node)
            self.by_shard[node] = dict(zip(tables.tolist(), counts.tolist(), strict=True))
        nothing = [0] * int(state.shards[node])
        held = self.by_shard[node].setdefault(table, nothing)
        first, free = int(state.first_shard[node]), self._free_shards(node)
        return min(free, key=lambda at: (held[at], state.shard_load[first + at], at))

    def goes_to(self, unit: int, node: int, sources: Iterable[int]) -> int | None:
        """Return the shard of a free node that receives the replica, None if the sources lack room.

        The streams and the replica count from then on.
        """
        state, table = self.what.state, int(self.what.state.table[unit])
        shard = self._shard_for(table, node)
        target = int(state.first_shard[node]) + shard
        if not self.streams([state.slot(unit, source) for source in sources], [target]):
            return None
        self.by_shard[node][table][shard] += 1
        return shard

    def is_at_its_end(self) -> bool:
        """Return True if enough tablets were examined without result, or no node has room."""
        if self.passed >= MOST_LOOKED_AT:
            return True
        return not any(map(self.is_free, np.flatnonzero(self.takes).tolist()))

    def is_large(self, dc: str, rack: str) -> bool:
        """Return True if the rack's nodes stay near their shares with a replica of every tablet."""
        racks = self.racks[dc]
        here = sum(float(self.weight[at]) for at, of in racks.items() if of == rack)
        whole = sum(float(self.weight[at]) for at in racks)
        return here * len({*racks.values()}) >= LARGE_RACK * whole

    def part(self, table: int, node: int) -> tuple[float, float, int]:
        """Return a sort key: replicas of a table, then the load, both relative to the node's
        weight.

        The node's number comes last, so that the order is always the same.
        """
        # Leaving nodes have no weight. They give replicas and receive none, so any divisor will do.
        weight = float(self.weight[node]) or 1.0
        return float(self.count[table, node]) / weight, float(self.load[node]) / weight, node

    def streams(self, sources: list[int], targets: list[int]) -> bool:
        """Reserve the streams of these shards and return True, or return False without room."""
        state = self.what.state
        # Both sides are checked before either is reserved, so a refusal leaves no trace.
        if not all(fits(state.reading[at], self.limits.reads) for at in sources):
            return False
        if not all(fits(state.writing[at], self.limits.writes) for at in targets):
            return False
        for at in sources:
            state.reading[at] += WEIGHT
        for at in targets:
            state.writing[at] += WEIGHT
        return True


def room_for(changes: ReplicaChanges, dc: str, held: list[int]) -> list[int]:
    """Return the nodes with room for a replica, in the racks of the dc that have the fewest."""
    counts = Counter(changes.rack_of[node] for node in held if changes.dc_of[node] == dc)
    others = {at: rack for at, rack in changes.racks[dc].items() if at not in held}
    racks = fewest(counts, others.values())
    return [at for at, rack in others.items() if rack in racks and changes.is_free(at)]
