"""What the balancer asks for next: moves of tablets, and the end of requests whose nodes cannot be drained."""

from collections.abc import Mapping, Set
from typing import Final

import msgspec
import numpy as np

from stele.domain.balance.cluster import NodeState
from stele.domain.balance.moves import Kind, Limits, Move
from stele.domain.balance.plan import plan_round
from stele.domain.balance.scopes import LEAVING
from stele.domain.balance.verdicts import Rule, summed_up, verdicts_from
from stele.domain.image import Image
from stele.domain.requests.facts import Request
from stele.domain.ring.transition import TransitionRow, lacks_sources
from stele.domain.tablets.columns import Tablets, tablets_of
from stele.domain.tablets.limits import BALANCING, ON, READS, WRITES
from stele.domain.tablets.load import NO_LOADS, LoadTable
from stele.domain.tablets.maps import row_of
from stele.domain.topology.operations.commands import TabletMove

LASTING: Final = frozenset({Rule.HOLDS_ONE, Rule.OTHER_DC, Rule.RACK})
"""What forbids a move of a tablet wherever others are. So does that the other node leaves too."""


class Proposed(msgspec.Struct, frozen=True):
    """A move, with what for, and what it would be."""

    move: TabletMove
    kind: Kind


class Stuck(msgspec.Struct, frozen=True):
    """A request whose node has tablets that nobody else can take, and why."""

    request_id: str
    why: str


class Proposal(msgspec.Struct, frozen=True):
    """What to begin now, and what can never be."""

    moves: tuple[Proposed, ...] = ()
    stuck: tuple[Stuck, ...] = ()


def proposal(image: Image, down: Set[str] = frozenset(), loads: LoadTable = NO_LOADS) -> Proposal:
    """What one round would begin beside what is under way; nothing twice, since what is asked for counts too.

    ``down`` are nodes that are not heard, or where moves have failed just now: they get nothing, not even of
    those that leave (the planner by itself would let these wait), nor do nodes whose disks are full by the
    ``loads`` that they told. While there are any nothing is said to be stuck; else one request at a time, the
    newest: when it ends its node may take what the others have. Without ``loads`` all tablets count the same.
    """
    settings = image.features.settings
    limits = Limits(reads=READS.of(settings), writes=WRITES.of(settings), batch=WRITES.of(settings))
    what = tablets_of(image, down, loads)
    forced = frozenset(r.node_id for r in image.requests.pending() if r.removes_node and r.force)
    lost = _lost(image, what, forced)
    what.state.pinned = frozenset(lost)
    shut = down | loads.full()
    what.state.shut = frozenset(at for at, n in enumerate(what.node_ids) if n in shut)
    moves = [_told(what, move, forced) for move in plan_round(what.state, what.names, limits)]
    if BALANCING.of(settings) != ON:
        leaving = {n.id for n in what.state.nodes if n.state in LEAVING}
        moves = [each for each in moves if each.move.from_node in leaving]
    moving = frozenset(each.move.from_node for each in moves)
    stuck = () if shut else tuple(_stuck(image, what, lost, moving)[-1:])
    return Proposal(tuple(moves), stuck)


def _told(what: Tablets, move: Move, forced: Set[str]) -> Proposed:
    table, tablet = what.tablet(move.unit)
    source, target = what.node_ids[move.source[0]], what.node_ids[move.target[0]]
    asked = TabletMove(
        table=table,
        tablet=tablet,
        from_node=source,
        to_node=target,
        force=source in forced,
        why=move.reason,
    )
    return Proposed(asked, move.kind)


def _lost(image: Image, what: Tablets, forced: Set[str]) -> dict[int, tuple[str, int]]:
    """Replicas on dead nodes that cannot be made anew, with table and tablet: what was acknowledged may be on
    dead nodes alone, and nobody has accepted that it is lost.
    """
    dead, state, found = image.membership.excluded(), what.state, dict[int, tuple[str, int]]()
    for node_id in sorted((dead - forced) & {*what.node_ids}):
        for replica in state.members(what.node_ids.index(node_id)).tolist():
            name, tablet = what.tablet(replica // state.width)
            table = image.schema.table_named(name)
            assert table is not None, "a table that is balanced has a name"
            row = row_of(image.ring.placements[table.placement], tablet)
            new = tuple("" if n == node_id else n for n in row.reads)
            if lacks_sources(TransitionRow(row.start, row.end, row.reads, new), dead):
                found[replica] = name, tablet
    return found


def _stuck(
    image: Image, what: Tablets, lost: Mapping[int, tuple[str, int]], moving: Set[str]
) -> list[Stuck]:
    """Nothing is planned for what these nodes have, nor ever can be, whatever moves elsewhere."""
    found, calm = list[Stuck](), not moving and not what.state.busy.any()
    flat = what.state.node.ravel()
    of_node = {what.node_ids[int(flat[replica])]: tablet for replica, tablet in lost.items()}
    for request in image.requests.pending():
        if not request.removes_node or request.node_id in moving:
            continue
        tablet = of_node.get(request.node_id)
        why = _why_lost(image, *tablet) if tablet else _why_stuck(what, request, calm)
        if why:
            found.append(Stuck(request.request_id, why))
    return found


def _why_lost(image: Image, table: str, tablet: int) -> str:
    dead = ", ".join(sorted(image.membership.excluded()))
    return (
        f"tablet {tablet} of {table} may have acknowledged writes that only dead nodes have, {dead}:"
        " ask again with force to give these up"
    )


def _why_stuck(what: Tablets, request: Request, calm: bool) -> str:
    """Empty while there is hope, or nothing left. Unless all is ``calm``, other tablets may make room."""
    state = what.state
    if request.node_id not in what.node_ids:
        return ""
    node = what.node_ids.index(request.node_id)
    held = state.members(node)
    waiting = held[~state.busy[held // state.width]]
    if state.state[node] == NodeState.NORMAL or not len(waiting):
        return ""
    unit = int(waiting[0]) // state.width
    table, tablet = what.tablet(unit)
    found = verdicts_from(state, what.names, unit, node)
    going = {n for at, n in enumerate(what.node_ids) if state.state[at] in LEAVING}
    if not calm and any(v.rule not in LASTING and v.target not in going for v in found):
        return ""
    reason = summed_up(found)
    return (
        f"no other node can take {len(np.unique(held // state.width))} tablets of '{request.node_id}', such as "
        f"tablet {tablet} of {table}: {reason}"
    )
