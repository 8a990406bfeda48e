"""The default shard of a replica: the one with the fewest replicas of its table, then of all.

Replicas are counted, including requested ones, because their sizes are not in the log. A sender
that knows sizes, such as the balancer, names the shard itself.
"""

import numpy as np
import numpy.typing as npt

from stele.domain.image import Image
from stele.domain.ring.placement import WRITES, Placement, shards_of
from stele.domain.ring.ranges import ANY
from stele.domain.schema.model import Table
from stele.domain.tablets.maps import maps_of

Counts = npt.NDArray[np.int64]


class Shards:
    """Chooses shards for replicas in the order of calls. Each choice counts for the next ones."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._held = dict[tuple[str, str], Counts]()
        """Counts by node and table; the table '' holds the counts of all tables."""

    def choose(self, table: Table, node_id: str, but: int = ANY) -> int:
        """Return the shard of the node for a new replica of this table; it is never ``but``."""
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
    """Return the number of tablets of a map that each shard of a node receives writes for."""
    number = placement.nodes.numbers.get(node_id)
    found = np.zeros(shards, np.int64)
    if number is None:
        return found
    for chunk in placement.table.chunks:
        where = chunk.rows.values[WRITES] == number
        found += np.bincount(shards_of(chunk.rows)[where], minlength=shards)[:shards]
    return found
