"""Bring each tablet to its number of replicas and, where racks are listed, to the listed racks.

A tablet first gains replicas, one at a time, and only then loses any.

Tablets that differ from their goal are found in columns. Their sources and targets are chosen one
by one, as far as streams have room. The choice evens out racks first, then the table's replicas
over the nodes, then the loads of the nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stele.domain.balancer.columns import Tablets
from stele.domain.balancer.load import Conditions
from stele.domain.balancer.stuck import Stuck
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.schema import Keyspace, Replication
from stele.domain.planner.cluster import NodeRole, strays, vacant
from stele.domain.planner.moves import BalanceLimits, RunningStreams, by_shard, fits
from stele.domain.planner.scopes import participation
from stele.domain.planner.state import NOBODY
from stele.domain.ring.quorum import blocking
from stele.domain.ring.ranges import ANY
from stele.domain.tablets.copies import (
    Deviation,
    RackPlace,
    change_of,
    deviations,
    fewest,
    goal,
    room,
)

# The state of one round of replica changes: streams used, and replicas by node.


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
    tablets: Tablets
    conditions: Conditions
    limits: BalanceLimits
    passed: int = 0
    """Tablets that were examined without result."""
    streams: RunningStreams = field(init=False)
    """Reserved in the state itself, so that later choices of the round see them."""
    places: list[RackPlace] = field(init=False)
    racks: dict[str, dict[int, str]] = field(init=False)
    """By dc the members that take tablets, with their racks. Members that are down are included."""
    stays: npt.NDArray[np.bool_] = field(init=False)
    """The nodes that take replicas unless they are shut."""
    unclean: frozenset[str] = field(init=False)
    """The nodes with rows to delete that take replicas of tablets with an excluded replica."""
    weight: npt.NDArray[np.float64] = field(init=False)
    count: npt.NDArray[np.int64] = field(init=False)
    load: npt.NDArray[np.float64] = field(init=False)
    silent: frozenset[int] = field(init=False)
    by_shard: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """By node and table the number of replicas on each shard, for nodes that received some in this
    round.
    """

    def __post_init__(self) -> None:
        state, ids = self.tablets.state, self.tablets.node_ids
        self.places = [RackPlace(node.dc, node.rack) for node in state.nodes]
        self.streams = RunningStreams(state.reading, state.writing, self.limits)
        place = {node_id: at for at, node_id in enumerate(ids)}
        self.racks = {
            dc: {place[n.node_id]: n.rack for n in room(self.image, dc)} for dc in state.dcs
        }
        self.weight = participation(state, draining=False).estimate
        self.stays = (state.state == NodeRole.NORMAL) & (self.weight > 0)
        self.unclean = frozenset(ids[node] for node in state.open_to_excluded)
        # A copy: choices of this round count for the next ones, but the state keeps the present
        # numbers.
        self.count, self.load = state.count.copy(), state.load.sum(axis=0)
        self.silent = self.tablets.numbers(self.conditions.down)

    def takes(self, node: int, *, of_dead: bool = False) -> bool:
        """Return True if the node takes replicas; ``of_dead``: of a tablet with an excluded one."""
        return bool(self.stays[node]) and not self.tablets.state.is_shut(node, of_excluded=of_dead)

    def is_free(self, node: int, *, of_dead: bool = False) -> bool:
        """Return True if the node can take another replica now."""
        return self.takes(node, of_dead=of_dead) and len(self._free_shards(node)) > 0

    def _free_shards(self, node: int) -> list[int]:
        """Return the shards of a node that can take another replica now."""
        state = self.tablets.state
        first, shards = int(state.first_shard[node]), int(state.shards[node])
        writing = state.writing[first : first + shards].tolist()
        return [at for at, load in enumerate(writing) if fits(load, self.limits.writes)]

    def _shard_for(self, table: int, node: int) -> int:
        """Return the free shard with the fewest replicas of the table, then with the smallest load.

        The node is free, so it has such a shard.
        """
        state = self.tablets.state
        if node not in self.by_shard:
            tables, counts, _ = by_shard(state, node)
            self.by_shard[node] = dict(zip(tables.tolist(), counts.tolist(), strict=True))
        nothing = [0] * int(state.shards[node])
        held = self.by_shard[node].setdefault(table, nothing)
        first, free = int(state.first_shard[node]), self._free_shards(node)
        return min(free, key=lambda at: (held[at], state.shard_load[first + at], at))

    def reserve(self, unit: int, node: int, sources: Iterable[int]) -> int | None:
        """Reserve the streams of a new replica on a free node.

        Return the shard that receives it, or None if the sources lack room.
        """
        state, table = self.tablets.state, int(self.tablets.state.table[unit])
        shard = self._shard_for(table, node)
        target = int(state.first_shard[node]) + shard
        if not self.streams.reserve([state.slot(unit, source) for source in sources], [target]):
            return None
        self.by_shard[node][table][shard] += 1
        return shard

    def is_exhausted(self) -> bool:
        """Return True if enough tablets were examined without result, or no node has room."""
        if self.passed >= MOST_LOOKED_AT:
            return True
        return not any(map(self.is_free, np.flatnonzero(self.stays).tolist()))

    def is_large(self, dc: str, rack: str) -> bool:
        """Return True if the rack's nodes stay near their shares with a replica of every tablet."""
        racks = self.racks[dc]
        here = sum(float(self.weight[at]) for at, of in racks.items() if of == rack)
        whole = sum(float(self.weight[at]) for at in racks)
        return here * len({*racks.values()}) >= LARGE_RACK * whole

    def share(self, table: int, node: int) -> tuple[float, float, int]:
        """Return a sort key: replicas of a table, then the load, both relative to the node's
        weight.

        The node's number comes last, so that the order is always the same.
        """
        # Leaving nodes have no weight. They give replicas and receive none, so any divisor will do.
        weight = float(self.weight[node]) or 1.0
        return float(self.count[table, node]) / weight, float(self.load[node]) / weight, node


