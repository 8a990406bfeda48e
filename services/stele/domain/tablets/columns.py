"""The tablets of an image as the planner sees them: nodes, tables and tablets by number, in columns."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.balance.cluster import Node, NodeState, Options
from stele.domain.balance.moves import REPAIR_WEIGHT, WEIGHT
from stele.domain.balance.state import NOBODY, Rates, State
from stele.domain.image import Image
from stele.domain.membership.facts import Node as Member
from stele.domain.names import JOINING, STAYS, RequestStatus, TransitionState
from stele.domain.requests.facts import Request
from stele.domain.ring.columns import widened
from stele.domain.ring.numbers import PAD
from stele.domain.ring.placement import Placement
from stele.domain.ring.replicas import read_shards, reads_of
from stele.domain.schema.facts import Table
from stele.domain.tablets.copies import goal
from stele.domain.tablets.groups import standing
from stele.domain.tablets.heat import heats, told_of
from stele.domain.tablets.limits import MINIMAL_RATE, MINIMAL_SIZE
from stele.domain.tablets.load import NO_LOADS, LoadTable
from stele.domain.tablets.maps import holders, maps_of, moving, names_tablet, row_of
from stele.domain.tablets.measure import Measure, measure_of
from stele.domain.tablets.participants import participants
from stele.domain.tablets.ranges import tablet_of
from stele.domain.tablets.sizing import in_rack
from stele.domain.tablets.tablet_stats import TabletStats

_BEFORE_READS_MOVE: Final = (
    TransitionState.ALLOW_WRITE_BOTH_READ_OLD,
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.STREAMING,
    TransitionState.REPAIR,
    TransitionState.RESTORE,
)


@dataclass(frozen=True, slots=True)
class Tablets:
    """``state`` has a unit for each tablet, those of a table in the order of its map, from its ``first`` on.

    ``names`` are the tables' full names, ``node_ids`` the nodes', both in the state's order. ``measure`` is by
    what the state is to be balanced, ``told`` by data id what is known of the tablets. Co-located tables are
    one here, by the name of the map's owner; ``together`` is how many each one stands for.
    """

    state: State
    names: list[str]
    first: list[int]
    node_ids: list[str]
    measure: Measure
    stats: Mapping[str, TabletStats]
    together: npt.NDArray[np.int64]

    def held(self, on: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Replicas of tablets on some nodes, those of co-located tables each, by table."""
        found: npt.NDArray[np.int64] = self.state.count[:, on].sum(axis=1) * self.together
        return found

    def tablets_of(self, table: str) -> int:
        """How many tablets a table of this name has."""
        at = self.names.index(table)
        ends = (*self.first[1:], len(self.state.table))
        return ends[at] - self.first[at]

    def tablet(self, unit: int) -> tuple[str, int]:
        """The table's name and the tablet's number."""
        at = bisect_right(self.first, unit) - 1
        return self.names[at], unit - self.first[at]


