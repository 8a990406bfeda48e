"""Nodes that go: a live node leaves, dead ones are removed or excluded."""

from collections.abc import Set
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.operations import Exclude, Leave, Remove
from stele.domain.model.requests import Request
from stele.domain.model.topology import Subject
from stele.domain.model.transitions import Transition
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.rules.requests import new_request
from stele.domain.rules.ring import Ring, free_member, normal_member
from stele.domain.tablets.maps import tablets_on
from stele.domain.topology.operations.base import (
    Operation,
    State,
    asking_nodes,
    check_dead,
    planned_sets,
    receiving_nodes,
)

# Leave (decommission): a node streams its data to its successors, then leaves.
#
# write_both_read_old -> write_both_read_new -> left_token_ring -> (left)
# failure before write_both_read_new: rollback_to_normal -> (normal)


def leave(context: Context, command: Leave) -> Decision:
    """Queue the request of a normal node if enough others remain."""
    image = context.image
    node = required(normal_member(image, command.node_id, "leave"))
    required(check_enough_remain(image, node))
    changed = msgspec.structs.replace(node, request_id=context.envelope.request_id)
    request = new_request(context, RequestKind.LEAVE, node_id=node.node_id, removes_node=True)
    return NodeChanged(changed), request


def subjects(image: Image, ring: Ring, requests: list[Request]) -> tuple[Subject, ...]:
    nodes = image.membership.nodes
    return tuple(
        Subject(request_id=r.request_id, node_id=r.node_id, tokens=nodes[r.node_id].tokens)
        for r in requests
    )


def ring_after(image: Image, ring: Ring, leaving: tuple[Subject, ...]) -> Ring:
    for subject in leaving:
        ring = ring.without_node(subject.node_id)
    return ring


def check_enough_remain(image: Image, leaving: Node) -> Rejection | None:
    """Refuse a leave after which too few nodes remain for a keyspace.

    Nodes that are about to leave count as gone. Otherwise two leaves together could go below the
    replication factor (I7).
    """
    if not leaving.tokens:
        return None
    going = {*image.requests.going(), leaving.node_id}
    staying = [n for n in image.membership.holding().values() if n.node_id not in going]
    if not staying:
        return Rejection(
            "last_node",
            "The last node with tokens cannot leave.",
            "Add another node before this one leaves.",
        )
    keyspaces = sorted(image.schema.by_id.values(), key=lambda keyspace: keyspace.name)
    names = {keyspace.keyspace_id: keyspace.name for keyspace in keyspaces}
    # Unfinished changes of replication count, too: they may need the node.
    asked = [(r.keyspace_id, r.wanted) for r in image.requests.unfinished()]
    used = [(keyspace.keyspace_id, keyspace.wanted) for keyspace in keyspaces]
    in_rack = any((n.dc, n.rack) == (leaving.dc, leaving.rack) for n in staying)
    for keyspace_id, wanted in used + asked:
        rf, name = wanted.copies.get(leaving.dc, 0), names.get(keyspace_id, keyspace_id)
        if leaving.rack in wanted.racks.get(leaving.dc, ()) and not in_rack:
            return Rejection(
                "last_of_rack",
                f"Keyspace '{name}' has a replica in rack '{leaving.rack}' of '{leaving.dc}', where no other"
                " node would remain.",
                "Add a node to that rack first, replace the node, or name other racks: `stele keyspace alter"
                f" {name}`.",
                {"dc": leaving.dc, "rack": leaving.rack, "keyspace": name},
            )
        remaining = sum(1 for node in staying if node.dc == leaving.dc)
        if remaining < rf:
            return Rejection(
                "too_few_nodes",
                f"{remaining} nodes would remain in '{leaving.dc}'; keyspace '{name}' needs {rf}.",
                "Add a node to that dc first, replace the node, or lower the replication factor.",
                {"dc": leaving.dc, "remaining": str(remaining), "replication_factor": str(rf)},
            )
    return None


def blocked_by_tablets(
    image: Image, planned: Transition, requests: list[Request]
) -> Rejection | None:
    """Return why the nodes must wait: their tablets have to migrate first."""
    left = {node_id: tablets_on(image, node_id) for node_id in planned.nodes()}
    having = {node_id: count for node_id, count in left.items() if count}
    if not having:
        return None
    text = ", ".join(f"{count} of '{node_id}'" for node_id, count in sorted(having.items()))
    return Rejection(
        "has_tablets",
        f"Tablets have to migrate to other nodes first: {text}.",
        "It waits until that is done; see to it that a tablet-balancer runs.",
        {"tablets": str(sum(having.values()))},
    )


def states_of_going(node_state: NodeState) -> dict[TransitionState, State]:
    """Return the states of the way out of the ring, during which the node is in ``node_state``."""
    return {
        _STATE.WRITE_BOTH_READ_OLD: State(
            node_state=node_state,
            delta=transition.write_both_read_old,
            streams=True,
            on_success=_STATE.WRITE_BOTH_READ_NEW,
            on_failure=_STATE.ROLLBACK_TO_NORMAL,
        ),
        _STATE.WRITE_BOTH_READ_NEW: State(
            delta=transition.write_both_read_new, on_success=_STATE.LEFT_TOKEN_RING
        ),
        _STATE.LEFT_TOKEN_RING: State(delta=transition.finish, drops_tokens=True),
        _STATE.ROLLBACK_TO_NORMAL: State(delta=transition.rollback, undoing=True),
    }


_STATE: Final = TransitionState
LEAVE: Final = Operation(
    kind=RequestKind.LEAVE,
    command=Leave,
    ask=leave,
    priority=3,
    needed=asking_nodes,
    subjects=subjects,
    ring_after=ring_after,
    blocked=blocked_by_tablets,
    first=_STATE.WRITE_BOTH_READ_OLD,
    states=states_of_going(NodeState.DECOMMISSIONING),
    touched=planned_sets,
    receivers=receiving_nodes,
    done=NodeState.LEFT,
    undone=NodeState.NORMAL,
)


# Remove (removenode): a permanently dead node leaves, and its successors stream from the other
# replicas.
#
# write_both_read_old -> write_both_read_new -> left_token_ring -> (left)
# failure before write_both_read_new: rollback_to_normal -> (normal, and excluded)
#
# Several requests at one time open together, because no dead node can take over from another.


def remove(context: Context, command: Remove) -> Decision:
    """Queue the request to remove a node. The coordinator starts it only while the node is down."""
    image = context.image
    node = required(free_member(image, command.node_id))
    required(check_dead(image, command.ignore_nodes) or check_enough_remain(image, node))
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
    blocked=blocked_by_tablets,
    first=TransitionState.WRITE_BOTH_READ_OLD,
    states=states_of_going(NodeState.REMOVING),
    touched=planned_sets,
    receivers=receiving_nodes,
    done=NodeState.LEFT,
    undone=NodeState.NORMAL,
)


# Exclude (excludenode): nodes are declared permanently dead, so that no barrier waits for them.
#
# The epoch that excludes them completes it.


def exclude(context: Context, command: Exclude) -> Decision:
    """Queue the declaration. The coordinator acts on it only while these nodes are down."""
    image = context.image
    required(check_dead(image, command.node_ids))
    asked = {*command.node_ids} - image.membership.excluded()
    if not asked:
        return Rejection(
            "nobody_to_exclude",
            "All of these nodes are excluded already." if command.node_ids else "No node is named.",
            "`stele nodes` shows who is excluded.",
        )
    required(_check_somebody_stays(image, asked))
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
)
