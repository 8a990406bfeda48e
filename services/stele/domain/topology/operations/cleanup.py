"""Cleanup: nodes delete the data that they do not own, whether or not they are marked for it.

It starts when the version that was in use at the request is fenced, so that no late write follows
the deletion. Starting marks the nodes, as an operation does that took ranges from them. It is done
when each node has reported, or is not a normal node (excluded, leaving or gone). It changes no
ranges, and can be cancelled until it is done; nodes finish the cleanup that they have begun.

Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (global operations).
"""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, nothing_left_of, unknown_node
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import Cleanup
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.names import NodeState, RequestKind, RequestStatus
from stele.domain.rules.requests import ended, new_request, started
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    MissingCondition,
    Operation,
    Served,
    done,
    fence_missing,
    no_sets,
    nobody,
)

replace = msgspec.structs.replace


def cleanup(context: Context, command: Cleanup) -> Decision:
    """Queue it; refuse it if another request cleans the same nodes, and name that request."""
    refused = _check_node(context.image, command.node_id) if command.node_id else None
    refused = refused or _check_alone(context.image, command.node_id)
    if refused is not None:
        return refused
    return (new_request(context, RequestKind.CLEANUP, node_id=command.node_id),)


def missing(image: Image, request: Request) -> MissingCondition | None:
    if request.status is RequestStatus.PENDING:
        return fence_missing(image, request.submitted_epoch)
    normal = image.membership.normal()
    # A node that is excluded, leaving or gone no longer blocks the request.
    awaited = tuple(node_id for node_id in request.awaited_nodes if node_id in normal)
    return MissingCondition(f"cleanup by {', '.join(awaited)}", awaited) if awaited else None


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start and mark the nodes; then end, once all of them have reported."""
    if request.status is not RequestStatus.PENDING:
        return done(context, request)
    normal = context.image.membership.normal()
    nodes = [n for n in normal.values() if request.node_id in ("", n.node_id)]
    if not nodes:
        why = f"Node '{request.node_id}' is no normal node any more."
        return ended(context, context.image, request, RequestStatus.FAILED, why)
    awaited = tuple(node.node_id for node in nodes)
    running = replace(started(context, request), awaited_nodes=awaited)
    marks = (NodeChanged(replace(node, cleanup_since=context.epoch)) for node in nodes)
    return RequestChanged(running), *marks


def _check_node(image: Image, node_id: str) -> Rejection | None:
    node = image.node(node_id)
    if node is None:
        return unknown_node(node_id)
    if node.state is NodeState.LEFT:
        return nothing_left_of(node_id)
    if node_id in image.membership.normal():
        return None
    return Rejection(
        "wrong_state",
        f"Node '{node_id}' is {'excluded' if node.excluded else node.state}; only a normal node cleans up.",
        "`stele nodes` shows who is normal.",
        {"state": node.state},
    )


def _check_alone(image: Image, node_id: str) -> Rejection | None:
    for other in image.requests.unfinished():
        same = node_id == other.node_id or "" in (node_id, other.node_id)
        if other.kind is RequestKind.CLEANUP and same:
            return Rejection(
                "cleanup_in_progress",
                f"Request {other.request_id} cleans up {other.node_id or 'all nodes'} already.",
                f"Wait until it is done: `stele request follow {other.request_id}`; or cancel it.",
                {"request_id": other.request_id},
            )
    return None


CLEANUP: Final = Operation(
    kind=RequestKind.CLEANUP,
    command=Cleanup,
    ask=cleanup,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=missing, step=step),
    needed=nobody,
    touched=no_sets,
)
