"""Requests about the whole cluster that move no ranges."""

from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, nothing_left_of, unknown_node
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import (
    Cleanup,
    EnableFeatures,
    NewCdcGeneration,
    NoopRequest,
    Quiesce,
)
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.names import NodeState, RequestKind, RequestStatus, TransitionState
from stele.domain.rules.cdc import is_ahead
from stele.domain.rules.features import check_supported
from stele.domain.rules.requests import ended, new_request, started
from stele.domain.rules.ring import tokens_of_streams
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    MissingCondition,
    Operation,
    Served,
    State,
    done,
    fence_missing,
)

# Noop: synchronize a caller with the coordinator, and change nothing (``noop_request`` in
# ScyllaDB).
#
# It is done when the coordinator has read it and the version that was in use at the request is
# fenced. Then the coordinator has seen all earlier epochs, and no replica serves a request of an
# older version on a changed range.


def noop_request(context: Context, command: NoopRequest) -> Decision:
    return (new_request(context, RequestKind.NOOP_REQUEST),)


NOOP_REQUEST: Final = Operation(
    kind=RequestKind.NOOP_REQUEST,
    command=NoopRequest,
    ask=noop_request,
    priority=GLOBAL_PRIORITY,
    served=Served(
        missing=lambda image, request: fence_missing(image, request.submitted_epoch), step=done
    ),
)


# Quiesce: wait until all earlier requests are finished (``quiesce_topology`` in ScyllaDB).
#
# It is done under three conditions. No earlier request is open or pending, the version that the
# last of them made is fenced, and no node has anything to clean up. Later requests neither wait for
# it nor delay it, with one exception: a later operation that marks a node for cleanup. It changes
# nothing, and can be cancelled until it is done.


def quiesce(context: Context, command: Quiesce) -> Decision:
    return (new_request(context, RequestKind.QUIESCE),)


