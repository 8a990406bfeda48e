"""Remove (removenode): a permanently dead node leaves, and its successors stream from the other
replicas.

write_both_read_old -> write_both_read_new -> left_token_ring -> (left)
failure before write_both_read_new: rollback_to_normal -> (normal, and excluded)

Several requests at one time open together, because no dead node can take over from another.
"""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import Remove
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.rules.requests import new_request
from stele.domain.rules.ring import free_member
from stele.domain.topology.operations.base import (
    Operation,
    asking_nodes,
    check_dead,
    planned_sets,
    receiving_nodes,
)
from stele.domain.topology.operations.leave import (
    check_enough_remain,
    held,
    ring_after,
    states_of_going,
    subjects,
)


def remove(context: Context, command: Remove) -> Decision:
    """Queue the request to remove a node. The coordinator starts it only while the node is down."""
    image = context.image
    node = free_member(image, command.node_id)
    if isinstance(node, Rejection):
        return node
    refused = check_dead(image, command.ignore_nodes) or check_enough_remain(image, node)
    if refused is not None:
        return refused
    if node.state is not NodeState.NORMAL:
        return Rejection(
            "wrong_state",
            f"Node '{node.node_id}' is {node.state}; only a normal node can be removed.",
            "Cancel its request: a join that is undone leaves nothing of the node.",
            {"state": node.state},
        )
    changed = msgspec.structs.replace(node, request_id=context.envelope.request_id)
    request = new_request(
        context,
        RequestKind.REMOVE,
        node_id=node.node_id,
        removes_node=True,
        dead_nodes=tuple(sorted({node.node_id, *command.ignore_nodes})),
        force=command.force,
    )
    return NodeChanged(changed), request


REMOVE: Final = Operation(
    kind=RequestKind.REMOVE,
    command=Remove,
    ask=remove,
    priority=2,
    needed=asking_nodes,
    subjects_work=False,
    grouped=True,
    subjects=subjects,
    ring_after=ring_after,
    held=held,
    first=TransitionState.WRITE_BOTH_READ_OLD,
    states=states_of_going(NodeState.REMOVING),
    touched=planned_sets,
    receivers=receiving_nodes,
    done=NodeState.LEFT,
    undone=NodeState.NORMAL,
)