def tablets_of(
    image: Image,
    down: Set[str] = frozenset(),
    waiting: Set[str] = frozenset(),
    loads: LoadTable = NO_LOADS,
) -> Tablets:
    """Those of all maps that stay. Tablets under way count where they will be.

    Nodes that are about to leave are to be drained, but those that are ``waiting`` to; those that are ``down``
    were down. ``loads`` are what nodes have reported: without them all tablets are of unknown size, and count
    the same.
    """
    schema = image.schema
    maps = [(t, p) for t, p in maps_of(image) if not schema.data_of(t).dropped_version]
    settings, ids = image.features.settings, [schema.data_of(t).data_id for t, _ in maps]
    stats = told_of(image, loads)
    heat = heats(stats, loads.heat, MINIMAL_RATE.of(settings))
    measure = measure_of(image, loads, heat)
    nodes = _nodes(image, [p for _, p in maps], down, waiting, loads)
    place = {node.id: at for at, node in enumerate(nodes)}
    afterwards, asked = _afterwards(image), _asked(image)
    parts = [
        _replicas(p, place, afterwards.get(t.placement, ()), asked.get(t.placement, ()))
        for t, p in maps
    ]
    counts = [len(placement) for _, placement in maps]
    width = max((part.shape[1] for part, _, _ in parts), default=1)
    none = [np.zeros((0, width), np.int64)]
    node = np.concatenate([widened(part, width) for part, _, _ in parts] or none)
    shard = np.concatenate([widened(on, width) for _, on, _ in parts] or none)
    state = State(
        nodes,
        len(maps),
        np.repeat(np.arange(len(maps)), counts),
        np.concatenate([*(_sizes(stats[data_id], loads) for data_id in ids), np.zeros(0)]),
        node,
        np.where(node == NOBODY, 0, shard),
        np.concatenate([*(busy for _, _, busy in parts), np.zeros(0, np.bool_)]),
        Options(
            balance_by=measure.by,
            minimal_tablet_size_bytes=MINIMAL_SIZE.of(settings),
            rate_weight=measure.rate_weight,
        ),
        Rates(
            np.concatenate([*(stats[data_id].rates for data_id in ids), np.zeros(0)]),
            np.concatenate([*(heat[data_id] for data_id in ids), np.zeros(0)]),
        ),
    )
    _list_racks(image, state, [table for table, _ in maps])
    _count_streams(image, state, place)
    first = (np.cumsum(counts) - counts).tolist() if counts else []
    names = [image.schema.full_name(table) for table, _ in maps]
    together = np.array([len(standing(image, table)) for table, _ in maps], np.int64)
    return Tablets(state, names, first, [node.id for node in nodes], measure, stats, together)


def _sizes(stats: TabletStats, loads: LoadTable) -> npt.NDArray[np.float64]:
    """Bytes of each tablet; unknown ones are empty when any are known, see ``measure_of``."""
    return np.nan_to_num(stats.sizes) if loads.by_node else stats.sizes


def held_in(there: Tablets) -> dict[str, int]:
    """Replicas in each dc, and in each rack, by the names of ``sizing.scopes_of``."""
    state = there.state
    found = {dc: int(there.held(state.dc == at).sum()) for dc, at in state.dcs.items()}
    for (dc, rack), at in state.racks.items():
        found[in_rack(dc, rack)] = int(there.held(state.rack == at).sum())
    return found


def _list_racks(image: Image, state: State, tables: list[Table]) -> None:
    for at, table in enumerate(tables):
        for dc, racks in goal(image, image.schema.by_id[table.keyspace_id]).racks.items():
            state.list_racks(at, dc, racks)


def _count_streams(image: Image, state: State, place: Mapping[str, int]) -> None:
    """What is asked for, or has not been streamed yet, takes part of what nodes read and write at one time."""
    for request in image.requests.open.values():
        transition = image.topology.transitions.get(request.request_id)
        streams_yet = transition is None or (
            transition.state in _BEFORE_READS_MOVE and not transition.mark
        )
        if (request.moves_replica or request.stays_in_place) and streams_yet:
            sources, targets = _streams(image, request)
            weight = REPAIR_WEIGHT if request.stays_in_place else WEIGHT
            for shards, streams in ((sources, state.reading), (targets, state.writing)):
                for node_id in shards.keys() & place.keys():
                    streams[state.first_shard[place[node_id]] + shards[node_id]] += weight


def _streams(image: Image, request: Request) -> tuple[dict[str, int], dict[str, int]]:
    """Who is read from and who is written to, with the shard. One replica more comes from all others; where
    there is one fewer of three or more those that are left give one another what they lack; so do all where it
    is repaired; where it is restored they read files of each other, and each writes.
    """
    if not names_tablet(image, request):
        return {}, {}
    placement = image.ring.placements[image.schema.tables[request.table_id].placement]
    row = row_of(placement, request.tablet)
    comes = {request.to_node: max(request.to_shard, 0)} if request.to_node else {}
    if request.moves_replica and not request.recounts:
        leaves = request.from_node in row.writes
        return {request.from_node: row.shard_of(request.from_node)} if leaves else {}, comes
    rest = {node: row.shard_of(node) for node in row.reads if node != request.from_node}
    if request.to_node:
        return rest, comes
    if request.repairs_tablet:
        named = participants(image, request.among, rest)
        rest = {node: shard for node, shard in rest.items() if node in named}
        return (rest, rest) if len(rest) > 1 else ({}, {})
    if request.restores_tablet:
        excluded = image.membership.excluded()
        rest = {node: shard for node, shard in rest.items() if node not in excluded}
        return rest, rest
    return rest, rest if len(rest) > 1 else {}


