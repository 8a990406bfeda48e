"""The tablets of an image in the planner's form: nodes, tables and tablets by number."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.balancer.load import NO_LOADS, LoadTable, Measure, heats, known_stats, measure_of
from stele.domain.image import Image
from stele.domain.model.membership import Node as Member
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table
from stele.domain.model.settings import MINIMAL_RATE, MINIMAL_SIZE
from stele.domain.model.tablet_stats import COLUMNS, TabletStats
from stele.domain.names import JOINING, STAYS, RequestStatus, TransitionState
from stele.domain.planner.cluster import BalanceOptions, ClusterNode, NodeRole
from stele.domain.planner.moves import REPAIR_WEIGHT, WEIGHT
from stele.domain.planner.state import NOBODY, BalanceColumns, ReplicaRates
from stele.domain.ring.columns import Rows, joined, widened
from stele.domain.ring.placement import EMPTY_RING, WRITES, read_shards, reads_of
from stele.domain.tablets.copies import goal
from stele.domain.tablets.maps import moving, names_tablet, row_of, tablet_of
from stele.domain.topology.operations.repairs import participants

_BEFORE_READS_MOVE: Final = (
    TransitionState.ALLOW_WRITE_BOTH_READ_OLD,
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.STREAMING,
    TransitionState.REPAIR,
    TransitionState.RESTORE,
)


@dataclass(frozen=True)
class Tablets:
    """All tablet maps in the planner's form.

    ``state`` has one unit for each tablet. The units of a table are in the order of its map and
    begin at its ``first``. ``names`` are full names of tables and ``node_ids`` those of nodes, both
    in the order of ``state``. ``measure`` says by what the state is balanced. ``stats`` holds by
    data id the known sizes and rates of tablets. Co-located tables count as one, under the name of
    the map's owner; ``together`` is their number.
    """

    state: BalanceColumns
    names: list[str]
    first: list[int]
    node_ids: list[str]
    measure: Measure
    stats: Mapping[str, TabletStats]
    together: npt.NDArray[np.int64]

    @cached_property
    def place(self) -> dict[str, int]:
        """The position of each table, by full name."""
        return {name: at for at, name in enumerate(self.names)}

    def held(self, on: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return by table the replicas on the nodes of a mask; each co-located table counts."""
        found: npt.NDArray[np.int64] = self.state.count[:, on].sum(axis=1) * self.together
        return found

    def numbers(self, nodes: Set[str]) -> frozenset[int]:
        """Return the numbers of those of the nodes that ``state`` has."""
        return frozenset(at for at, node_id in enumerate(self.node_ids) if node_id in nodes)

    def tablets_of(self, table: str) -> int:
        """Return the number of tablets of the table of this name."""
        at = self.place[table]
        ends = (*self.first[1:], len(self.state.table))
        return ends[at] - self.first[at]

    def tablet(self, unit: int) -> tuple[str, int]:
        """Return the full name of a unit's table and the tablet's number."""
        at = bisect_right(self.first, unit) - 1
        return self.names[at], unit - self.first[at]


def tablets_of(
    image: Image,
    down: Set[str] = frozenset(),
    waiting: Set[str] = frozenset(),
    loads: LoadTable = NO_LOADS,
) -> Tablets:
    """Return the tablets of all maps that are not being dropped.

    Moves under way count at their target.

    Nodes that are about to leave are to be drained, except those that are ``waiting`` to. Nodes in
    ``down`` count as down. ``loads`` are reports of nodes: without them all tablets have unknown
    size and count the same.
    """
    groups, placements = image.schema.tablet_groups, image.ring.placements
    maps = [placements[group.owner.placement] for group in groups]
    settings, ids = image.features.settings, [group.data.data_id for group in groups]
    stats = known_stats(image, loads)
    heat = heats(stats, loads.heat, MINIMAL_RATE.of(settings))
    measure = measure_of(image, loads, heat)
    # All maps at once, since a few operations for each of thousands of tables would take seconds.
    chunks = [chunk.rows for placement in maps for chunk in placement.table.chunks]
    rows = joined(chunks or [EMPTY_RING.table.empty])
    nodes = _nodes(image, rows, down, waiting, loads)
    place = {node.id: at for at, node in enumerate(nodes)}
    counts = [*map(len, maps)]
    first = (np.cumsum(counts) - counts).tolist() if counts else []
    units = {
        group.owner.placement: (at, n) for group, at, n in zip(groups, first, counts, strict=True)
    }
    node, shard, busy = _replicas(image, rows, units, place)
    columns = [*(stats[data_id].columns for data_id in ids), np.zeros((COLUMNS, 0))]
    all_ = TabletStats(np.concatenate(columns, axis=1))
    state = BalanceColumns(
        nodes,
        len(maps),
        np.repeat(np.arange(len(maps)), counts),
        # Unknown sizes count as empty once any are known; see ``measure_of``.
        np.nan_to_num(all_.sizes) if loads.by_node else all_.sizes,
        node,
        np.where(node == NOBODY, 0, shard),
        busy,
        BalanceOptions(
            balance_by=measure.by,
            minimal_tablet_size_bytes=MINIMAL_SIZE.of(settings),
            rate_weight=measure.rate_weight,
        ),
        ReplicaRates(
            all_.rates,
            np.concatenate([*(heat[data_id] for data_id in ids), np.zeros(0)]),
        ),
    )
    _list_racks(image, state, [group.owner for group in groups])
    _count_streams(image, state, place)
    names = [group.data.name for group in groups]
    together = np.array([len(group.tables) for group in groups], np.int64)
    return Tablets(state, names, first, [node.id for node in nodes], measure, stats, together)