def quiesce_missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the first condition that does not hold yet."""
    found = (condition(image, request) for condition in CONDITIONS)
    return next((each for each in found if each is not None), None)


def earlier_requests(image: Image, request: Request) -> MissingCondition | None:
    earlier = [
        f"{other.kind} ({other.request_id})"
        for other in image.requests.unfinished()
        if other.submitted_epoch < request.submitted_epoch
    ]
    return MissingCondition(f"earlier requests: {', '.join(earlier)}") if earlier else None


def their_fence(image: Image, request: Request) -> MissingCondition | None:
    ends = [
        other.finished_epoch
        for other in image.requests.finished()
        if other.submitted_epoch < request.submitted_epoch
    ]
    # An earlier request may have ended after this one was sent, with a newer version.
    return fence_missing(image, max([request.submitted_epoch, *ends]))


def cleanups(image: Image, request: Request) -> MissingCondition | None:
    dirty = tuple(n for n, node in image.membership.normal().items() if node.cleanup_since)
    return MissingCondition(f"cleanup by {', '.join(dirty)}", dirty) if dirty else None


CONDITIONS: Final = (earlier_requests, their_fence, cleanups)
"""The conditions of rest. An empty plan of the tablet balancer belongs here, too."""

QUIESCE: Final = Operation(
    kind=RequestKind.QUIESCE,
    command=Quiesce,
    ask=quiesce,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=quiesce_missing, step=done),
)


# Cleanup: nodes delete the data that they do not own, whether or not they are marked for it.
#
# It starts when the version that was in use at the request is fenced, so that no late write follows
# the deletion. Starting marks the nodes, as an operation does that took ranges from them. It is
# done when each node has reported, or is not a normal node (excluded, leaving or gone). It changes
# no ranges, and can be cancelled until it is done; nodes finish the cleanup that they have begun.
#
# Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (global operations).


replace = msgspec.structs.replace


def cleanup(context: Context, command: Cleanup) -> Decision:
    """Queue it; refuse it if another request cleans the same nodes, and name that request."""
    if command.node_id:
        required(_check_node(context.image, command.node_id))
    required(_check_one_cleanup(context.image, command.node_id))
    return (new_request(context, RequestKind.CLEANUP, node_id=command.node_id),)


def cleanup_missing(image: Image, request: Request) -> MissingCondition | None:
    if request.status is RequestStatus.PENDING:
        return fence_missing(image, request.submitted_epoch)
    normal = image.membership.normal()
    # A node that is excluded, leaving or gone no longer blocks the request.
    awaited = tuple(node_id for node_id in request.awaited_nodes if node_id in normal)
    return MissingCondition(f"cleanup by {', '.join(awaited)}", awaited) if awaited else None


def cleanup_step(context: Context, request: Request) -> tuple[AnyFact, ...]:
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


def _check_one_cleanup(image: Image, node_id: str) -> Rejection | None:
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
    served=Served(missing=cleanup_missing, step=cleanup_step),
)


# New CDC generation: one that fits the present ring (``check_and_repair_cdc_streams`` in ScyllaDB).
#
# commit_cdc_generation -> (done)
# failure or cancel: rollback_to_normal -> (the written generation is forgotten).
# Unless forced, it is done at once when the present generation fits the ring with all open
# operations. It does not fit after nodes have left or moved; joins make a generation of their own.
#
# Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (global operations).


def new_cdc_generation(context: Context, command: NewCdcGeneration) -> Decision:
    """Queue it, or end it at once if there is nothing to repair."""
    image = context.image
    tokens = tokens_of_streams(image)
    required(_check_tokens(tokens) or _check_one_generation(image))
    asked = new_request(context, RequestKind.NEW_CDC_GENERATION, force=command.force)
    present = image.cdc.newest()
    is_good = present and not is_ahead(context, image, present) and present.fits(tokens)
    if is_good and not command.force:
        return ended(context, image, asked.request, RequestStatus.DONE, "")
    return (asked,)


def _check_tokens(tokens: set[int]) -> Rejection | None:
    if tokens:
        return None
    return Rejection(
        "no_tokens_yet",
        "No node of the cluster has tokens yet, so there are no ranges to make streams for.",
        "Let a node with tokens join: that makes the first CDC generation.",
    )


def _check_one_generation(image: Image) -> Rejection | None:
    for other in image.requests.unfinished():
        if other.kind is RequestKind.NEW_CDC_GENERATION:
            return Rejection(
                "cdc_generation_in_progress",
                f"Request {other.request_id} makes a CDC generation already.",
                f"Wait until it is done: `stele request follow {other.request_id}`; or cancel it.",
                {"request_id": other.request_id},
            )
    return None


_STATE = TransitionState
NEW_CDC_GENERATION: Final = Operation(
    kind=RequestKind.NEW_CDC_GENERATION,
    command=NewCdcGeneration,
    ask=new_cdc_generation,
    priority=GLOBAL_PRIORITY,
    first=_STATE.COMMIT_CDC_GENERATION,
    states={
        _STATE.COMMIT_CDC_GENERATION: State(
            makes_cdc_generation=True,
            awaits_all_acks=True,
            on_failure=_STATE.ROLLBACK_TO_NORMAL,
        ),
        _STATE.ROLLBACK_TO_NORMAL: State(undoing=True),
    },
)


# Enable features when every member has acknowledged an epoch of the request or later.
#
# A node declares the features that it supports before it acknowledges anything. So a member that
# was restarted with an older build is not overlooked. The operation changes no placements, and ends
# with the epoch that enables the features.
#
# Source: ScyllaDB, pull request #15196, "Cluster features on raft".


def enable_features(context: Context, command: EnableFeatures) -> Decision:
    """Queue the request; it is done at once when there is nothing left to enable."""
    image = context.image
    required(check_supported(image, command.features))
    fresh = tuple(sorted({*command.features} - {*image.features.enabled}))
    asked = new_request(context, RequestKind.ENABLE_FEATURES, features=fresh)
    if fresh:
        return (asked,)
    return ended(context, image, asked.request, RequestStatus.DONE, "")


ENABLE_FEATURES: Final = Operation(
    kind=RequestKind.ENABLE_FEATURES,
    command=EnableFeatures,
    ask=enable_features,
    priority=0,
    asks_all=True,
)