def _nodes(
    image: Image,
    maps: Iterable[Placement],
    down: Set[str],
    waiting: Set[str],
    loads: LoadTable,
) -> list[Node]:
    """Those who have room, and whoever else has any: they have to give all away."""
    going, members = image.requests.going(), image.membership.nodes
    used = {node_id for placement in maps for node_id in holders(placement)}
    used |= {node_id for _, _, row in moving(image) for node_id in row.new}
    found = list[Node]()
    for node_id in sorted(members):
        node = members[node_id]
        stays = node.state in STAYS and bool(node.tokens)
        if stays or node_id in used:
            state = _state(node, goes=node_id in going - waiting, is_down=node_id in down | waiting)
            capacity = loads.capacity_bytes(node_id)
            found.append(Node(node_id, node.dc, node.rack, node.shards, capacity, state))
    return found


def _state(node: Member, *, goes: bool, is_down: bool) -> NodeState:
    """Who is about to take another's place gives and gets nothing until it has it."""
    if not node.takes_part():
        return NodeState.EXCLUDED
    if goes or not (node.tokens or node.state in JOINING):
        return NodeState.DRAINING
    return NodeState.DOWN if is_down or node.state not in STAYS else NodeState.NORMAL


def _afterwards(image: Image) -> dict[str, list[tuple[int, dict[str, int]]]]:
    """By map the ends of the ranges of tablets that move, each with who has it then, on which shard."""
    found = defaultdict[str, list[tuple[int, dict[str, int]]]](list)
    for transition, name, row in moving(image):
        places = row.places_before() if transition.mark else row.places_after()
        found[name].append((row.end, places))
    return found


def _asked(image: Image) -> dict[str, list[Request]]:
    """By map the moves, repairs and restores that have not begun."""
    found = defaultdict[str, list[Request]](list)
    for request in image.requests.open.values():
        changes = request.moves_replica or request.stays_in_place
        if changes and request.status is RequestStatus.PENDING:
            table = image.schema.tables.get(request.table_id)
            if table is not None:
                found[table.placement].append(request)
    return found


def _replicas(
    placement: Placement,
    place: Mapping[str, int],
    afterwards: Iterable[tuple[int, Mapping[str, int]]],
    asked: Iterable[Request],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Of each tablet the nodes by number and their shards, those of afterwards where it moves or is asked to;
    and which ones.
    """
    number = np.array([*(place.get(n, NOBODY) for n in placement.nodes.names), NOBODY], np.int64)
    rows = placement.table.all()
    reads = reads_of(rows)
    shards = read_shards(rows, reads).astype(np.int64)
    replicas = np.where(reads == PAD, NOBODY, number[reads])
    busy = np.zeros(len(placement), np.bool_)
    for end, after in afterwards:
        tablet = tablet_of(len(placement), end)
        if len(after) > replicas.shape[1]:
            replicas, shards = widened(replicas, len(after)), widened(shards, len(after))
        replicas[tablet] = NOBODY
        replicas[tablet, : len(after)] = [place[node_id] for node_id in after]
        shards[tablet, : len(after)] = [*after.values()]
        busy[tablet] = True
    for request in asked:
        named = {request.from_node, request.to_node} - {""}
        if request.tablet_count != len(placement) or not named <= place.keys():
            continue
        busy[request.tablet] = True
        if request.stays_in_place:
            continue
        if not request.from_node and (replicas[request.tablet] != NOBODY).all():
            width = replicas.shape[1] + 1
            replicas, shards = widened(replicas, width), widened(shards, width)
        row = replicas[request.tablet]
        old, new = (place.get(name, NOBODY) for name in (request.from_node, request.to_node))
        at = np.flatnonzero(row == old)[:1]
        row[at] = new
        shards[request.tablet, at] = max(request.to_shard, 0)
    return replicas, shards, busy