def _list_racks(image: Image, state: BalanceColumns, tables: list[Table]) -> None:
    listed = {id_: goal(image, keyspace).racks for id_, keyspace in image.schema.by_id.items()}
    for at, table in enumerate(tables):
        for dc, racks in listed[table.keyspace_id].items():
            state.list_racks(at, dc, racks)


def _count_streams(image: Image, state: BalanceColumns, place: Mapping[str, int]) -> None:
    """Reserve the streams of each request that has not finished streaming, by shard."""
    for request in image.requests.unfinished_by_id.values():
        transition = image.topology.transitions.get(request.request_id)
        streams_yet = transition is None or (
            # A marked transition is on its way back and streams nothing more.
            transition.state in _BEFORE_READS_MOVE and not transition.mark
        )
        if (request.moves_replica or request.stays_in_place) and streams_yet:
            sources, targets = _streams(image, request)
            weight = REPAIR_WEIGHT if request.stays_in_place else WEIGHT
            for shards, streams in ((sources, state.reading), (targets, state.writing)):
                for node_id in shards.keys() & place.keys():
                    streams[state.first_shard[place[node_id]] + shards[node_id]] += weight


def _streams(image: Image, request: Request) -> tuple[dict[str, int], dict[str, int]]:
    """Return the shards that are read from and those that are written to, by node.

    A moved replica reads from its source, or from all live replicas if the source is dead. A new
    replica reads from all others. After a deletion that leaves two or more, the remaining replicas
    exchange the rows that they lack. In a repair, all participants do the same. In a restore,
    replicas read each other's files, and each of them writes.
    """
    # After a resize the number stands for another tablet. Its shards must not be charged.
    if not names_tablet(image, request):
        return {}, {}
    placement = image.ring.placements[image.schema.tables[request.table_id].placement]
    row = row_of(placement, request.tablet)
    comes = {request.to_node: max(request.to_shard, 0)} if request.to_node else {}
    dead = image.membership.excluded()
    rest = {n: row.shard_of(n) for n in row.reads if n != request.from_node and n not in dead}
    if request.moves_replica and not request.recounts and request.from_node not in dead:
        leaves = request.from_node in row.writes
        return {request.from_node: row.shard_of(request.from_node)} if leaves else {}, comes
    if request.to_node:
        return rest, comes
    if request.repairs_tablet:
        named = participants(image, request.among, rest)
        rest = {node: shard for node, shard in rest.items() if node in named}
        # A single participant has nothing to compare with and streams nothing.
        return (rest, rest) if len(rest) > 1 else ({}, {})
    # Each replica reads the files of all writers, so a single replica streams as well.
    if request.restores_tablet:
        return rest, rest
    return rest, rest if len(rest) > 1 else {}


