"""The ways back: a pending request that is dropped, a running operation that is rolled back."""

import msgspec

from stele.domain import facts
from stele.domain.commands import Rejection
from stele.domain.decide.context import Context, Decision
from stele.domain.decide.entry import enter
from stele.domain.entities import Request
from stele.domain.facts import AnyFact
from stele.domain.names import NodeState, RequestKind, RequestStatus
from stele.domain.stages import stage_of

replace = msgspec.structs.replace


def drop_pending(context: Context, request: Request, status: RequestStatus, why: str) -> Decision:
    """End a request that never started; a node that wanted to join is turned away for good."""
    ended = replace(
        request,
        status=status,
        error=why,
        finished_epoch=context.epoch,
        finished_at_ms=context.at_ms,
    )
    found: list[AnyFact] = [facts.RequestChanged(ended)]
    node = context.image.node(request.node_id)
    if node is not None and request.kind is RequestKind.JOIN:
        found.append(facts.NodeChanged(replace(node, state=NodeState.LEFT)))
    return tuple(found)


def roll_back(context: Context, request: Request, why: str, *, cancelled: bool) -> Decision:
    """Turn the operation of ``request`` round, if it is before its point of no return (I11).

    While the version before is not fenced, a new one would be the third in use (I3). Then the operation
    is only marked, and the next ``advance`` goes back instead of forward.
    """
    image = context.image
    operation, topology = image.topology.operation, image.topology.topology
    if operation is None or operation.request_id != request.request_id:
        return Rejection(
            "not_in_transition",
            f"Request {request.request_id} is not the operation in transition.",
            "Read the newest state and try again.",
        )
    back = stage_of(operation.kind, topology.transition_state).on_failure
    if topology.rollback or back is None:
        return Rejection(
            "past_point_of_no_return",
            f"Request {request.request_id} is in '{topology.transition_state}' and cannot be undone"
            f"{': it is being rolled back already' if topology.rollback else ''}.",
            "Let it finish; a join can be undone by a decommission afterwards.",
            {"transition_state": topology.transition_state},
        )
    text = f"Rolled back: {why}"
    marked = facts.RequestChanged(replace(request, error=text, cancelled=cancelled))
    if topology.fence_version < topology.version:
        return marked, facts.TopologyChanged(replace(topology, rollback=text))
    return (marked, *enter(context, operation, back, rollback=text))
