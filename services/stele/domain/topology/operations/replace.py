"""Replace: a new node takes the tokens and the data of a permanently dead one, in the same rack.

join_group0 -> write_both_read_old -> write_both_read_new -> finishing -> (normal; the dead one left)

If the dead node has tablets, it does not leave yet: it stays excluded, without tokens, and a
removal of it is queued. The balancer rebuilds its tablets within the streaming limits, first on the
new node, which is empty and in the same rack. The removal ends when none is left.

Source: ScyllaDB, topology-over-raft.md, "Node replace with tablets".

failure before write_both_read_new: left_token_ring -> (left; the dead one as it was, and excluded)
"""

import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import Replace
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.topology import Subject
from stele.domain.model.transitions import Transition
from stele.domain.names import NodeState, RequestKind, RequestStatus, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.strategy import NodeLocation
from stele.domain.rules.requests import check_no_request, new_request
from stele.domain.rules.ring import Ring
from stele.domain.tablets.maps import tablets_on
from stele.domain.topology.operations.base import (
    Operation,
    State,
    asking_nodes,
    check_dead,
    location_of,
    planned_sets,
)
from stele.domain.topology.operations.join import check_newcomer, check_process, newcomer, receivers

_REMOVALS: Final = uuid.UUID("5f1f0f5e-2f0e-5b6e-9c55-0e3f5b1c7a52")
"""Namespace of the ids of removals: each replacement has one."""

replace = msgspec.structs.replace


def replace_node(context: Context, command: Replace) -> Decision:
    """Queue the request of a node in the same dc and rack as the dead one."""
    image = context.image
    refused = (
        check_newcomer(image, command)
        or _check_replaced(image, command)
        or check_dead(image, command.ignore_nodes)
        or check_process(image, command, command.replaced_id)
    )
    if refused is not None:
        return refused
    dead = image.membership.nodes[command.replaced_id]
    node = newcomer(context, command, len(dead.tokens))
    request = new_request(
        context,
        RequestKind.REPLACE,
        node_id=node.node_id,
        replaced_id=dead.node_id,
        dead_nodes=tuple(sorted({dead.node_id, *command.ignore_nodes})),
        force=command.force,
    )
    return NodeChanged(node), NodeChanged(replace(dead, request_id=node.request_id)), request


def subjects(image: Image, ring: Ring, requests: list[Request]) -> tuple[Subject, ...]:
    nodes = image.membership.nodes
    return tuple(
        Subject(
            request_id=r.request_id,
            node_id=r.node_id,
            tokens=nodes[r.replaced_id].tokens,
            replaced_id=r.replaced_id,
        )
        for r in requests
    )


def ring_after(image: Image, ring: Ring, replacing: tuple[Subject, ...]) -> Ring:
    for subject in replacing:
        location = location_of(image.membership.nodes[subject.node_id])
        ring = ring.without_node(subject.replaced_id)
        ring = ring.with_node(subject.node_id, location, subject.tokens)
    return ring


def on_done(image: Image, replaced: Transition, epoch: int) -> Iterable[AnyFact]:
    """Write that the dead nodes have left, or queue the removal of those that have tablets."""
    for subject in replaced.subjects:
        dead = image.membership.nodes[subject.replaced_id]
        tablets = tablets_on(image, dead.node_id)
        if not tablets:
            yield NodeChanged(dead.gone())
            continue
        request = image.requests.requests[subject.request_id]
        removal = removal_of_replaced(request, epoch)
        yield RequestChanged(removal)
        if dead.address == image.membership.nodes[subject.node_id].address:
            yield NodeChanged(replace(dead, address=""))  # an address belongs to one node
        # The note tells operators that these tablets still lack a replica.
        note = (
            f"{tablets} tablets of {dead.node_id} had yet to be rebuilt when it ended:"
            f" `stele why {removal.request_id}`"
        )
        yield RequestChanged(replace(request, error=note))


def removal_of_replaced(request: Request, epoch: int) -> Request:
    """Return the request to remove the replaced node, which waits until its tablets are rebuilt."""
    return Request(
        request_id=str(uuid.uuid5(_REMOVALS, request.request_id)),
        kind=RequestKind.REMOVE,
        status=RequestStatus.PENDING,
        node_id=request.replaced_id,
        removes_node=True,
        dead_nodes=(request.replaced_id,),
        force=request.force,
        actor=request.actor,
        reason=f"replaced by {request.node_id}",
        submitted_epoch=epoch,
        submitted_at_ms=request.finished_at_ms,
    )


def _check_replaced(image: Image, command: Replace) -> Rejection | None:
    """Refuse a node that is not normal, has a request already, or differs in place or kind of
    tokens.
    """
    refused = check_dead(image, (command.replaced_id,))
    if refused is not None:
        return refused
    dead = image.membership.nodes[command.replaced_id]
    if dead.state is not NodeState.NORMAL:
        return Rejection(
            "wrong_state",
            f"Node '{dead.node_id}' is {dead.state}; only a normal node can be replaced.",
            "Cancel its request, and let the new node join without naming it.",
            {"state": dead.state},
        )
    if command.zero_token == bool(dead.tokens):
        return Rejection(
            "other_tokens",
            f"Node '{dead.node_id}' has {len(dead.tokens)} tokens, and the new one is to have "
            f"{'none' if command.zero_token else 'some'}.",
            "A zero-token node is replaced by a zero-token node, and no other: change its num_tokens.",
            {"tokens": str(len(dead.tokens))},
        )
    if location_of(dead) != NodeLocation(dc=command.dc, rack=command.rack):
        return Rejection(
            "wrong_place",
            f"Node '{dead.node_id}' stands in {dead.dc}/{dead.rack}, not in {command.dc}/{command.rack}.",
            "Start the new node in the same dc and rack; or let it join, and remove the dead one then.",
            {"dc": dead.dc, "rack": dead.rack},
        )
    return check_no_request(image, dead)


_STATE = TransitionState
REPLACE: Final = Operation(
    kind=RequestKind.REPLACE,
    command=Replace,
    ask=replace_node,
    priority=0,
    needed=asking_nodes,
    subjects=subjects,
    ring_after=ring_after,
    first=_STATE.JOIN_GROUP0,
    states={
        _STATE.JOIN_GROUP0: State(
            node_state=NodeState.REPLACING,
            on_success=_STATE.WRITE_BOTH_READ_OLD,
            on_failure=_STATE.LEFT_TOKEN_RING,
        ),
        _STATE.WRITE_BOTH_READ_OLD: State(
            delta=transition.write_both_read_old,
            streams=True,
            needs_subjects_up=True,
            on_success=_STATE.WRITE_BOTH_READ_NEW,
            on_failure=_STATE.LEFT_TOKEN_RING,
        ),
        _STATE.WRITE_BOTH_READ_NEW: State(
            delta=transition.write_both_read_new, on_success=_STATE.FINISHING
        ),
        _STATE.FINISHING: State(
            node_state=NodeState.NORMAL, delta=transition.finish, takes_tokens=True
        ),
        _STATE.LEFT_TOKEN_RING: State(delta=transition.rollback, undoing=True),
    },
    touched=planned_sets,
    receivers=receivers,
    done=NodeState.NORMAL,
    on_done=on_done,
    undone=NodeState.LEFT,
    rejected=NodeState.LEFT,
)
