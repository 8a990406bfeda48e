"""Giving each tablet as many replicas as it is to have: one more at a time, and only then one fewer.

Which ones are amiss is found in columns. What they get and lose is chosen one by one, as many as there is room
for in the streams, so that racks are even, then the table's replicas over the nodes, then all that these have.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.moves import WEIGHT, Limits, fits
from stele.domain.balance.scopes import standing
from stele.domain.balance.state import NOBODY
from stele.domain.image import Image
from stele.domain.ring.quorum import blocking
from stele.domain.schema.facts import copies_text
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.copies import Copies, change_of, goal, surplus
from stele.domain.tablets.heard import Heard
from stele.domain.tablets.racks import fewest, room
from stele.domain.tablets.stuck import Stuck
from stele.domain.topology.operations.commands import TabletMove

MOST_LOOKED_AT: Final = 4096
"""Tablets of a round for which there was no room: those of others are looked at in a later one."""
LARGE_RACK: Final = 0.55
"""Of the mean of its dc's racks: a smaller one gets tablets for the sake of racks only up to its share."""


class Recount(StrEnum):
    """What is done to a tablet's replicas."""

    ADD = "add_replica"
    DELETE = "delete_replica"


@dataclass(frozen=True, slots=True)
class Recounts:
    """Moves of one round, and the requests that can never be carried out. ``amiss``: some tablets have not yet
    what they are to have, so that others may find room where these lose something.
    """

    moves: Sequence[TabletMove] = ()
    stuck: Sequence[Stuck] = ()
    amiss: bool = False


def recounts(image: Image, what: Tablets, heard: Heard, limits: Limits, off: Set[str]) -> Recounts:
    """What tablets are to get, and to lose, now; those of tables that are ``off`` lose only what a change that
    is asked for takes. Then which are to go to a rack that has fewer of them.

    The tablets' units are ``busy`` then in the state of ``what``, and the streams are counted.
    """
    moves, stuck, amiss = list[TabletMove](), list[Stuck](), False
    desk = _Desk(image, what, heard, limits)
    for at, name in enumerate(what.names):
        keyspace = image.schema.named(name.partition(".")[0])
        assert keyspace is not None, "a table that is balanced has a keyspace"
        wanted, change = goal(image, keyspace), change_of(image, keyspace)
        first = what.first[at]
        units = slice(first, first + what.tablets_of(name))
        found = surplus(wanted, desk.dc_of, what.state.node[units])
        lacks = np.any([each < 0 for each in found.values()], axis=0)
        has = np.any([each > 0 for each in found.values()], axis=0)
        if change is None and name in off:
            has[:] = False
        if not (lacks | has).any():
            continue
        amiss = True
        why = f"tablets of {keyspace.name} are to have {copies_text(wanted)}"
        force = change is not None and change.force
        table = _Table(at, name, units, found, lacks, has, why, force)
        moves += table.moves(desk)
        if change is not None and not change.cancelled:
            reasons = [*_no_room(image, wanted), *table.lost]
            stuck += [Stuck(change.request_id, reason) for reason in reasons[:1]]
    by_request = {each.request_id: each for each in reversed(stuck)}
    moves += _spread(desk)
    return Recounts(moves, [*by_request.values()], amiss)


def _spread(desk: "_Desk") -> Iterator[TabletMove]:
    """From a rack with two replicas of a tablet more than another with room: one goes there. Such come about
    where a node had to be emptied, or a tablet has lost one.
    """
    state = desk.what.state
    for dc in state.dcs:
        for unit in _uneven(desk, dc).tolist():
            if desk.is_at_its_end():
                return
            if int(state.table[unit]) in state.still:
                continue
            move = _to_an_emptier_rack(desk, dc, unit)
            if move is None:
                desk.passed += 1
            else:
                state.busy[unit] = True
                yield move


def _uneven(desk: "_Desk", dc: str) -> npt.NDArray[np.intp]:
    """Units with two replicas more in a rack of the dc than in another with members that take tablets."""
    state = desk.what.state
    peak = state.peak[:, state.dcs[dc]]
    several = np.flatnonzero((peak > 1) & ~state.busy)
    nodes = state.node[several]
    rack = np.where(nodes == NOBODY, NOBODY, state.rack[nodes])
    least = peak[several].copy()
    for name in {*desk.racks[dc].values()}:
        here = (rack == state.racks[dc, name]).sum(axis=1)
        np.minimum(least, here, out=least, casting="unsafe")
    return several[peak[several] - least > 1]


