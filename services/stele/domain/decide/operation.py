"""The coordinator's commands: each is one step of the topology state machine, guarded by its term."""

import msgspec

from stele.domain import commands, facts
from stele.domain.commands import Rejection
from stele.domain.decide import undo
from stele.domain.decide.context import Context, Decision, unknown_node, unknown_request
from stele.domain.decide.entry import enter
from stele.domain.entities import Node, Operation, Request
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import CleanupStatus, RequestKind, RequestStatus, TransitionState
from stele.domain.ring.allocation import allocate_tokens
from stele.domain.ring.ranges import PlacementError
from stele.domain.ring.strategy import NodeLocation
from stele.domain.ring.transition import (
    WHOLE_RING,
    TransitionPlan,
    equals_at_rest,
    prepare_rings,
)
from stele.domain.stages import FIRST_STAGE, stage_of

replace = msgspec.structs.replace


def start_request(context: Context, command: commands.StartRequest) -> Decision:
    """Take the request from the queue and compute the placements of all its steps."""
    image = context.image
    request = image.request(command.target)
    if request is None:
        return unknown_request(command.target)
    refused = (
        _check_term(image, command.term)
        or _check_idle(image)
        or _check_fenced(image)
        or _check_pending(request)
    )
    if refused is not None:
        return refused
    node = image.membership.nodes[request.node_id]
    tokens = _tokens_of(image, request, node)
    operation = Operation(
        request_id=request.request_id,
        kind=request.kind,
        node_id=request.node_id,
        tokens=tokens,
        plans=_plans(image, request, node, tokens),
    )
    started = replace(
        request,
        status=RequestStatus.RUNNING,
        started_epoch=context.epoch,
        started_at_ms=context.at_ms,
    )
    first: list[AnyFact] = [facts.RequestChanged(started), facts.OperationChanged(operation)]
    return (*first, *enter(context, operation, FIRST_STAGE[request.kind]))


def reject_request(context: Context, command: commands.RejectRequest) -> Decision:
    """A pending request that cannot be carried out ends with the reason; it never waits for ever."""
    request = context.image.request(command.target)
    if request is None:
        return unknown_request(command.target)
    refused = _check_term(context.image, command.term) or _check_pending(request)
    if refused is not None:
        return refused
    return undo.drop_pending(context, request, RequestStatus.FAILED, command.why)


def advance(context: Context, command: commands.Advance) -> Decision:
    """The next step, or the step back of an operation that is marked to be undone.

    The version before must be fenced, so at most two are ever in use (I3).
    """
    image = context.image
    operation, topology = image.topology.operation, image.topology.topology
    refused = _check_term(image, command.term)
    if refused is not None:
        return refused
    if operation is None or operation.request_id != command.target:
        return _overtaken(image)
    if topology.version != command.version:
        return _overtaken(image)
    refused = _check_fenced(image)
    if refused is not None:
        return refused
    stage = stage_of(operation.kind, topology.transition_state)
    if topology.rollback and stage.on_failure is not None:
        return enter(context, operation, stage.on_failure)
    return enter(context, operation, stage.on_success)


def advance_fence(context: Context, command: commands.AdvanceFence) -> Decision:
    image = context.image
    topology = image.topology.topology
    refused = _check_term(image, command.term)
    if refused is not None:
        return refused
    if command.version != topology.version or topology.fence_version == topology.version:
        return _overtaken(image)
    fenced = replace(topology, fence_version=command.version, fence_epoch=context.epoch)
    return (facts.TopologyChanged(fenced),)


def rollback(context: Context, command: commands.Rollback) -> Decision:
    request = context.image.request(command.target)
    if request is None:
        return unknown_request(command.target)
    refused = _check_term(context.image, command.term)
    return refused or undo.roll_back(context, request, command.why, cancelled=False)


def finish_cleanup(context: Context, command: commands.FinishCleanup) -> Decision:
    image = context.image
    node = image.node(command.node_id)
    if node is None:
        return unknown_node(command.node_id)
    refused = _check_term(image, command.term)
    if refused is not None:
        return refused
    stale = image.topology.topology.version != command.version
    if stale or node.cleanup is not CleanupStatus.NEEDED:
        return _overtaken(image)
    return (facts.NodeChanged(replace(node, cleanup=CleanupStatus.CLEAN)),)


def _tokens_of(image: Image, request: Request, node: Node) -> tuple[int, ...]:
    if request.kind is RequestKind.LEAVE:
        return node.tokens
    if node.initial_tokens:
        return node.initial_tokens
    membership = image.membership
    return allocate_tokens(
        membership.ring_tokens(),
        membership.locations(),
        node.node_id,
        NodeLocation(dc=node.dc, rack=node.rack),
        node.num_tokens,
        f"{image.cluster_id}/{node.node_id}".encode(),
    )


def _plans(
    image: Image, request: Request, node: Node, tokens: tuple[int, ...]
) -> dict[str, TransitionPlan]:
    membership = image.membership
    old_tokens, old_locations = membership.ring_tokens(), membership.locations()
    new_tokens, new_locations = dict(old_tokens), dict(old_locations)
    if request.kind is RequestKind.JOIN:
        new_tokens.update(dict.fromkeys(tokens, node.node_id))
        new_locations[node.node_id] = NodeLocation(dc=node.dc, rack=node.rack)
    else:
        new_tokens = {t: n for t, n in old_tokens.items() if n != node.node_id}
        del new_locations[node.node_id]
    found: dict[str, TransitionPlan] = {}
    for name, replication in image.schema.replications().items():
        prepared = prepare_rings(old_tokens, new_tokens, old_locations, new_locations, replication)
        if not equals_at_rest(image.ring.placements[name], prepared.before, [WHOLE_RING]):
            raise PlacementError(
                f"Placement '{name}' is not that of the ring's tokens: finish or undo what is under way."
            )
        found[name] = prepared.plan
    return found


def _check_term(image: Image, term: int) -> Rejection | None:
    current = image.topology.coordinator
    if term == current.term:
        return None
    return Rejection(
        "stale_term",
        f"Term {term} is not the current term {current.term}, held by '{current.holder}'.",
        "A coordinator that reads this has been replaced and must stop.",
        {"term": str(current.term), "holder": current.holder},
    )


def _check_idle(image: Image) -> Rejection | None:
    operation = image.topology.operation
    if operation is None and image.topology.topology.transition_state is TransitionState.NONE:
        return None
    request_id = operation.request_id if operation is not None else ""
    return Rejection(
        "topology_busy",
        f"Request {request_id} is in transition; one operation runs at a time.",
        "Wait until it is done.",
        {"request_id": request_id},
    )


def _check_fenced(image: Image) -> Rejection | None:
    topology = image.topology.topology
    if topology.fence_version == topology.version:
        return None
    return Rejection(
        "not_fenced",
        f"Version {topology.version} is in use, but the fence is at {topology.fence_version}.",
        "Wait for the barrier and advance the fence first.",
        {"version": str(topology.version), "fence_version": str(topology.fence_version)},
    )


def _check_pending(request: Request) -> Rejection | None:
    if request.status is RequestStatus.PENDING:
        return None
    return Rejection(
        "not_pending",
        f"Request {request.request_id} is {request.status}.",
        "Only a pending request can be started or rejected.",
        {"status": request.status},
    )


def _overtaken(image: Image) -> Rejection:
    topology = image.topology.topology
    return Rejection(
        "overtaken",
        "The topology has moved on since this step was planned.",
        "Read the newest state and plan again.",
        {"version": str(topology.version), "transition_state": topology.transition_state},
    )
