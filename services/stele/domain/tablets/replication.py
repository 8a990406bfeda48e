"""Giving each tablet as many replicas as it is to have, one more at a time, and only then one fewer; and
bringing those to other racks that are beside a rack list.

Which ones are amiss is found in columns. What they get and lose is chosen one by one, as many as there is room
for in the streams, so that racks are even, then the table's replicas over the nodes, then all that these have.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.moves import Limits
from stele.domain.balance.rack_lists import strays, vacant
from stele.domain.balance.state import NOBODY
from stele.domain.image import Image
from stele.domain.ring.quorum import blocking
from stele.domain.ring.shards import ANY
from stele.domain.schema.facts import Replication
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.copies import Amiss, amiss, change_of, goal
from stele.domain.tablets.desk import MOST_LOOKED_AT, Desk, room_for
from stele.domain.tablets.racks import room
from stele.domain.tablets.spreading import spread
from stele.domain.tablets.stuck import Stuck
from stele.domain.topology.operations.commands import TabletMove

LEAST_LOOKED_AT: Final = 64
"""Of a table's tablets for which nothing can be done now, in one round, however many tables there are."""

Mask = npt.NDArray[np.bool_]


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


def recounts(
    image: Image, what: Tablets, conditions: Conditions, limits: Limits, off: Set[str]
) -> Recounts:
    """What tablets are to get, and to lose, now; those of tables that are ``off`` lose only what a change that
    is asked for takes. Then which are to go to a rack that has fewer of them.

    The tablets' units are ``busy`` then in the state of ``what``, and the streams are counted.
    """
    moves, stuck, any_amiss = list[TabletMove](), list[Stuck](), False
    desk = Desk(image, what, conditions, limits)
    for at, name in enumerate(what.names):
        keyspace = image.schema.named(name.partition(".")[0])
        assert keyspace is not None, "a table that is balanced has a keyspace"
        wanted, change = goal(image, keyspace), change_of(image, keyspace)
        first = what.first[at]
        units = slice(first, first + what.tablets_of(name))
        found = amiss(wanted, desk.places, what.state.node[units])
        due = _Due.of(found.values())
        if change is None and name in off:
            due = due.but_for_what_is_lacking()
        if not due.any():
            continue
        any_amiss = True
        why = f"tablets of {keyspace.name} are to have {wanted.words()}"
        force = change is not None and change.force
        table = _Table(at, name, units, wanted, found, due, why, force)
        moves += table.moves(desk)
        if change is not None and not change.cancelled:
            reasons = [*_no_room(image, wanted), *table.lost]
            stuck += [Stuck(change.request_id, reason) for reason in reasons[:1]]
    by_request = {each.request_id: each for each in reversed(stuck)}
    moves += spread(desk)
    return Recounts(moves, [*by_request.values()], any_amiss)


def _no_room(image: Image, wanted: Replication) -> Iterator[str]:
    """More replicas are asked for than there are members that take any, even if they are down, or are to take
    the place of dead ones.
    """
    replacing = {request.node_id for request in image.requests.open.values() if request.replaced_id}
    coming = [node for n in sorted(replacing) if (node := image.node(n)) is not None]
    for dc, rf in sorted(wanted.copies.items()):
        there = [*room(image, dc), *(node for node in coming if node.dc == dc)]
        for rack in wanted.racks.get(dc, ()):
            if not any(node.rack == rack for node in there):
                yield f"no node in rack '{rack}' of '{dc}' takes tablets"
        if len(there) < rf:
            yield f"{rf} replicas in '{dc}' need as many nodes; {len(there)} take tablets"


