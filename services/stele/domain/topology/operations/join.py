"""Nodes that come: a new node joins, or replaces a permanently dead one."""

import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name, node_has_left
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.operations import Join, Replace
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.topology import Subject
from stele.domain.model.transitions import Transition
from stele.domain.names import (
    MAX_SHARDS,
    PARTITIONER,
    NodeState,
    RequestKind,
    RequestStatus,
    TransitionState,
)
from stele.domain.ring import transition
from stele.domain.ring.strategy import NodeLocation
from stele.domain.rules.membership import (
    check_address,
    check_build,
    check_host,
    check_is_address,
)
from stele.domain.rules.requests import check_no_request, new_request
from stele.domain.rules.ring import Ring, check_num_tokens, check_tokens, choose_tokens
from stele.domain.tablets.maps import tablets_on
from stele.domain.topology.operations.base import (
    Operation,
    State,
    asking_nodes,
    check_dead,
    location_of,
    planned_sets,
    receiving_and_own_nodes,
)

# Join (bootstrap): a new node takes tokens, receives the data of their ranges, then serves them.
#
# join_group0 -> commit_cdc_generation -> write_both_read_old -> write_both_read_new -> finishing -> (normal)
# failure before write_both_read_new: left_token_ring -> (left)
#
# Nodes without tokens skip commit_cdc_generation.


def join(context: Context, command: Join) -> Decision:
    """Queue the request of a node that may become a member."""
    image = context.image
    required(
        check_newcomer(image, command)
        or _check_tokens(image, command)
        or check_process(image, command)
    )
    node = newcomer(context, command, command.num_tokens, command.initial_tokens)
    return NodeChanged(node), new_request(context, RequestKind.JOIN, node_id=command.node_id)


def check_newcomer(image: Image, command: Join | Replace) -> Rejection | None:
    """Return why a new node is refused, whatever its kind of request.

    The checks have the order of ScyllaDB, topology-over-raft.md, "Join procedure". The checks of
    the kind follow, then ``check_process``.
    """
    return (
        _check_same_cluster(image, command)
        or _check_names(command)
        or _check_shards(command)
        or _check_unknown(image, command)
        or _check_host_is_new(image, command)
    )


def check_process(image: Image, command: Join | Replace, replaced_id: str = "") -> Rejection | None:
    """Check that the node has a free address and can read what the cluster writes.

    These checks come last, as those of the topology coordinator (ScyllaDB, topology-over-raft.md,
    "Join procedure").
    """
    who = f"node '{command.node_id}'"
    return check_address(image, command.node_id, command.address, replaced_id) or check_build(
        image, who, command.supported_features, command.release_version
    )


def newcomer(
    context: Context, command: Join | Replace, num_tokens: int, initial_tokens: tuple[int, ...] = ()
) -> Node:
    """Return the row of a node that asks to become a member."""
    return Node(
        node_id=command.node_id,
        address=command.address,
        dc=command.dc,
        rack=command.rack,
        num_tokens=len(initial_tokens) or num_tokens,
        initial_tokens=tuple(sorted(initial_tokens)),
        supported_features=tuple(sorted(command.supported_features)),
        release_version=command.release_version,
        request_id=context.envelope.request_id,
        host_id=command.host_id,
        shards=command.shards,
    )


def joining_subjects(image: Image, ring: Ring, requests: list[Request]) -> tuple[Subject, ...]:
    """Return the nodes with new tokens; a zero-token node gets none.

    Each choice counts the tokens of the nodes before it as taken. Tokens that other pending nodes
    have chosen themselves are taken, too.
    """
    chosen: list[Subject] = []
    for request in requests:
        node = image.membership.nodes[request.node_id]
        tokens = node.initial_tokens
        if node.num_tokens and not tokens:
            tokens = choose_tokens(image, ring, node, node.num_tokens)
        ring = ring.with_node(node.node_id, location_of(node), tokens)
        chosen.append(Subject(request_id=request.request_id, node_id=node.node_id, tokens=tokens))
    return tuple(chosen)


def ring_with_joined(image: Image, ring: Ring, joining: tuple[Subject, ...]) -> Ring:
    for subject in joining:
        location = location_of(image.membership.nodes[subject.node_id])
        ring = ring.with_node(subject.node_id, location, subject.tokens)
    return ring


def _check_shards(command: Join | Replace) -> Rejection | None:
    if 1 <= command.shards <= MAX_SHARDS:
        return None
    return Rejection(
        "bad_shards",
        f"Node '{command.node_id}' has {command.shards} shards; it must have 1 to {MAX_SHARDS}.",
        "Start it with another STELE_SHARDS: one for each core suits most nodes.",
    )


def _check_same_cluster(image: Image, command: Join | Replace) -> Rejection | None:
    if command.cluster != image.cluster:
        return Rejection(
            "wrong_cluster",
            f"Node '{command.node_id}' wants to join '{command.cluster}'; this is '{image.cluster}'.",
            "Check the node's cluster name and the address that it was given.",
            {"asked": command.cluster, "cluster": image.cluster},
        )
    if command.partitioner != PARTITIONER:
        return Rejection(
            "wrong_partitioner",
            f"The cluster partitions by {PARTITIONER}, not by {command.partitioner}.",
            f"Configure the node for {PARTITIONER}.",
        )
    return None