def room_for(
    changes: ReplicaChanges, dc: str, held: list[int], *, of_dead: bool = False
) -> list[int]:
    """Return the nodes with room for a replica, in the racks of the dc that have the fewest."""
    counts = Counter(changes.places[node].rack for node in held if changes.places[node].dc == dc)
    others = {at: rack for at, rack in changes.racks[dc].items() if at not in held}
    racks = fewest(counts, others.values())
    return [
        at for at, rack in others.items() if rack in racks and changes.is_free(at, of_dead=of_dead)
    ]


# Even out the racks of a tablet.
#
# If a rack has two replicas more than another one with room, one of them moves there. This happens
# after a node had to be emptied or a tablet has lost a replica. Dcs with a rack list are left out.


def spread(changes: ReplicaChanges) -> Iterator[TabletMove]:
    """Yield moves from a rack to one with room and at least two fewer replicas of the tablet."""
    state = changes.tablets.state
    for dc in state.dcs:
        for unit in _uneven(changes, dc).tolist():
            if changes.is_exhausted():
                return
            if int(state.table[unit]) in state.still:
                continue
            move = _to_an_emptier_rack(changes, dc, unit)
            if move is None:
                changes.passed += 1
            else:
                state.busy[unit] = True
                yield move


def _uneven(changes: ReplicaChanges, dc: str) -> npt.NDArray[np.intp]:
    """Return units with two more replicas in one rack than in another rack that takes tablets."""
    state = changes.tablets.state
    peak = state.peak[:, state.dcs[dc]]
    free = ~state.racked[state.table, state.dcs[dc]]
    several = np.flatnonzero((peak > 1) & free & ~state.busy)
    nodes = state.node[several]
    rack = np.where(nodes == NOBODY, NOBODY, state.rack[nodes])
    least = peak[several].copy()
    for name in {*changes.racks[dc].values()}:
        here = (rack == state.racks[dc, name]).sum(axis=1)
        np.minimum(least, here, out=least, casting="unsafe")
    return several[peak[several] - least > 1]