def _to_an_emptier_rack(desk: "_Desk", dc: str, unit: int) -> TabletMove | None:
    held = [node for node in desk.what.state.node[unit].tolist() if node != NOBODY]
    here = [node for node in held if desk.dc_of[node] == dc]
    counts = Counter(desk.rack_of[node] for node in here)
    fullest = max(counts.values())
    sources = [at for at in here if counts[desk.rack_of[at]] == fullest and desk.takes[at]]
    free = _room_for(desk, dc, held)
    if not free or not sources or fullest - counts[desk.rack_of[free[0]]] < 2:
        return None
    table, tablet = desk.what.tablet(unit)
    part = partial(desk.part, int(desk.what.state.table[unit]))
    source, target = max(sources, key=part), min(free, key=part)
    if not desk.is_large(dc, desk.rack_of[target]) and part(target)[0] >= part(source)[0]:
        return None
    if not desk.streams([source], [target]):
        return None
    return TabletMove(
        table=table,
        tablet=tablet,
        of=desk.what.tablets_of(table),
        from_node=desk.what.node_ids[source],
        to_node=desk.what.node_ids[target],
        why=f"rack {desk.rack_of[source]} has {fullest} of its replicas, and {desk.rack_of[target]} has"
        f" {counts[desk.rack_of[target]]}",
    )


def _no_room(image: Image, wanted: Copies) -> Iterator[str]:
    """More replicas are asked for than there are members that take any, even those that are down."""
    for dc, rf in sorted(wanted.items()):
        there = len(room(image, dc))
        if there < rf:
            yield f"{rf} replicas in '{dc}' need as many nodes; {there} take tablets"


@dataclass
class _Desk:
    """What one round has given out so far; ``count`` is of replicas, by table and node."""

    image: Image
    what: Tablets
    heard: Heard
    limits: Limits
    passed: int = 0
    """Tablets that were looked at for nothing."""
    dc_of: list[str] = field(init=False)
    rack_of: list[str] = field(init=False)
    racks: dict[str, dict[int, str]] = field(init=False)
    """By dc the members that take tablets, be they down, with their racks."""
    takes: npt.NDArray[np.bool_] = field(init=False)
    weight: npt.NDArray[np.float64] = field(init=False)
    count: npt.NDArray[np.int64] = field(init=False)
    load: npt.NDArray[np.float64] = field(init=False)
    silent: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        state, ids = self.what.state, self.what.node_ids
        self.dc_of = [node.dc for node in state.nodes]
        self.rack_of = [node.rack for node in state.nodes]
        place = {node_id: at for at, node_id in enumerate(ids)}
        self.racks = {
            dc: {place[n.node_id]: n.rack for n in room(self.image, dc)} for dc in {*self.dc_of}
        }
        self.weight = standing(state, draining=False).weight
        self.takes = (state.state == NodeState.NORMAL) & (self.weight > 0)
        self.takes[[*state.shut]] = False
        self.count, self.load = state.count.copy(), state.load.sum(axis=0)
        self.silent = frozenset(at for at, node_id in enumerate(ids) if node_id in self.heard.down)

    def isfits(self, node: int) -> bool:
        """It takes one more now."""
        return bool(self.takes[node]) and fits(self.what.state.writing[node], self.limits.writes)

    def is_at_its_end(self) -> bool:
        """Enough was looked at for nothing, or nobody takes any more."""
        if self.passed >= MOST_LOOKED_AT:
            return True
        writing = self.what.state.writing
        return not any(fits(load, self.limits.writes) for load in writing[self.takes].tolist())

    def is_large(self, dc: str, rack: str) -> bool:
        """Whether the rack can have a replica of every tablet, and its nodes still about their shares."""
        racks = self.racks[dc]
        here = sum(float(self.weight[at]) for at, of in racks.items() if of == rack)
        whole = sum(float(self.weight[at]) for at in racks)
        return here * len({*racks.values()}) >= LARGE_RACK * whole

    def part(self, table: int, node: int) -> tuple[float, float, int]:
        """How much a node has of a table, and of all, for its weight."""
        weight = float(self.weight[node]) or 1.0
        return float(self.count[table, node]) / weight, float(self.load[node]) / weight, node

    def streams(self, sources: list[int], targets: list[int]) -> bool:
        """Whether there is room for it in the streams, which it has from now on."""
        state = self.what.state
        if not all(fits(state.reading[at], self.limits.reads) for at in sources):
            return False
        if not all(fits(state.writing[at], self.limits.writes) for at in targets):
            return False
        for at in sources:
            state.reading[at] += WEIGHT
        for at in targets:
            state.writing[at] += WEIGHT
        return True