class _Due(NamedTuple):
    """Which tablets are to get one more, to have one in another rack, and to lose one, in any dc."""

    more: Mask
    to_move: Mask
    fewer: Mask

    @classmethod
    def of(cls, found: Iterable[Amiss]) -> Self:
        each = [(one.more > 0, one.to_move > 0, one.fewer > 0) for one in found]
        return cls(*(np.any(which, axis=0) for which in zip(*each, strict=True)))

    def any(self) -> bool:
        return bool(np.any([*self]))

    def but_for_what_is_lacking(self) -> Self:
        nothing = np.zeros_like(self.more)
        return self._replace(to_move=nothing, fewer=nothing)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table with tablets that have not what is ``wanted``: ``found`` by dc, ``due`` in all."""

    at: int
    name: str
    units: slice
    wanted: Replication
    found: Mapping[str, Amiss]
    due: _Due
    why: str
    force: bool
    lost: list[str] = field(default_factory=list)
    """Why some can never be given what they lack."""

    def moves(self, desk: Desk) -> list[TabletMove]:
        table = desk.image.schema.table_named(self.name)
        assert table is not None, "a table that is balanced has a name"
        still = ~desk.what.state.busy[self.units]
        still &= ~desk.conditions.are_paused(table.table_id, len(still))
        due = self.due
        moves = self._each(desk, np.flatnonzero(due.more & still), self._add)
        lacking = due.more
        moves += self._each(desk, np.flatnonzero(due.to_move & ~lacking & still), self._move_over)
        lacking = due.more | due.to_move
        may_lose = np.flatnonzero(_may_lose(due.fewer, lacking) & still)
        return moves + self._each(desk, may_lose, self._delete)

    def _each(
        self,
        desk: Desk,
        tablets: npt.NDArray[np.int64],
        change: Callable[[Desk, int], TabletMove | None],
    ) -> list[TabletMove]:
        moves, passed = list[TabletMove](), 0
        most = max(LEAST_LOOKED_AT, MOST_LOOKED_AT // len(desk.what.names))
        for tablet in _turned(tablets, most, desk.conditions.now_ms).tolist():
            if passed >= most:
                break
            move = change(desk, tablet)
            if move is None:
                passed += 1
            else:
                moves.append(move)
                desk.what.state.busy[self.units.start + tablet] = True
        return moves

    def _add(self, desk: Desk, tablet: int) -> TabletMove | None:
        """To a rack that has fewest of it; there to who has least of the table, then of all, by its share."""
        held = self._held(desk, tablet)
        dcs = sorted(dc for dc, each in self.found.items() if each.more[tablet] > 0)
        free = next(filter(None, (self._room_for(desk, dc, held) for dc in dcs)), None)
        if not free:
            return None
        sources = self._sources(desk, tablet, held, blocking(len(held)))
        target = min(free, key=lambda at: desk.part(self.at, at))
        if sources is None:
            return None
        shard = desk.goes_to(self.units.start + tablet, target, sources)
        if shard is None:
            return None
        desk.count[self.at, target] += 1
        return self._move(desk, tablet, to_node=desk.what.node_ids[target], to_shard=shard)

    def _delete(self, desk: Desk, tablet: int) -> TabletMove | None:
        """Of a rack that has most of it: of a dead node, of one that leaves, of one that is silent, of who has
        most of the table.
        """
        state, held = desk.what.state, self._held(desk, tablet)
        dcs = sorted(dc for dc, each in self.found.items() if each.fewer[tablet] > 0)
        racks = Counter(desk.places[node] for node in held)
        source = max(
            (node for dc in dcs for node in self._beside(desk, dc, held)),
            key=lambda at: (
                racks[desk.places[at]],
                *_is_of_no_use(state.state[at]),
                at in desk.silent,
                desk.part(self.at, at),
            ),
        )
        rest = [node for node in held if node != source]
        left = self._all_left(desk, tablet, rest)
        if left is None:
            return None
        slots = [state.slot(self.units.start + tablet, node) for node in left]
        if not desk.streams(slots, slots if len(held) > 2 else []):
            return None
        desk.count[self.at, source] -= 1
        return self._move(desk, tablet, from_node=desk.what.node_ids[source])

    def _move_over(self, desk: Desk, tablet: int) -> TabletMove | None:
        """From beside a rack list to a rack of it that has none: off the dead and those that leave first, from
        who has most of the table to who has least.
        """
        state, held = desk.what.state, self._held(desk, tablet)
        for dc in sorted(dc for dc, each in self.found.items() if each.to_move[tablet] > 0):
            free = self._room_for(desk, dc, held)
            beside = [at for at in self._beside(desk, dc, held) if at not in desk.silent]
            if not free or not beside:
                continue
            source = max(
                beside, key=lambda at: (*_is_of_no_use(state.state[at]), desk.part(self.at, at))
            )
            target = min(free, key=lambda at: desk.part(self.at, at))
            sources: list[int] | None = [source]
            if state.state[source] == NodeState.EXCLUDED:
                rest = [at for at in held if at != source]
                sources = self._sources(desk, tablet, rest, blocking(len(held)))
            if sources is None:
                continue
            shard = desk.goes_to(self.units.start + tablet, target, sources)
            if shard is None:
                continue
            desk.count[self.at, source] -= 1
            desk.count[self.at, target] += 1
            names = desk.what.node_ids
            old, new = names[source], names[target]
            return self._move(desk, tablet, from_node=old, to_node=new, to_shard=shard)
        return None

    def _beside(self, desk: Desk, dc: str, held: list[int]) -> list[int]:
        """Replicas that it is not to have in the dc, or of which it is to have fewer."""
        here = [node for node in held if desk.dc_of[node] == dc]
        racks = self.wanted.racks.get(dc)
        if racks is None:
            return here
        return [here[at] for at in strays(racks, [desk.rack_of[node] for node in here])]

    def _room_for(self, desk: Desk, dc: str, held: list[int]) -> list[int]:
        """Who takes one more of it now, of a rack that may have one more."""
        racks = self.wanted.racks.get(dc)
        if racks is None:
            return room_for(desk, dc, held)
        may = vacant(racks, (desk.rack_of[node] for node in held if desk.dc_of[node] == dc))
        free = desk.racks[dc].items()
        return [at for at, rack in free if rack in may and desk.is_free(at)]

    def _sources(self, desk: Desk, tablet: int, nodes: list[int], needed: int) -> list[int] | None:
        """Those of the nodes that can give what they have; None while they are too few, or for ever."""
        state = desk.what.state.state
        alive = [node for node in nodes if state[node] != NodeState.EXCLUDED]
        if len(alive) < needed and not self.force:
            self.lost.append(
                f"tablet {tablet} of {self.name} may have acknowledged writes that only dead nodes have:"
                " ask again with force to give these up"
            )
            return None
        return self._up(desk, alive, min(needed, len(alive)))

    def _all_left(self, desk: Desk, tablet: int, nodes: list[int]) -> list[int] | None:
        """Those that stay, each of which must say that it is there; None while one of them cannot."""
        state = desk.what.state.state
        dead = [desk.what.node_ids[node] for node in nodes if state[node] == NodeState.EXCLUDED]
        if dead:
            self.lost.append(
                f"tablet {tablet} of {self.name} would be left on {', '.join(dead)}, which is dead for good:"
                " remove or replace it first"
            )
            return None
        return self._up(desk, nodes, len(nodes))

    def _up(self, desk: Desk, nodes: list[int], needed: int) -> list[int] | None:
        up = [node for node in nodes if node not in desk.silent]
        return up if len(up) >= needed else None

    def _held(self, desk: Desk, tablet: int) -> list[int]:
        nodes = desk.what.state.node[self.units.start + tablet].tolist()
        return [node for node in nodes if node != NOBODY]

    def _move(
        self,
        desk: Desk,
        tablet: int,
        *,
        from_node: str = "",
        to_node: str = "",
        to_shard: int = ANY,
    ) -> TabletMove:
        return TabletMove(
            table=self.name,
            tablet=tablet,
            of=desk.what.tablets_of(self.name),
            from_node=from_node,
            to_node=to_node,
            to_shard=to_shard,
            force=self.force,
            why=self.why,
        )


def _turned(tablets: npt.NDArray[np.int64], most: int, now_ms: int) -> npt.NDArray[np.int64]:
    """Each second others come first, so that those for which there is no room hold up nobody."""
    if len(tablets) <= most:
        return tablets
    return np.roll(tablets, -(now_ms // 1000 * most) % len(tablets))


def _may_lose(has: npt.NDArray[np.bool_], lacks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """A tablet gets all that it lacks in any dc before it loses anything."""
    return has & ~lacks


def _is_of_no_use(state: object) -> tuple[bool, bool]:
    return state == NodeState.EXCLUDED, state == NodeState.DRAINING