def _to_an_emptier_rack(changes: ReplicaChanges, dc: str, unit: int) -> TabletMove | None:
    held = [node for node in changes.tablets.state.node[unit].tolist() if node != NOBODY]
    here = [node for node in held if changes.places[node].dc == dc]
    counts = Counter(changes.places[node].rack for node in here)
    fullest = max(counts.values())
    sources = [
        at for at in here if counts[changes.places[at].rack] == fullest and changes.takes(at)
    ]
    free = room_for(changes, dc, held)
    if not free or not sources or fullest - counts[changes.places[free[0]].rack] < 2:
        return None
    table, tablet = changes.tablets.tablet(unit)
    share = partial(changes.share, int(changes.tablets.state.table[unit]))
    source, target = max(sources, key=share), min(free, key=share)
    # A small rack would exceed its share if it got a replica of every tablet.
    if (
        not changes.is_large(dc, changes.places[target].rack)
        and share(target)[0] >= share(source)[0]
    ):
        return None
    shard = changes.reserve(unit, target, [source])
    if shard is None:
        return None
    return TabletMove(
        table=table,
        tablet=tablet,
        of=changes.tablets.tablets_of(table),
        from_node=changes.tablets.node_ids[source],
        to_node=changes.tablets.node_ids[target],
        to_shard=shard,
        why=f"rack {changes.places[source].rack} has {fullest} of its replicas, and"
        f" {changes.places[target].rack} has {counts[changes.places[target].rack]}",
    )


LEAST_LOOKED_AT: Final = 64
"""Smallest number of a table's tablets without a possible change that one round examines. It holds
however many tables there are.
"""

Mask = npt.NDArray[np.bool_]


class Recount(StrEnum):
    """A change of the number of a tablet's replicas."""

    ADD = "add_replica"
    DELETE = "delete_replica"


@dataclass(frozen=True, slots=True)
class Recounts:
    """Moves of one round, and the requests that can never be carried out.

    ``deviates`` is true while some tablets differ from their goal. Other tablets may then find room
    where these lose a replica.
    """

    moves: Sequence[TabletMove] = ()
    stuck: Sequence[Stuck] = ()
    deviates: bool = False


def recounts(
    image: Image, tablets: Tablets, conditions: Conditions, limits: BalanceLimits, off: Set[str]
) -> Recounts:
    """Return the replicas that tablets gain, lose or move to another rack in this round.

    Tables that are ``off`` lose replicas only if a requested change of replication needs it. Moves
    towards racks with fewer replicas of a tablet come last.

    The function marks the tablets' units as ``busy`` in the state of ``tablets`` and counts their
    streams.
    """
    moves, stuck, any_deviates = list[TabletMove](), list[Stuck](), False
    changes = ReplicaChanges(image, tablets, conditions, limits)
    for at, keyspace in _deviating_tables(image, tablets, changes):
        name, first = tablets.names[at], tablets.first[at]
        wanted, change = goal(image, keyspace), change_of(image, keyspace)
        units = slice(first, first + tablets.tablets_of(name))
        found = deviations(wanted, changes.places, tablets.state.node[units])
        due = _Due.of(found.values())
        # A switch keeps surplus replicas. Replicas that a tablet lacks are added in any case.
        if change is None and name in off:
            nothing = np.zeros_like(due.more)
            due = due._replace(to_move=nothing, fewer=nothing)
        if not due.any():
            continue
        any_deviates = True
        why = f"tablets of {keyspace.name} are to have {wanted.words()}"
        force = change is not None and change.force
        table = _TableChanges(changes, at, name, units, wanted, found, due, why, force)
        moves += table.moves()
        if change is not None and not change.cancelled:
            reasons = [*_no_room(image, wanted), *table.lost]
            stuck += [Stuck(change.request_id, reason) for reason in reasons[:1]]
    # Each request ends once, with the first reason that was found.
    by_request = {each.request_id: each for each in reversed(stuck)}
    # Evening out racks comes last. It gets only the streams that required changes leave.
    moves += spread(changes)
    return Recounts(moves, [*by_request.values()], any_deviates)


