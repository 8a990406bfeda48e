"""Requests that can never complete: nodes that cannot be emptied, and impossible merges."""

from collections.abc import Iterable, Mapping, Set
from typing import Final

import msgspec
import numpy as np

from stele.domain.balancer.colocation import Merge
from stele.domain.balancer.columns import Tablets
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.planner.planned import Rule
from stele.domain.planner.state import LEAVING
from stele.domain.planner.verdicts import summed_up, verdicts_from
from stele.domain.ring.transition import TransitionRow, lacks_sources
from stele.domain.tablets.maps import apart, holders, row_of

LASTING: Final = frozenset({Rule.HOLDS_ONE, Rule.OTHER_DC, Rule.RACK})
"""Rules that forbid a move wherever other tablets are. A target that leaves as well is another such
reason.
"""


class Stuck(msgspec.Struct, frozen=True):
    """A request to end, and the reason.

    Its node has tablets that no other node can take, or its table is no longer to be resized.
    """

    request_id: str
    why: str
    waits: bool = False
    """It does not end, but waits for another node.

    It is the removal of a dead node that a replacement has queued: no user would submit it again.
    """


Lost = Mapping[int, tuple[str, int]]
"""Replicas that cannot be rebuilt: the table and the tablet of each."""


def lost_replicas(image: Image, tablets: Tablets, forced: Set[str]) -> dict[int, tuple[str, int]]:
    """Return the replicas on dead nodes that cannot be rebuilt, with table and tablet.

    Acknowledged writes may be on dead nodes alone, and no operator has accepted their loss.
    """
    dead, state, found = image.membership.excluded(), tablets.state, dict[int, tuple[str, int]]()
    for node_id in sorted((dead - forced) & {*tablets.node_ids}):
        for replica in state.members(tablets.node_ids.index(node_id)).tolist():
            name, tablet = tablets.tablet(replica // state.width)
            table = image.schema.table_named(name)
            assert table is not None, "a table that is balanced has a name"
            row = row_of(image.ring.placements[table.placement], tablet)
            new = tuple("" if n == node_id else n for n in row.reads)
            if lacks_sources(TransitionRow(row.start, row.end, row.reads, new), dead):
                found[replica] = name, tablet
    return found


def cannot_be_drained(
    image: Image, tablets: Tablets, lost: Lost, moving: Set[str], *, room_may_come: bool
) -> list[Stuck]:
    """Return the requests for nodes whose tablets have no planned move and never can have one.

    ``room_may_come``: some nodes receive nothing now and may later. Only rules that they could not
    satisfy either then count.
    """
    calm = not room_may_come and not moving and not tablets.state.busy.any()
    found = list[Stuck]()
    flat = tablets.state.node.ravel()
    of_node = {tablets.node_ids[int(flat[replica])]: tablet for replica, tablet in lost.items()}
    for request in image.requests.pending():
        if not request.removes_node or request.node_id in moving:
            continue
        tablet = of_node.get(request.node_id)
        if tablet:
            found.append(Stuck(request.request_id, _why_lost(image, *tablet)))
            continue
        why = _why_stuck(image, tablets, request, calm)
        member = image.membership.nodes[request.node_id]
        is_replaced = member.excluded and not member.tokens
        if why:
            then = "it waits until then" if is_replaced else "then ask again"
            stays = " (the node stays excluded)" if member.excluded and not is_replaced else ""
            found.append(Stuck(request.request_id, f"{why}; {then}{stays}", is_replaced))
    return found


def _why_lost(image: Image, table: str, tablet: int) -> str:
    dead = ", ".join(sorted(image.membership.excluded()))
    return (
        f"tablet {tablet} of {table} may have acknowledged writes that only dead nodes have, {dead}:"
        " ask again with force to give these up"
    )


def _why_stuck(image: Image, tablets: Tablets, request: Request, calm: bool) -> str:
    """Return the reason, empty while a move is possible or no tablet is left.

    Unless all is ``calm``, other tablets may still make room.
    """
    state = tablets.state
    if request.node_id not in tablets.node_ids:
        return ""
    node = tablets.node_ids.index(request.node_id)
    held = state.members(node)
    waiting = held[~state.busy[held // state.width]]
    if state.state[node] not in LEAVING or not len(waiting):
        return ""
    unit = int(waiting[0]) // state.width
    table, tablet = tablets.tablet(unit)
    found = verdicts_from(state, tablets.names, unit, node)
    going = {n for at, n in enumerate(tablets.node_ids) if state.state[at] in LEAVING}
    if not calm and any(v.rule not in LASTING and v.target not in going for v in found):
        return ""
    member = image.membership.nodes[request.node_id]
    return (
        f"no other node can take {len(np.unique(held // state.width))} tablets of '{request.node_id}', such as "
        f"tablet {tablet} of {table}: {summed_up(found)}. Add a node in rack {member.rack} of {member.dc}"
        f"{', or replace the node' if member.tokens else ''}, or lower the replication factor"
    )


def cannot_merge(image: Image, merges: Iterable[Merge], lost: Lost, *, calm: bool) -> list[Stuck]:
    """Return the merges whose siblings cannot be brought together.

    A tablet with a lost replica stays where it is, and its sibling cannot follow it to a dead node.
    The same holds for any tablet of a dead node when all is ``calm``: no other node can take it.
    """
    excluded, tables = image.membership.excluded(), {table for table, _ in lost.values()}
    found = list[Stuck]()
    for merge in merges:
        dead = ", ".join(sorted(excluded & holders(merge.placement)))
        pairs = apart(merge.placement).tolist()
        if dead and pairs and (calm or merge.name in tables):
            why = f"tablets {2 * pairs[0]} and {2 * pairs[0] + 1} of {merge.name} cannot move to the same nodes"
            found.append(
                Stuck(merge.request.request_id, f"{why}: {dead} is dead for good, and has some")
            )
    return found