def _check_names(command: Join | Replace) -> Rejection | None:
    refused = (
        bad_name("node", command.node_id)
        or bad_name("dc", command.dc)
        or bad_name("rack", command.rack)
        or check_is_address(command.address)
    )
    if refused is None and not command.host_id:
        return Rejection(
            "host_id_missing",
            f"Node '{command.node_id}' does not say which host it is.",
            "Send the host_id of its data directory; `stele join http://host:port` asks the node for it.",
        )
    return refused


def _check_unknown(image: Image, command: Join | Replace) -> Rejection | None:
    node = image.node(command.node_id)
    if node is None:
        return None
    if node.state is NodeState.LEFT:
        return node_has_left(node.node_id)
    return check_host(node, command.host_id) or Rejection(
        "already_known",
        f"Node '{node.node_id}' is in the cluster already, in state '{node.state}'.",
        "A node that restarts sends announce_node; a new node needs another id.",
        {"state": node.state, "request_id": node.request_id},
    )


def _check_host_is_new(image: Image, command: Join | Replace) -> Rejection | None:
    """Refuse a host id that any node has or had, even one that has left: its data stays that
    node's.

    A new node needs an empty data directory.
    """
    for other in image.membership.nodes.values():
        if other.host_id == command.host_id:
            return Rejection(
                "host_id_used",
                f"Host {command.host_id} is node '{other.node_id}', in state '{other.state}'.",
                "Give the new node an empty data directory.",
                {"node": other.node_id},
            )
    return None


def _check_tokens(image: Image, command: Join) -> Rejection | None:
    if command.initial_tokens:
        return check_tokens(image, command.initial_tokens)
    if command.num_tokens:
        return check_num_tokens(command.num_tokens)
    if image.membership.ring_tokens():
        return None
    return Rejection(
        "no_tokens_yet",
        f"Node '{command.node_id}' takes no tokens, and no node of the cluster has any yet.",
        "Let a node with tokens join first, and ask again.",
    )


_STATE = TransitionState
JOIN: Final = Operation(
    kind=RequestKind.JOIN,
    command=Join,
    ask=join,
    priority=1,
    needed=asking_nodes,
    grouped=True,
    subjects=joining_subjects,
    ring_after=ring_with_joined,
    first=_STATE.JOIN_GROUP0,
    states={
        _STATE.JOIN_GROUP0: State(
            node_state=NodeState.BOOTSTRAPPING,
            takes_tokens=True,
            delta=transition.split_delta,
            on_success=_STATE.COMMIT_CDC_GENERATION,
            on_failure=_STATE.LEFT_TOKEN_RING,
        ),
        _STATE.COMMIT_CDC_GENERATION: State(
            delta=transition.split_delta,
            makes_cdc_generation=True,
            needs_new_tokens=True,
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
        _STATE.FINISHING: State(node_state=NodeState.NORMAL, delta=transition.finish),
        _STATE.LEFT_TOKEN_RING: State(delta=transition.rollback, drops_tokens=True, undoing=True),
    },
    touched=planned_sets,
    receivers=receiving_and_own_nodes,
    done=NodeState.NORMAL,
    undone=NodeState.LEFT,
    rejected=NodeState.LEFT,
)


# Replace: a new node takes the tokens and the data of a permanently dead one, in the same rack.
#
# join_group0 -> write_both_read_old -> write_both_read_new -> finishing -> (normal; the dead one left)
#
# If the dead node has tablets, it does not leave yet: it stays excluded, without tokens, and a
# removal of it is queued. The balancer rebuilds its tablets within the streaming limits, first on
# the new node, which is empty and in the same rack. The removal ends when none is left.
#
# Source: ScyllaDB, topology-over-raft.md, "Node replace with tablets".
#
# failure before write_both_read_new: left_token_ring -> (left; the dead one as it was, and excluded)


_REMOVALS: Final = uuid.UUID("5f1f0f5e-2f0e-5b6e-9c55-0e3f5b1c7a52")
"""Namespace of the ids of removals: each replacement has one."""

replace = msgspec.structs.replace


def replace_node(context: Context, command: Replace) -> Decision:
    """Queue the request of a node in the same dc and rack as the dead one."""
    image = context.image
    required(
        check_newcomer(image, command)
        or _check_replaced(image, command)
        or check_dead(image, command.ignore_nodes)
        or check_process(image, command, command.replaced_id)
    )
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


def replacing_subjects(image: Image, ring: Ring, requests: list[Request]) -> tuple[Subject, ...]:
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


def ring_with_replaced(image: Image, ring: Ring, replacing: tuple[Subject, ...]) -> Ring:
    for subject in replacing:
        location = location_of(image.membership.nodes[subject.node_id])
        ring = ring.without_node(subject.replaced_id)
        ring = ring.with_node(subject.node_id, location, subject.tokens)
    return ring


def end_replacement(image: Image, replaced: Transition, epoch: int) -> Iterable[AnyFact]:
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
    required(check_dead(image, (command.replaced_id,)))
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


REPLACE: Final = Operation(
    kind=RequestKind.REPLACE,
    command=Replace,
    ask=replace_node,
    priority=0,
    needed=asking_nodes,
    subjects=replacing_subjects,
    ring_after=ring_with_replaced,
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
    receivers=receiving_and_own_nodes,
    done=NodeState.NORMAL,
    on_done=end_replacement,
    undone=NodeState.LEFT,
    rejected=NodeState.LEFT,
)