def _deviating_tables(
    image: Image, tablets: Tablets, changes: ReplicaChanges
) -> Iterator[tuple[int, Keyspace]]:
    """Yield the tables, by position, with tablets that differ from their goal, and their keyspaces.

    All tablets of a keyspace are compared at once: a few operations for each of thousands of tables
    would take seconds.
    """
    tables, keyspaces = defaultdict[str, list[int]](list), dict[int, Keyspace]()
    for at, name in enumerate(tablets.names):
        tables[name.partition(".")[0]].append(at)
    for name, its in tables.items():
        keyspace = image.schema.named(name)
        assert keyspace is not None, "a table that is balanced has a keyspace"
        units = np.flatnonzero(np.isin(tablets.state.table, its))
        found = deviations(goal(image, keyspace), changes.places, tablets.state.node[units])
        differs = np.any([each.lacks + each.surplus for each in found.values()], axis=0)
        keyspaces |= dict.fromkeys(tablets.state.table[units[differs]].tolist(), keyspace)
    yield from sorted(keyspaces.items())


def _no_room(image: Image, wanted: Replication) -> Iterator[str]:
    """Yield the reasons for which the members cannot hold the wanted replicas.

    Members that are down count, and so do nodes that are about to replace dead ones.
    """
    # A replacement provides a member soon, so a change that needs it is not hopeless.
    replacing = {
        request.node_id
        for request in image.requests.unfinished_by_id.values()
        if request.replaced_id
    }
    coming = [node for n in sorted(replacing) if (node := image.node(n)) is not None]
    for dc, rf in sorted(wanted.copies.items()):
        there = [*room(image, dc), *(node for node in coming if node.dc == dc)]
        for rack in wanted.racks.get(dc, ()):
            if not any(node.rack == rack for node in there):
                yield f"no node in rack '{rack}' of '{dc}' takes tablets"
        if len(there) < rf:
            yield f"{rf} replicas in '{dc}' need as many nodes; {len(there)} take tablets"


class _Due(NamedTuple):
    """Masks of the tablets that gain a replica, move one to another rack, or lose one.

    They cover all dcs.
    """

    more: Mask
    to_move: Mask
    fewer: Mask

    @classmethod
    def of(cls, found: Iterable[Deviation]) -> Self:
        each = [(one.more > 0, one.to_move > 0, one.fewer > 0) for one in found]
        return cls(*(np.any(which, axis=0) for which in zip(*each, strict=True)))

    def any(self) -> bool:
        return bool(np.any([*self]))


