"""Which shard of a node a replica goes to when nobody says: the one with least of its table, then of all.

Replicas are counted, those that are asked for too: what they hold is not in the log. Who knows it, as the
balancer does, says where to.
"""

import numpy as np
import numpy.typing as npt

from stele.domain.image import Image
from stele.domain.ring.placement import Placement
from stele.domain.ring.replicas import WRITES, shards_of
from stele.domain.ring.shards import ANY
from stele.domain.schema.facts import Table
from stele.domain.tablets.maps import maps_of

Counts = npt.NDArray[np.int64]


class Shards:
    """Where replicas come to, in the order of asking: each counts for those after it."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._held = dict[tuple[str, str], Counts]()
        """By node and table; by node and '' all."""

    def choose(self, table: Table, node_id: str, but: int = ANY) -> int:
        """The shard of a node that is to get a replica of this table; not the shard ``but`` it."""
        shards = self._image.membership.nodes[node_id].shards
        if shards == 1:
            return 0
        if (node_id, "") not in self._held:
            self._count(node_id, shards)
        nothing = np.zeros(shards, np.int64)
        of_table = self._held.setdefault((node_id, table.table_id), nothing)
        of_all = self._held[node_id, ""]
        found = min(
            (shard for shard in range(shards) if shard != but),
            key=lambda shard: (of_table[shard], of_all[shard], shard),
        )
        of_table[found] += 1
        of_all[found] += 1
        return found

    def _count(self, node_id: str, shards: int) -> None:
        total = np.zeros(shards, np.int64)
        for table, placement in maps_of(self._image):
            counts = held_by_shard(placement, node_id, shards)
            self._held[node_id, table.table_id] = counts
            total += counts
        self._held[node_id, ""] = total
        for request in self._image.requests.open.values():
            if request.to_node == node_id and request.to_shard >= 0:
                total[request.to_shard] += 1
                if (node_id, request.table_id) in self._held:
                    self._held[node_id, request.table_id][request.to_shard] += 1


def held_by_shard(placement: Placement, node_id: str, shards: int) -> Counts:
    """How many tablets of a map each shard of a node receives writes for."""
    number = placement.nodes.numbers.get(node_id)
    found = np.zeros(shards, np.int64)
    if number is None:
        return found
    for chunk in placement.table.chunks:
        where = chunk.rows.values[WRITES] == number
        found += np.bincount(shards_of(chunk.rows)[where], minlength=shards)[:shards]
    return found
