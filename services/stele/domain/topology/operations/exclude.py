"""Exclude (excludenode): nodes are declared dead for good, so that nothing waits for them any more.

It is done by the epoch that excludes them.
"""

from collections.abc import Set
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import new_request
from stele.domain.topology.operations.base import (
    Operation,
    check_dead,
    no_sets,
    nobody,
)
from stele.domain.topology.operations.commands import Exclude


def exclude(context: Context, command: Exclude) -> Decision:
    """Queue the declaration. The coordinator takes it up only while these nodes are down."""
    image = context.image
    refused = check_dead(image, command.node_ids)
    if refused is not None:
        return refused
    asked = {*command.node_ids} - image.membership.excluded()
    if not asked:
        return Rejection(
            "nobody_to_exclude",
            "All of these nodes are excluded already." if command.node_ids else "No node is named.",
            "`stele nodes` shows who is excluded.",
        )
    refused = _check_somebody_stays(image, asked)
    if refused is not None:
        return refused
    return (new_request(context, RequestKind.EXCLUDE, dead_nodes=tuple(sorted(asked))),)


def check_exclusion(image: Image, request: Request, dead: Set[str]) -> Rejection | None:
    """Asked again before a request's dead nodes are excluded: others may be by then.

    Who takes the place of a dead node may be the first of those that stay.
    """
    return None if request.replaced_id or not dead else _check_somebody_stays(image, dead)


def _check_somebody_stays(image: Image, dead: Set[str]) -> Rejection | None:
    """Somebody has data who is not among these."""
    if _will_be_there(image) - dead:
        return None
    return Rejection(
        "last_node",
        "No node with tokens would be left.",
        "Start one of them: a cluster without a node that has its data is lost.",
    )


def _will_be_there(image: Image) -> set[str]:
    """Nodes that hold data, and those that are past the point of no return on their way to that."""
    coming = {
        node_id
        for transition in image.topology.open()
        if transition.state is TransitionState.WRITE_BOTH_READ_NEW
        for node_id in transition.nodes()
        if image.membership.nodes[node_id].num_tokens
        and image.membership.nodes[node_id].state in (NodeState.BOOTSTRAPPING, NodeState.REPLACING)
    }
    return ({*image.membership.holding()} | coming) - image.membership.excluded()


EXCLUDE: Final = Operation(
    kind=RequestKind.EXCLUDE,
    command=Exclude,
    ask=exclude,
    priority=0,
    needed=nobody,
    touched=no_sets,
)