@dataclass(frozen=True, slots=True)
class _TableChanges:
    """A table with tablets that differ from ``wanted``: ``found`` by dc, ``due`` over all dcs."""

    changes: ReplicaChanges
    at: int
    name: str
    units: slice
    wanted: Replication
    found: Mapping[str, Deviation]
    due: _Due
    why: str
    force: bool
    lost: list[str] = field(default_factory=list)
    """Reasons for which some tablets can never get the replicas that they lack."""

    def moves(self) -> list[TabletMove]:
        table = self.changes.image.schema.table_named(self.name)
        assert table is not None, "a table that is balanced has a name"
        still = ~self.changes.tablets.state.busy[self.units]
        still &= ~self.changes.conditions.are_paused(table.table_id, len(still))
        due = self.due
        # The order keeps data safe: add what is lacking, then move between racks, then delete.
        moves = self._each(np.flatnonzero(due.more & still), self._add)
        lacking = due.more
        moves += self._each(
            np.flatnonzero(due.to_move & ~lacking & still), self._move_to_listed_rack
        )
        # A tablet loses a replica only after it has all that it lacks in every dc.
        lacking = due.more | due.to_move
        may_lose = np.flatnonzero(due.fewer & ~lacking & still)
        return moves + self._each(may_lose, self._delete)

    def _each(
        self,
        tablets: npt.NDArray[np.int64],
        change: Callable[[int], TabletMove | None],
    ) -> list[TabletMove]:
        moves, passed = list[TabletMove](), 0
        most = max(LEAST_LOOKED_AT, MOST_LOOKED_AT // len(self.changes.tablets.names))
        for tablet in _rotated(tablets, most, self.changes.conditions.now_ms).tolist():
            if passed >= most:
                break
            move = change(tablet)
            if move is None:
                passed += 1
            else:
                moves.append(move)
                self.changes.tablets.state.busy[self.units.start + tablet] = True
        return moves

    def _add(self, tablet: int) -> TabletMove | None:
        """Return the move that adds a replica, or None without room.

        The target is in a rack with the fewest replicas of the tablet. Among these nodes it has the
        fewest replicas of the table, then the smallest load, relative to its weight.
        """
        held = self._replicas_of(tablet)
        dcs = sorted(dc for dc, each in self.found.items() if each.more[tablet] > 0)
        free = next(filter(None, (self._room_for(dc, held) for dc in dcs)), None)
        if not free:
            return None
        # So many sources intersect each quorum, so together they have each acknowledged write.
        sources = self._sources(tablet, held, blocking(len(held)))
        target = min(free, key=lambda at: self.changes.share(self.at, at))
        if sources is None:
            return None
        shard = self.changes.reserve(self.units.start + tablet, target, sources)
        if shard is None:
            return None
        self.changes.count[self.at, target] += 1
        return self._move(tablet, to_node=self.changes.tablets.node_ids[target], to_shard=shard)

    def _delete(self, tablet: int) -> TabletMove | None:
        """Return the move that deletes a replica, or None if that must wait.

        The replica is in a rack with the most replicas of the tablet. An excluded node comes first,
        then one that leaves, then a silent one, then the one with most of the table.
        """
        state, held = self.changes.tablets.state, self._replicas_of(tablet)
        dcs = sorted(dc for dc, each in self.found.items() if each.fewer[tablet] > 0)
        racks = Counter(self.changes.places[node] for node in held)
        source = max(
            (node for dc in dcs for node in self._removable(dc, held)),
            key=lambda at: (
                racks[self.changes.places[at]],
                *_emptied_first(state.state[at]),
                at in self.changes.silent,
                self.changes.share(self.at, at),
            ),
        )
        rest = [node for node in held if node != source]
        left = self._all_left(tablet, rest)
        if left is None:
            return None
        slots = [state.slot(self.units.start + tablet, node) for node in left]
        # With three or more replicas the remaining ones compare their rows, so each reads and
        # writes.
        if not self.changes.streams.reserve(slots, slots if len(held) > 2 else []):
            return None
        self.changes.count[self.at, source] -= 1
        return self._move(tablet, from_node=self.changes.tablets.node_ids[source])

    def _move_to_listed_rack(self, tablet: int) -> TabletMove | None:
        """Return the move of a replica outside the rack list to a listed rack that has none.

        Excluded and leaving nodes are emptied first, then the node with most of the table. The
        target is the node with least of it.
        """
        state, held = self.changes.tablets.state, self._replicas_of(tablet)
        for dc in sorted(dc for dc, each in self.found.items() if each.to_move[tablet] > 0):
            free = self._room_for(dc, held)
            removable = [at for at in self._removable(dc, held) if at not in self.changes.silent]
            if not free or not removable:
                continue
            source = max(
                removable,
                key=lambda at: (*_emptied_first(state.state[at]), self.changes.share(self.at, at)),
            )
            target = min(free, key=lambda at: self.changes.share(self.at, at))
            sources: list[int] | None = [source]
            # A dead node cannot be read. Its replica is rebuilt from the others.
            if state.state[source] == NodeRole.EXCLUDED:
                rest = [at for at in held if at != source]
                sources = self._sources(tablet, rest, blocking(len(held)))
            if sources is None:
                continue
            shard = self.changes.reserve(self.units.start + tablet, target, sources)
            if shard is None:
                continue
            self.changes.count[self.at, source] -= 1
            self.changes.count[self.at, target] += 1
            names = self.changes.tablets.node_ids
            old, new = names[source], names[target]
            return self._move(tablet, from_node=old, to_node=new, to_shard=shard)
        return None

    def _removable(self, dc: str, held: list[int]) -> list[int]:
        """Return the replicas that the tablet may lose in the dc; with a list, those outside it."""
        here = [node for node in held if self.changes.places[node].dc == dc]
        racks = self.wanted.racks.get(dc)
        if racks is None:
            return here
        return [here[at] for at in strays(racks, [self.changes.places[node].rack for node in here])]

    def _room_for(self, dc: str, held: list[int]) -> list[int]:
        """Return the nodes that can take a replica now, in racks that may have one more."""
        racks, states = self.wanted.racks.get(dc), self.changes.tablets.state.state
        # The removal of a dead node may wait for this change, and cleanups wait for the removal.
        of_dead = any(states[node] == NodeRole.EXCLUDED for node in held)
        if racks is None:
            return room_for(self.changes, dc, held, of_dead=of_dead)
        may = vacant(
            racks,
            (self.changes.places[node].rack for node in held if self.changes.places[node].dc == dc),
        )
        free = self.changes.racks[dc].items()
        return [
            at for at, rack in free if rack in may and self.changes.is_free(at, of_dead=of_dead)
        ]

    def _sources(self, tablet: int, nodes: list[int], needed: int) -> list[int] | None:
        """Return the live nodes that can serve as sources.

        None means that too few are up now. If too few are alive at all, the reason is also noted in
        ``lost``.
        """
        state = self.changes.tablets.state.state
        alive = [node for node in nodes if state[node] != NodeRole.EXCLUDED]
        if len(alive) < needed and not self.force:
            self.lost.append(
                f"tablet {tablet} of {self.name} may have acknowledged writes that only dead nodes have:"
                " ask again with force to give these up"
            )
            return None
        return self._up(alive, min(needed, len(alive)))

    def _all_left(self, tablet: int, nodes: list[int]) -> list[int] | None:
        """Return the remaining replicas, or None if one of them cannot confirm that it is up."""
        state = self.changes.tablets.state.state
        # The remaining replicas first exchange what they lack, which a dead one cannot do.
        dead = [
            self.changes.tablets.node_ids[node]
            for node in nodes
            if state[node] == NodeRole.EXCLUDED
        ]
        if dead:
            self.lost.append(
                f"tablet {tablet} of {self.name} would be left on {', '.join(dead)}, which is dead for good:"
                " remove or replace it first"
            )
            return None
        return self._up(nodes, len(nodes))

    def _up(self, nodes: list[int], needed: int) -> list[int] | None:
        up = [node for node in nodes if node not in self.changes.silent]
        return up if len(up) >= needed else None

    def _replicas_of(self, tablet: int) -> list[int]:
        nodes = self.changes.tablets.state.node[self.units.start + tablet].tolist()
        return [node for node in nodes if node != NOBODY]

    def _move(
        self,
        tablet: int,
        *,
        from_node: str = "",
        to_node: str = "",
        to_shard: int = ANY,
    ) -> TabletMove:
        return TabletMove(
            table=self.name,
            tablet=tablet,
            of=self.changes.tablets.tablets_of(self.name),
            from_node=from_node,
            to_node=to_node,
            to_shard=to_shard,
            force=self.force or to_node in self.changes.unclean,
            why=self.why,
        )


def _rotated(tablets: npt.NDArray[np.int64], most: int, now_ms: int) -> npt.NDArray[np.int64]:
    """Rotate the tablets every second, so that tablets without room do not block the others."""
    if len(tablets) <= most:
        return tablets
    return np.roll(tablets, -(now_ms // 1000 * most) % len(tablets))


def _emptied_first(state: object) -> tuple[bool, bool]:
    return state == NodeRole.EXCLUDED, state == NodeRole.DRAINING