@dataclass(frozen=True, slots=True)
class _Table:
    """A table with tablets that have too many replicas, or too few: ``found`` by dc, below 0 too few."""

    at: int
    name: str
    units: slice
    found: Mapping[str, npt.NDArray[np.int64]]
    lacks: npt.NDArray[np.bool_]
    has: npt.NDArray[np.bool_]
    why: str
    force: bool
    lost: list[str] = field(default_factory=list)
    """Why some can never be given what they lack."""

    def moves(self, desk: _Desk) -> list[TabletMove]:
        table = desk.image.schema.table_named(self.name)
        assert table is not None, "a table that is balanced has a name"
        still = ~desk.what.state.busy[self.units]
        still &= ~desk.heard.are_paused(table.table_id, len(still))
        more = self._each(desk, np.flatnonzero(self.lacks & still), self._add)
        may_lose = np.flatnonzero(_may_lose(self.has, self.lacks) & still)
        return more + self._each(desk, may_lose, self._delete)

    def _each(
        self,
        desk: _Desk,
        tablets: npt.NDArray[np.int64],
        change: Callable[[_Desk, int], TabletMove | None],
    ) -> list[TabletMove]:
        moves = list[TabletMove]()
        for tablet in _turned(tablets, desk.heard.now_ms).tolist():
            if desk.passed >= MOST_LOOKED_AT:
                break
            move = change(desk, tablet)
            if move is None:
                desk.passed += 1
            else:
                moves.append(move)
                desk.what.state.busy[self.units.start + tablet] = True
        return moves

    def _add(self, desk: _Desk, tablet: int) -> TabletMove | None:
        """To a rack that has fewest of it; there to who has least of the table, then of all, by its share."""
        held = self._held(desk, tablet)
        dcs = sorted(dc for dc, counts in self.found.items() if counts[tablet] < 0)
        free = next(filter(None, (_room_for(desk, dc, held) for dc in dcs)), None)
        if not free:
            return None
        sources = self._sources(desk, tablet, held, blocking(len(held)))
        target = min(free, key=lambda at: desk.part(self.at, at))
        if sources is None or not desk.streams(sources, [target]):
            return None
        desk.count[self.at, target] += 1
        return self._move(desk, tablet, to_node=desk.what.node_ids[target])

    def _delete(self, desk: _Desk, tablet: int) -> TabletMove | None:
        """Of a rack that has most of it: of a dead node, of one that leaves, of one that is silent, of who has
        most of the table.
        """
        state, held = desk.what.state, self._held(desk, tablet)
        dcs = {dc for dc, counts in self.found.items() if counts[tablet] > 0}
        racks = Counter((desk.dc_of[node], desk.rack_of[node]) for node in held)
        source = max(
            (node for node in held if desk.dc_of[node] in dcs),
            key=lambda at: (
                racks[desk.dc_of[at], desk.rack_of[at]],
                *_is_of_no_use(state.state[at]),
                at in desk.silent,
                desk.part(self.at, at),
            ),
        )
        rest = [node for node in held if node != source]
        left = self._all_left(desk, tablet, rest)
        if left is None or not desk.streams(left, left if len(held) > 2 else []):
            return None
        desk.count[self.at, source] -= 1
        return self._move(desk, tablet, from_node=desk.what.node_ids[source])

    def _sources(self, desk: _Desk, tablet: int, nodes: list[int], needed: int) -> list[int] | None:
        """Those of the nodes that can give what they have; None while they are too few, or for ever."""
        state = desk.what.state.state
        alive = [node for node in nodes if state[node] != NodeState.EXCLUDED]
        if len(alive) < needed and not self.force:
            self.lost.append(
                f"tablet {tablet} of {self.name} may have acknowledged writes that only dead nodes have:"
                " ask again with force to give these up"
            )
            return None
        return self._heard(desk, alive, min(needed, len(alive)))

    def _all_left(self, desk: _Desk, tablet: int, nodes: list[int]) -> list[int] | None:
        """Those that stay, each of which must say that it is there; None while one of them cannot."""
        state = desk.what.state.state
        dead = [desk.what.node_ids[node] for node in nodes if state[node] == NodeState.EXCLUDED]
        if dead:
            self.lost.append(
                f"tablet {tablet} of {self.name} would be left on {', '.join(dead)}, which is dead for good:"
                " remove or replace it first"
            )
            return None
        return self._heard(desk, nodes, len(nodes))

    def _heard(self, desk: _Desk, nodes: list[int], needed: int) -> list[int] | None:
        up = [node for node in nodes if node not in desk.silent]
        return up if len(up) >= needed else None

    def _held(self, desk: _Desk, tablet: int) -> list[int]:
        nodes = desk.what.state.node[self.units.start + tablet].tolist()
        return [node for node in nodes if node != NOBODY]

    def _move(
        self, desk: _Desk, tablet: int, *, from_node: str = "", to_node: str = ""
    ) -> TabletMove:
        return TabletMove(
            table=self.name,
            tablet=tablet,
            of=desk.what.tablets_of(self.name),
            from_node=from_node,
            to_node=to_node,
            force=self.force,
            why=self.why,
        )


def _room_for(desk: _Desk, dc: str, held: list[int]) -> list[int]:
    """Who takes one more of it now, of a rack of the dc that has fewest."""
    counts = Counter(desk.rack_of[node] for node in held if desk.dc_of[node] == dc)
    others = {at: rack for at, rack in desk.racks[dc].items() if at not in held}
    racks = fewest(counts, others.values())
    return [at for at, rack in others.items() if rack in racks and desk.isfits(at)]


def _turned(tablets: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.int64]:
    """Each second others come first, so that those for which there is no room hold up nobody."""
    if len(tablets) <= MOST_LOOKED_AT:
        return tablets
    return np.roll(tablets, -(now_ms // 1000 * MOST_LOOKED_AT) % len(tablets))


def _may_lose(has: npt.NDArray[np.bool_], lacks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """A tablet gets all that it lacks in any dc before it loses anything."""
    return has & ~lacks


def _is_of_no_use(state: object) -> tuple[bool, bool]:
    return state == NodeState.EXCLUDED, state == NodeState.DRAINING
