"""Entering a step of an operation: the facts that its row in the table of stages asks for."""

import msgspec

from stele.domain import facts
from stele.domain.decide.context import Context
from stele.domain.entities import Node, Operation, Topology
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import (
    CleanupStatus,
    NodeState,
    RequestKind,
    RequestStatus,
    TransitionState,
)
from stele.domain.ring.transition import gained, lost
from stele.domain.stages import ROLLED_BACK, Stage, stage_of

replace = msgspec.structs.replace


def enter(
    context: Context, operation: Operation, state: TransitionState, rollback: str = ""
) -> tuple[AnyFact, ...]:
    """Facts of the step ``state``: routing's new version, placements, node, request, session."""
    stage = stage_of(operation.kind, state)
    before = context.image.topology.topology
    rollback = rollback or before.rollback
    if state is TransitionState.NONE and rollback:
        return _finish_rolled_back(context, operation)
    found: list[AnyFact] = [*_placements(context.image, operation, stage)]
    node = context.image.membership.nodes[operation.node_id]
    tokens = node.tokens if operation.kind is RequestKind.LEAVE else operation.tokens
    tokens = () if stage.drops_tokens else tokens
    found.append(facts.NodeChanged(replace(node, state=stage.node_state, tokens=tokens)))
    found.append(facts.TopologyChanged(_topology(context, state, stage, rollback)))
    if state is TransitionState.NONE:
        found.extend(_finish(context, operation, RequestStatus.DONE))
        found.extend(_mark_cleanup(context.image, operation, _losers(operation)))
    return tuple(found)


def _topology(context: Context, state: TransitionState, stage: Stage, rollback: str) -> Topology:
    before = context.image.topology.topology
    finished = state is TransitionState.NONE
    return replace(
        before,
        version=before.version + 1,
        transition_state=state,
        session=context.new_session() if stage.streams else "",
        since_epoch=context.epoch,
        rollback="" if finished else rollback,
    )


def _placements(image: Image, operation: Operation, stage: Stage) -> list[AnyFact]:
    if stage.delta is None:
        return []
    found: list[AnyFact] = []
    for name, plan in sorted(operation.plans.items()):
        delta = stage.delta(image.ring.placements[name], plan)
        if delta.removed or delta.added:
            found.append(facts.PlacementChanged(name, delta.removed, delta.added))
    return found


def _finish(context: Context, operation: Operation, status: RequestStatus) -> list[AnyFact]:
    request = context.image.requests.requests[operation.request_id]
    ended = replace(
        request, status=status, finished_epoch=context.epoch, finished_at_ms=context.at_ms
    )
    return [facts.RequestChanged(ended), facts.OperationChanged(None)]


def _finish_rolled_back(context: Context, operation: Operation) -> tuple[AnyFact, ...]:
    """The placements of before are in force since the step back; only the books are closed here."""
    image = context.image
    node = image.membership.nodes[operation.node_id]
    request = image.requests.requests[operation.request_id]
    stage = Stage(node_state=NodeState.NORMAL)
    status = RequestStatus.CANCELLED if request.cancelled else RequestStatus.FAILED
    return (
        facts.NodeChanged(replace(node, state=ROLLED_BACK[operation.kind])),
        facts.TopologyChanged(_topology(context, TransitionState.NONE, stage, "")),
        *_finish(context, operation, status),
        *_mark_cleanup(image, operation, _gainers(operation)),
    )


def _mark_cleanup(image: Image, operation: Operation, touched: set[str]) -> list[AnyFact]:
    """Members that hold data of ranges which are not, or not any more, theirs."""
    members: list[Node] = [image.membership.nodes[n] for n in sorted(touched - {operation.node_id})]
    return [
        facts.NodeChanged(replace(node, cleanup=CleanupStatus.NEEDED))
        for node in members
        if node.state is NodeState.NORMAL
    ]


def _losers(operation: Operation) -> set[str]:
    found = {n for plan in operation.plans.values() for row in plan.rows for n in row.old}
    return {n for n in found if any(lost(plan, n) for plan in operation.plans.values())}


def _gainers(operation: Operation) -> set[str]:
    found = {n for plan in operation.plans.values() for row in plan.rows for n in row.new}
    return {n for n in found if any(gained(plan, n) for plan in operation.plans.values())}
