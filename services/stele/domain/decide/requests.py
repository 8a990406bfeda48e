"""Commands that ask for topology operations. They queue requests; the coordinator carries them out."""

import msgspec

from stele.domain import commands, facts
from stele.domain.commands import Rejection
from stele.domain.decide import undo
from stele.domain.decide.cluster import bad_name
from stele.domain.decide.context import Context, Decision, unknown_node, unknown_request
from stele.domain.entities import Node, Request
from stele.domain.image import Image
from stele.domain.names import (
    PARTITIONER,
    UNFINISHED,
    NodeState,
    RequestKind,
    RequestStatus,
)
from stele.domain.ring.tokens import MIN_TOKEN

MAX_NUM_TOKENS = 1024


def join(context: Context, command: commands.Join) -> Decision:
    """Seed 004's checks of the node that receives JOIN_NODE_REQUEST, in its order."""
    image = context.image
    refused = (
        _check_same_cluster(image, command)
        or _check_names(command)
        or _check_unknown(image, command)
        or _check_host_is_new(image, command)
        or _check_address(image, command.node_id, command.address)
        or _check_features(image, command.supported_features)
        or _check_tokens(image, command)
    )
    if refused is not None:
        return refused
    node = Node(
        node_id=command.node_id,
        address=command.address,
        dc=command.dc,
        rack=command.rack,
        num_tokens=len(command.initial_tokens) or command.num_tokens,
        initial_tokens=tuple(sorted(command.initial_tokens)),
        supported_features=tuple(sorted(command.supported_features)),
        release_version=command.release_version,
        request_id=context.envelope.request_id,
        host_id=command.host_id,
    )
    return facts.NodeChanged(node), _new_request(context, RequestKind.JOIN, command.node_id)


def announce_node(context: Context, command: commands.AnnounceNode) -> Decision:
    image = context.image
    node = image.node(command.node_id)
    if node is None:
        return unknown_node(command.node_id)
    if node.state is NodeState.LEFT:
        return _has_left(command.node_id)
    refused = (
        _check_host(node, command.host_id)
        or _check_address(image, command.node_id, command.address)
        or _check_features(image, command.supported_features)
    )
    if refused is not None:
        return refused
    changed = msgspec.structs.replace(
        node,
        address=command.address,
        supported_features=tuple(sorted(command.supported_features)),
        release_version=command.release_version,
    )
    return () if changed == node else (facts.NodeChanged(changed),)


def leave(context: Context, command: commands.Leave) -> Decision:
    image = context.image
    node = image.node(command.node_id)
    if node is None:
        return unknown_node(command.node_id)
    if node.state is NodeState.LEFT:
        return _has_left(command.node_id)
    refused = _check_no_request(image, node) or _check_enough_remain(image, node)
    if refused is not None:
        return refused
    if node.state is not NodeState.NORMAL:
        return Rejection(
            "wrong_state",
            f"Node '{node.node_id}' is {node.state}; only a normal node can leave.",
            "Wait until it is normal, or cancel its request.",
            {"state": node.state},
        )
    changed = msgspec.structs.replace(node, request_id=context.envelope.request_id)
    return facts.NodeChanged(changed), _new_request(context, RequestKind.LEAVE, node.node_id)


def cancel(context: Context, command: commands.Cancel) -> Decision:
    """Pending: gone at once. Running before the point of no return: rolled back. After it: refused."""
    request = context.image.request(command.target)
    if request is None:
        return unknown_request(command.target)
    if request.status not in UNFINISHED:
        return Rejection(
            "already_finished",
            f"Request {request.request_id} is {request.status} since epoch {request.finished_epoch}.",
            "There is nothing left to cancel.",
            {"status": request.status, "epoch": str(request.finished_epoch)},
        )
    why = f"cancelled by {context.envelope.actor or 'unknown'}"
    if context.envelope.reason:
        why = f"{why}: {context.envelope.reason}"
    if request.status is RequestStatus.PENDING:
        return undo.drop_pending(context, request, RequestStatus.CANCELLED, why)
    return undo.roll_back(context, request, why, cancelled=True)


def _new_request(context: Context, kind: RequestKind, node_id: str) -> facts.RequestChanged:
    return facts.RequestChanged(
        Request(
            request_id=context.envelope.request_id,
            kind=kind,
            node_id=node_id,
            status=RequestStatus.PENDING,
            actor=context.envelope.actor,
            reason=context.envelope.reason,
            submitted_epoch=context.epoch,
            submitted_at_ms=context.at_ms,
        )
    )


def _check_same_cluster(image: Image, command: commands.Join) -> Rejection | None:
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


def _check_names(command: commands.Join) -> Rejection | None:
    refused = (
        bad_name("node", command.node_id)
        or bad_name("dc", command.dc)
        or bad_name("rack", command.rack)
    )
    if refused is None and not command.address:
        return Rejection("bad_address", "A node needs an address.", "Send its http://host:port.")
    return refused