def _nodes(
    image: Image, rows: Rows, down: Set[str], waiting: Set[str], loads: LoadTable
) -> list[ClusterNode]:
    """Return the nodes that take tablets, and all others that hold some and must be emptied."""
    going, members = image.requests.going(), image.membership.nodes
    names, in_replacement = image.ring.nodes.names, image.requests.in_replacement()
    holds = np.bincount(rows.values[WRITES].ravel() + 1, minlength=len(names) + 1)[1:] > 0
    used = {*compress(names, holds.tolist())}
    # Moves count at their target, so a target needs a column even before it holds any tablet.
    used |= {node_id for _, _, row in moving(image) for node_id in row.new}
    found = list[ClusterNode]()
    for node_id in sorted(members):
        node = members[node_id]
        stays = node.state in STAYS and bool(node.tokens)
        if stays or node_id in used:
            state = planner_state(
                node, goes=node_id in going - waiting, is_down=node_id in down | waiting
            )
            if node_id in in_replacement:  # tablets of the dead wait until the new node is a member
                state = NodeRole.DOWN
            capacity = loads.capacity_bytes(node_id)
            found.append(ClusterNode(node_id, node.dc, node.rack, node.shards, capacity, state))
    return found


def planner_state(node: Member, *, goes: bool, is_down: bool) -> NodeRole:
    """Return the planner's state of a member.

    A node that replaces another is down for the planner: it gives and gets nothing until the
    replacement is done.
    """
    if not node.takes_part():
        return NodeRole.EXCLUDED
    if goes or not (node.tokens or node.state in JOINING):
        return NodeRole.DRAINING
    return NodeRole.DOWN if is_down or node.state not in STAYS else NodeRole.NORMAL


def _afterwards(image: Image) -> dict[str, list[tuple[int, dict[str, int]]]]:
    """Return by map the range end of each moving tablet, with its shard by node afterwards."""
    found = defaultdict[str, list[tuple[int, dict[str, int]]]](list)
    for transition, name, row in moving(image):
        # A marked transition returns to the earlier replicas.
        places = row.places_before() if transition.mark else row.places_after()
        found[name].append((row.end, places))
    return found


def _asked(image: Image) -> Iterator[tuple[Request, str]]:
    """Yield the moves, repairs and restores that have not begun, each with its map."""
    for request in image.requests.unfinished_by_id.values():
        changes = request.moves_replica or request.stays_in_place
        if changes and request.status is RequestStatus.PENDING:
            table = image.schema.tables.get(request.table_id)
            if table is not None:
                yield request, table.placement


def _replicas(
    image: Image,
    rows: Rows,
    units: Mapping[str, tuple[int, int]],
    place: Mapping[str, int],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the nodes by number, their shards, and the mask of busy tablets.

    ``rows`` are those of all maps. ``units`` are the first row of each map and the number of its
    tablets, by name. Tablets that move, or that a request wants to move, count at their target.
    """
    names = image.ring.nodes.names
    number = np.array([*(place.get(n, NOBODY) for n in names), NOBODY], np.int64)
    reads = reads_of(rows)
    shards = read_shards(rows, reads).astype(np.int64)
    replicas = number[reads]  # PAD indexes the last entry
    width = max(1, replicas.shape[1])
    replicas, shards = widened(replicas, width), widened(shards, width)
    busy = np.zeros(len(rows), np.bool_)
    for name, moves in _afterwards(image).items():
        first, count = units.get(name, (0, 0))
        for end, after in moves if count else ():
            unit = first + tablet_of(count, end)
            # A tablet that gains a replica may be the first with so many.
            if len(after) > replicas.shape[1]:
                replicas, shards = widened(replicas, len(after)), widened(shards, len(after))
            replicas[unit] = NOBODY
            replicas[unit, : len(after)] = [place[node_id] for node_id in after]
            shards[unit, : len(after)] = [*after.values()]
            busy[unit] = True
    for request, name in _asked(image):
        first, count = units.get(name, (0, 0))
        named = {request.from_node, request.to_node} - {""}
        # The number names another tablet if the table was resized since the request.
        if not count or request.tablet_count != count or not named <= place.keys():
            continue
        unit = first + request.tablet
        busy[unit] = True
        if request.stays_in_place:
            continue
        if not request.from_node and (replicas[unit] != NOBODY).all():
            width = replicas.shape[1] + 1
            replicas, shards = widened(replicas, width), widened(shards, width)
        row = replicas[unit]
        old, new = (place.get(name, NOBODY) for name in (request.from_node, request.to_node))
        at = np.flatnonzero(row == old)[:1]
        row[at] = new
        shards[unit, at] = max(request.to_shard, 0)
    return replicas, shards, busy
