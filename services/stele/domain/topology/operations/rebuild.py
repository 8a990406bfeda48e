"""Rebuild: a node streams all its ranges again from the other replicas, while it serves.

rebuilding -> (normal)
failure: rollback_to_normal -> (normal)

No routing changes, so nothing has to be undone. Rows merge by last write wins, and new writes reach
the node as usual. Its ranges are locked, so their replicas stay.

A range is complete after enough other replicas were read to block every quorum, without the node
itself: two of three, one of two. Quorums count the replicas of all dcs together, and so do the
sources, in any dc. With one replica there is no source.
"""

from collections.abc import Set
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.image import Image
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.operations import Rebuild
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import TABLET_MAP, NodeState, RequestKind, RequestStatus, TransitionState
from stele.domain.ring.quorum import blocking
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import TransitionPlan, TransitionRow, disjoint, staying
from stele.domain.rules.requests import ended, new_request
from stele.domain.rules.ring import locations_now, normal_member
from stele.domain.topology.operations.base import Operation, Sources, State
from stele.domain.topology.operations.leave import subjects


def rebuild(context: Context, command: Rebuild) -> Decision:
    """Queue the request of a normal node; without tokens it is done at once, with a warning."""
    image = context.image
    node = required(normal_member(image, command.node_id, "be rebuilt"))
    if command.source_dc:
        required(bad_name("dc", command.source_dc))
    change = new_request(
        context,
        RequestKind.REBUILD,
        node_id=node.node_id,
        force=command.force,
        source_dc=command.source_dc,
    )
    if not node.tokens:
        warning = f"Warning: node '{node.node_id}' has no tokens, so there was nothing to rebuild."
        return ended(context, image, change.request, RequestStatus.DONE, warning)
    required(_check_others(image, node, command) or _check_sources(image, change.request))
    return NodeChanged(msgspec.structs.replace(node, request_id=change.request.request_id)), change


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan]:
    """Return the ranges that the node replicates, with the same replicas before and after."""
    (request,) = requests
    required(_check_sources(image, request))
    return _plans(image, request.node_id)


def needed(image: Image, requests: list[Request]) -> list[str]:
    """Return the node alone. The sources are checked when the node asks them."""
    return [request.node_id for request in requests]


def receivers(rebuilding: Transition) -> list[str]:
    return sorted(rebuilding.nodes())


def sources(
    image: Image, rebuilding: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    request = image.request(rebuilding.transition_id)
    assert request is not None, "a request under way is in the image"
    if node_id != request.node_id:
        return None
    return _sources(image, request, row, unavailable)


def _sources(image: Image, request: Request, row: TransitionRow, unavailable: Set[str]) -> Sources:
    """Return the sources. With force the remaining ones suffice; without any the node keeps its
    rows.
    """
    nodes, dc = image.membership.nodes, request.source_dc
    others = tuple(
        other
        for other in row.old
        if other not in unavailable and other != request.node_id and dc in ("", nodes[other].dc)
    )
    # This many sources meet every quorum of the replicas, and so have each acknowledged write.
    enough = blocking(len(row.old))
    return others, min(enough, len(others)) if request.force else enough


def _plans(image: Image, node_id: str) -> dict[str, TransitionPlan]:
    found: dict[str, TransitionPlan] = {}
    maps = (table.placement for table in image.schema.map_owners())
    for name in (*image.schema.replications(), *maps):
        rows = tuple(
            staying(row) for row in image.ring.placements[name].rows if node_id in row.reads
        )
        if not rows and name.startswith(TABLET_MAP):
            continue
        locks = disjoint(Range(row.start, row.end) for row in rows)
        found[name] = TransitionPlan(rows=rows, locks=locks)
    return found


def _check_others(image: Image, node: Node, command: Rebuild) -> Rejection | None:
    locations = locations_now(image)
    others = {place.dc for other, place in locations.items() if other != node.node_id}
    if not others:
        return Rejection(
            "single_node",
            f"Cannot rebuild a single node: nobody but '{node.node_id}' has data.",
            "Restore its data directory from a backup.",
        )
    if command.source_dc and command.source_dc not in others:
        return Rejection(
            "unknown_dc",
            f"No other node with tokens is in dc '{command.source_dc}'.",
            f"There are some in: {', '.join(sorted(others))}.",
            {"dc": command.source_dc},
        )
    return None


def _check_sources(image: Image, request: Request) -> Rejection | None:
    """Refuse if a range has too few other replicas that are not excluded, unless forced."""
    excluded = image.membership.excluded()
    for name, plan in _plans(image, request.node_id).items():
        for row in plan.rows:
            others, enough = _sources(image, request, row, excluded)
            if len(others) < enough:
                return _too_few(request, name, row, others, enough)
    return None


def _too_few(
    request: Request, name: str, row: TransitionRow, others: tuple[str, ...], enough: int
) -> Rejection:
    where = f" of '{request.source_dc}'" if request.source_dc else ""
    return Rejection(
        "too_few_sources",
        f"({row.start}, {row.end}] of placement {name} is whole only if {enough} other replicas give what"
        f" they have; it has {len(others)}{where}.",
        f"{'Leave the dc out, or a' if where else 'A'}sk with force to take what there is.",
        {"placement": name, "needed": str(enough), "sources": ",".join(others)},
    )


_STATE: Final = TransitionState
REBUILD: Final = Operation(
    kind=RequestKind.REBUILD,
    command=Rebuild,
    ask=rebuild,
    priority=5,
    needed=needed,
    subjects=subjects,
    plans=plans,
    first=_STATE.REBUILDING,
    states={
        _STATE.REBUILDING: State(
            node_state=NodeState.REBUILDING, streams=True, on_failure=_STATE.ROLLBACK_TO_NORMAL
        ),
        _STATE.ROLLBACK_TO_NORMAL: State(undoing=True),
    },
    receivers=receivers,
    sources=sources,
    done=NodeState.NORMAL,
    undone=NodeState.NORMAL,
)