def _check_unknown(image: Image, command: commands.Join) -> Rejection | None:
    node = image.node(command.node_id)
    if node is None:
        return None
    if node.state is NodeState.LEFT:
        return _has_left(node.node_id)
    return _check_host(node, command.host_id) or Rejection(
        "already_known",
        f"Node '{node.node_id}' is in the cluster already, in state '{node.state}'.",
        "A node that restarts sends announce_node; a new node needs an id of its own.",
        {"state": node.state, "request_id": node.request_id},
    )


def _check_host(node: Node, host_id: str) -> Rejection | None:
    """A name stands for one data directory; who comes with another one lacks what was acknowledged."""
    if node.host_id == host_id:
        return None
    return Rejection(
        "host_id_mismatch",
        f"Node '{node.node_id}' is host {node.host_id or '(none)'}, not {host_id or '(none)'}:"
        " this is not the replica that the cluster knows.",
        "Restore its data directory, or give the node a new name and remove or replace the old one.",
        {"host_id": node.host_id, "asked": host_id},
    )


def _check_host_is_new(image: Image, command: commands.Join) -> Rejection | None:
    """Data that was a node's once, be it of one that has left, is never another node's."""
    for other in image.membership.nodes.values():
        if command.host_id and other.host_id == command.host_id:
            return Rejection(
                "host_id_used",
                f"Host {command.host_id} is node '{other.node_id}', in state '{other.state}'.",
                "Give the new node an empty data directory.",
                {"node": other.node_id},
            )
    return None


def _has_left(node_id: str) -> Rejection:
    return Rejection(
        "node_left",
        f"Node '{node_id}' has left the cluster; its id cannot be used again.",
        "Clear the node's data directory and start it with a new id.",
    )


def _check_address(image: Image, node_id: str, address: str) -> Rejection | None:
    for other in image.membership.nodes.values():
        taken = other.address == address and other.node_id != node_id
        if taken and other.state is not NodeState.LEFT:
            return Rejection(
                "address_in_use",
                f"Address {address} belongs to node '{other.node_id}'.",
                "Give each node an address of its own.",
                {"node": other.node_id},
            )
    return None


def _check_features(image: Image, supported: tuple[str, ...]) -> Rejection | None:
    lacking = sorted({*image.features.enabled} - {*supported})
    if not lacking:
        return None
    return Rejection(
        "missing_features",
        f"The cluster has features that the node lacks: {', '.join(lacking)}.",
        "Upgrade the node's software.",
        {"features": ",".join(lacking)},
    )


def _check_tokens(image: Image, command: commands.Join) -> Rejection | None:
    if not 1 <= command.num_tokens <= MAX_NUM_TOKENS:
        return Rejection(
            "bad_num_tokens",
            f"num_tokens is {command.num_tokens}; it must be 1 to {MAX_NUM_TOKENS}.",
            "16 suits most clusters.",
        )
    if not command.initial_tokens:
        return None
    chosen = set(command.initial_tokens)
    nodes = [n for n in image.membership.nodes.values() if n.state is not NodeState.LEFT]
    owned = {token for n in nodes for token in (*n.tokens, *n.initial_tokens)}
    in_range = all(MIN_TOKEN < token < -MIN_TOKEN for token in chosen)
    if len(chosen) != len(command.initial_tokens) or chosen & owned or not in_range:
        return Rejection(
            "bad_tokens",
            "The initial tokens repeat, are owned by another node, or are out of range.",
            "Leave them out to let the cluster choose.",
        )
    return None


def _check_no_request(image: Image, node: Node) -> Rejection | None:
    current = image.request(node.request_id)
    if current is None or current.status not in UNFINISHED:
        return None
    return Rejection(
        "request_in_progress",
        f"Node '{node.node_id}' has the unfinished request {current.request_id} ({current.kind}).",
        "Wait until it is done, or cancel it.",
        {"request_id": current.request_id, "kind": current.kind},
    )


def _check_enough_remain(image: Image, leaving: Node) -> Rejection | None:
    """Counts those who are about to leave as gone, so that two leaves cannot undershoot together."""
    going = {r.node_id for r in image.requests.unfinished() if r.kind is RequestKind.LEAVE}
    going.add(leaving.node_id)
    staying = [n for n in image.membership.normal().values() if n.node_id not in going]
    if not staying:
        return Rejection(
            "last_node", "The last node cannot leave.", "Add another node before this one leaves."
        )
    for replication in image.schema.replications().values():
        rf = replication.get(leaving.dc, 0)
        remaining = sum(1 for node in staying if node.dc == leaving.dc)
        if remaining < rf:
            return Rejection(
                "too_few_nodes",
                f"{remaining} nodes would remain in '{leaving.dc}'; replication needs {rf}.",
                "Add a node to that dc first, or lower the replication factor.",
                {"dc": leaving.dc, "remaining": str(remaining), "replication_factor": str(rf)},
            )
    return None
