"""Exclude (excludenode): nodes are declared permanently dead, so that no barrier waits for them.

The epoch that excludes them completes it.
"""

from collections.abc import Set
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.operations import Exclude
from stele.domain.model.requests import Request
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.rules.requests import new_request
from stele.domain.topology.operations.base import (
    Operation,
    check_dead,
    no_sets,
    nobody,
)


def exclude(context: Context, command: Exclude) -> Decision:
    """Queue the declaration. The coordinator acts on it only while these nodes are down."""
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
    dead = tuple(sorted(asked))
    return (new_request(context, RequestKind.EXCLUDE, dead_nodes=dead, force=command.force),)


def check_exclusion(image: Image, request: Request, dead: Set[str]) -> Rejection | None:
    """Check again before a request's dead nodes are excluded, because others may be excluded by
    then.

    A replacing node may be the first one that stays, so its request passes.
    """
    return None if request.replaced_id or not dead else _check_somebody_stays(image, dead)


def _check_somebody_stays(image: Image, dead: Set[str]) -> Rejection | None:
    """Refuse if no node with data would remain."""
    if _will_be_there(image) - dead:
        return None
    return Rejection(
        "last_node",
        "No node with tokens would be left.",
        "Start one of them: a cluster without a node that has its data is lost.",
    )


def _will_be_there(image: Image) -> set[str]:
    """Return the nodes that hold data, and joining nodes past their point of no return."""
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
