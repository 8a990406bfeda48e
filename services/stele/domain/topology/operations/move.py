"""Move: a node's tokens change while it serves. It is a leave and a join of one node in one plan.

write_both_read_old -> write_both_read_new -> finishing -> (normal)
failure before write_both_read_new: rollback_to_normal -> (normal, with the tokens of before)

The node streams the ranges that it gains, and its successors stream those that it gives up. Each
streams from the node that loses the range (Cassandra's Move; there for nodes of one token, here for
1 to ``MAX_NUM_TOKENS``).
"""

from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import MoveNode
from stele.domain.model.requests import Request
from stele.domain.model.topology import Subject
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.rules.requests import new_request
from stele.domain.rules.ring import Ring, check_tokens, choose_tokens, normal_member, ring_now
from stele.domain.topology.operations.base import (
    Operation,
    State,
    asking_nodes,
    location_of,
    planned_sets,
    receiving_and_own_nodes,
)


def move(context: Context, command: MoveNode) -> Decision:
    """Queue the request of a normal node that has tokens, but not exactly these."""
    image = context.image
    node = required(normal_member(image, command.node_id, "move"))
    if not node.tokens:
        return Rejection(
            "no_tokens",
            f"Node '{node.node_id}' has no tokens, so there is nothing to move.",
            "Let a node with tokens join, and this one leave.",
        )
    if command.tokens:
        required(check_tokens(image, command.tokens, node.tokens))
    tokens = command.tokens or _chosen(image, ring_now(image), node.node_id)
    if {*tokens} == {*node.tokens}:
        return Rejection(
            "same_tokens",
            f"Node '{node.node_id}' has these tokens."
            if command.tokens
            else f"Node '{node.node_id}' has the tokens that it would get if it joined now.",
            "Name others.",
        )
    changed = msgspec.structs.replace(node, request_id=context.envelope.request_id)
    asked = tuple(sorted(command.tokens))
    request = new_request(context, RequestKind.MOVE, node_id=node.node_id, tokens=asked)
    return NodeChanged(changed), request


def subjects(image: Image, ring: Ring, requests: list[Request]) -> tuple[Subject, ...]:
    """Return the node with its new tokens: the requested ones, or those of a join now."""
    return tuple(
        Subject(
            request_id=request.request_id,
            node_id=request.node_id,
            tokens=request.tokens or _chosen(image, ring, request.node_id),
        )
        for request in requests
    )


def _chosen(image: Image, ring: Ring, node_id: str) -> tuple[int, ...]:
    node = image.membership.nodes[node_id]
    # Without its own tokens, because the choice is that of a new node.
    return choose_tokens(image, ring.without_node(node_id), node, len(node.tokens))


def ring_after(image: Image, ring: Ring, moving: tuple[Subject, ...]) -> Ring:
    for subject in moving:
        location = location_of(image.membership.nodes[subject.node_id])
        ring = ring.without_node(subject.node_id)
        ring = ring.with_node(subject.node_id, location, subject.tokens)
    return ring


_STATE: Final = TransitionState
MOVE: Final = Operation(
    kind=RequestKind.MOVE,
    command=MoveNode,
    ask=move,
    priority=4,
    needed=asking_nodes,
    subjects=subjects,
    ring_after=ring_after,
    first=_STATE.WRITE_BOTH_READ_OLD,
    states={
        _STATE.WRITE_BOTH_READ_OLD: State(
            node_state=NodeState.MOVING,
            delta=transition.write_both_read_old,
            streams=True,
            needs_subjects_up=True,
            on_success=_STATE.WRITE_BOTH_READ_NEW,
            on_failure=_STATE.ROLLBACK_TO_NORMAL,
        ),
        _STATE.WRITE_BOTH_READ_NEW: State(
            delta=transition.write_both_read_new, on_success=_STATE.FINISHING
        ),
        _STATE.FINISHING: State(
            node_state=NodeState.NORMAL, delta=transition.finish, takes_tokens=True
        ),
        _STATE.ROLLBACK_TO_NORMAL: State(delta=transition.rollback, undoing=True),
    },
    touched=planned_sets,
    receivers=receiving_and_own_nodes,
    done=NodeState.NORMAL,
    undone=NodeState.NORMAL,
)
