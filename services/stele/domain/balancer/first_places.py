"""The nodes for the tablets of a new table, and how many replicas each of them has.

The result is that of ``columns.tablets_of`` without loads, from counts that the image keeps up to
date. The cost does not depend on the number of tablets.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from copy import copy
from functools import lru_cache

import msgspec
import numpy as np

from stele.domain.balancer.columns import planner_state
from stele.domain.image import Image
from stele.domain.model.ring import Counts, TabletCounts, Weighed, counts_of, replicas_on
from stele.domain.model.schema import Table
from stele.domain.names import STAYS, TABLET_MAP, RequestStatus
from stele.domain.planner.cluster import BalanceBy, BalanceOptions, ClusterNode, NodeRole
from stele.domain.planner.shares import Ints, Reals, surplus
from stele.domain.planner.state import BalanceColumns
from stele.domain.ring.columns import PAD
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tablets.maps import live_tables, moving, row_of
from stele.domain.tablets.sizing import in_rack

Shards = Counter[tuple[str, int]]
"""Replicas by node and shard."""


class FirstPlaces(msgspec.Struct, frozen=True):
    """The nodes with their loads, and the names of the nodes.

    ``state`` has no units. ``held`` are the replicas in each dc and rack by the names of
    ``sizing.scopes_of``. Each of several co-located tables counts there. ``counts`` are those of
    the image. ``moves`` are the changes of maps that moves under way make, and ``dropped`` are maps
    that count no longer.
    """

    state: BalanceColumns
    node_ids: tuple[str, ...]
    held: Mapping[str, int]
    numbers: Ints
    counts: TabletCounts
    moves: Mapping[str, Shards]
    dropped: Set[str]

    def surplus(self, nodes: Ints, weight: Reals) -> Ints:
        """Return ``shares.surplus`` of nodes, by position, after all moves."""
        key, by_map = Weighed.of(self.numbers[nodes], weight), self.counts.by_map
        found = self.counts.surplus(key) - key.surplus(by_map[name] for name in self.dropped)
        changed = sorted(self.moves.keys() - self.dropped)
        if not changed:
            return found
        found = found - key.surplus(by_map[name] for name in changed)
        after = np.zeros((len(changed), len(self.node_ids)), np.int64)
        place = {node_id: at for at, node_id in enumerate(self.node_ids)}
        for at, name in enumerate(changed):
            after[at] = replicas_on(by_map[name], self.numbers)
            # A node that only waiting moves name has no number yet.
            for (node_id, _), change in self.moves[name].items():
                if node_id in place:
                    after[at, place[node_id]] += change
        return found + surplus(after[:, nodes], weight)


def first_places(image: Image) -> FirstPlaces:
    """Count replicas where they will be after all moves that are open or waiting."""
    dropped = _dropped(image)
    alone, together, moves = Shards(), Shards(), defaultdict[str, Shards](Shards)
    for owner, change in _changes(image):
        if owner.table_id not in dropped:
            alone.update(change)
            moves[owner.placement].update(change)
            together.update({at: n * len(live_tables(image, owner)) for at, n in change.items()})
    counts, placements = image.ring.tablet_counts, image.ring.placements
    for table in dropped.values():
        gone = _shards(image, counts_of(placements[table.placement].table))
        alone.subtract(gone)
        together.subtract(gone)
    # The ring counts each map once. The other tables of its group are added here.
    for base_id in image.schema.colocated:
        owner = image.schema.tables[base_id]
        if base_id not in dropped:
            others = len(live_tables(image, owner)) - 1
            replicas = _shards(image, counts_of(placements[owner.placement].table))
            together.update({at: n * others for at, n in replicas.items()})
    replicas = _shards(image, counts.total)
    alone.update(replicas)
    together.update(replicas)
    without = {table.placement for table in dropped.values()}
    return _found(image, alone, together, moves, without)


def _found(
    image: Image,
    alone: Shards,
    together: Shards,
    moves: Mapping[str, Shards],
    dropped: Set[str],
) -> FirstPlaces:
    going, replaced = image.requests.going(), image.requests.replaced()
    used = {node_id for (node_id, _), n in alone.items() if n}
    nodes = tuple(
        ClusterNode(
            node.node_id,
            node.dc,
            node.rack,
            node.shards,
            state=NodeRole.DOWN
            if node.node_id in replaced
            else planner_state(node, goes=node.node_id in going, is_down=False),
        )
        for node in map(image.membership.nodes.__getitem__, sorted(image.membership.nodes))
        if (node.state in STAYS and node.tokens) or node.node_id in used
    )
    state = copy(_without_replicas(nodes))
    state.load, state.shard_load = state.load.copy(), state.shard_load.copy()
    # The state is indexed by position, the counts by node id.
    place = {node.id: at for at, node in enumerate(nodes)}
    for (node_id, shard), count in alone.items():
        if node_id in place:
            state.load[0, place[node_id]] += count
            state.shard_load[state.first_shard[place[node_id]] + shard] += count
    held = Counter[str]()
    for (node_id, _), count in together.items():
        if node_id in place:
            node = nodes[place[node_id]]
            held[node.dc] += count
            held[in_rack(node.dc, node.rack)] += count
    numbers = image.ring.nodes.numbers
    return FirstPlaces(
        state,
        tuple(place),
        held,
        np.array([numbers.get(node_id, PAD) for node_id in place], np.int64),
        image.ring.tablet_counts,
        moves,
        dropped,
    )


@lru_cache(maxsize=1)
def _without_replicas(nodes: tuple[ClusterNode, ...]) -> BalanceColumns:
    """Return the state of these nodes. Many tables are created between two changes of the nodes."""
    none, no_nodes = np.zeros(0, np.int64), np.zeros((0, 1), np.int64)
    by_count = BalanceOptions(balance_by=BalanceBy.COUNT)
    return BalanceColumns(
        [*nodes], 1, none, none.astype(np.float64), no_nodes, no_nodes, options=by_count
    )


def _shards(image: Image, counts: Counts) -> Shards:
    names = image.ring.nodes.names
    nodes, shards = np.nonzero(counts)
    found = zip(nodes.tolist(), shards.tolist(), counts[nodes, shards].tolist(), strict=True)
    return Shards({(names[node], shard): count for node, shard, count in found})


def _dropped(image: Image) -> dict[str, Table]:
    """Return the owners of maps that are being dropped, alone or with their keyspace.

    An open transition names each of them.
    """
    schema = image.schema
    found = list[Table]()
    for transition in image.topology.transitions.values():
        table = schema.tables.get(transition.table_id)
        if table is not None and table.dropped_version:
            found.append(table)
    for keyspace in schema.by_id.values():
        if keyspace.dropped_version:
            found.extend(schema.tables_of(keyspace))
    return {t.table_id: t for t in found if t.placement and not t.base_table_id}


def _changes(image: Image) -> Iterator[tuple[Table, Shards]]:
    """Yield the owner of each map with the replicas that a move of a tablet adds and removes."""
    tables, placements = image.schema.tables, image.ring.placements
    for transition, name, row in moving(image):
        change = Shards((row.places_before() if transition.mark else row.places_after()).items())
        change.subtract(_reads(placements[name].row_for(row.end)).items())
        yield tables[name.removeprefix(TABLET_MAP)], change
    for request in image.requests.unfinished_by_id.values():
        if not request.moves_replica or request.status is not RequestStatus.PENDING:
            continue
        table = tables.get(request.table_id)
        placement = None if table is None else placements.get(table.placement)
        if table is None or placement is None or request.tablet_count != len(placement):
            continue
        reads = _reads(row_of(placement, request.tablet))
        if not request.from_node or request.from_node in reads:
            to = [(request.to_node, max(request.to_shard, 0))] if request.to_node else []
            change = Shards(to)
            if request.from_node:
                change.subtract([(request.from_node, reads[request.from_node])])
            yield table, change


def _reads(row: RangeReplicas) -> dict[str, int]:
    """Return the shard by node."""
    return {node_id: row.shard_of(node_id) for node_id in row.reads}
