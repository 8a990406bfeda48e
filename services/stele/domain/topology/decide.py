"""The coordinator's commands: rounds, fences and marks, each guarded by its term."""

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_node
from stele.domain.features.facts import FeaturesEnabled
from stele.domain.features.support import check_supported
from stele.domain.membership.facts import NodeChanged
from stele.domain.names import UNFINISHED, NodeState, RequestStatus
from stele.domain.requests.facts import Request, RequestChanged
from stele.domain.requests.rows import ended, started
from stele.domain.ring.barrier_levels import is_unsafe
from stele.domain.topology.barriers import check_counted_at, let_through, level_in_force, next_lower
from stele.domain.topology.commands import (
    Advance,
    AdvanceFence,
    ClaimCoordinator,
    ExcludeDead,
    FinishCleanup,
    FinishEnabling,
    Move,
    RelaxBarrier,
    Rollback,
    ServeRequest,
)
from stele.domain.topology.draft import Draft
from stele.domain.topology.facts import (
    BarrierRelaxed,
    CoordinatorChanged,
    TransitionMarked,
    VersionsChanged,
)
from stele.domain.topology.guards import check_fenced, check_term, overtaken, request_in_term
from stele.domain.topology.heads import Coordinator, Versions
from stele.domain.topology.operations.exclude import check_exclusion
from stele.domain.topology.operations.table import OPERATIONS, excluded_receivers, way_back
from stele.domain.topology.pieces import opening
from stele.domain.topology.planning import plan_group
from stele.domain.topology.steps import enter, move, replace


def claim_coordinator(context: Context, command: ClaimCoordinator) -> Decision:
    """A claim succeeds for exactly the next term, so of two rivals one learns that it lost."""
    current = context.image.topology.coordinator
    if command.term != current.term + 1:
        return Rejection(
            "stale_term",
            f"Term {command.term} cannot be claimed: the log is at term {current.term}.",
            "Read the log to its end and claim the next term if you still should.",
            {"term": str(current.term), "holder": current.holder},
        )
    return (CoordinatorChanged(Coordinator(command.term, command.holder)),)


def advance(context: Context, command: Advance) -> Decision:
    """One round: every move that still matches and every opening that has room, in one new version.

    The version before must be fenced, or is by this epoch, so of each range at most two rows are in use (I3).
    """
    image, topology = context.image, context.image.topology
    refused = check_term(image, command.term) or check_counted_at(image, command.level)
    if refused is not None:
        return refused
    if topology.version != command.version:
        return overtaken(image)
    if not command.fence:
        refused = check_fenced(image)
        if refused is not None:
            return refused
    draft = Draft(context)
    draft.add(VersionsChanged(_next_version(context, command.level)))
    moved = [_move(draft, each) for each in command.moves]
    refusals = [_open(draft, group) for group in command.open]
    if any(moved) or None in refusals:
        return tuple(draft.facts)
    return next((why for why in refusals if why is not None), overtaken(image))


def advance_fence(context: Context, command: AdvanceFence) -> Decision:
    image, topology = context.image, context.image.topology
    refused = check_term(image, command.term) or check_counted_at(image, command.level)
    if refused is not None:
        return refused
    if command.version != topology.version or topology.settled():
        return overtaken(image)
    fenced = Versions(
        version=topology.version,
        fence_version=topology.version,
        since_epoch=topology.since_epoch,
        fence_epoch=context.epoch,
        relaxed_to=topology.relaxed_to,
        let_through=let_through(image, command.level),
    )
    return (VersionsChanged(fenced),)


def relax_barrier(context: Context, command: RelaxBarrier) -> Decision:
    """One level down for the barrier of the present version, where the settings permit it."""
    image, topology = context.image, context.image.topology
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    if command.version != topology.version:
        return overtaken(image)
    if command.level != next_lower(image):
        level = level_in_force(image)
        why = (
            f"The barrier of version {topology.version} may not go from {level} to {command.level}."
        )
        return overtaken(image, why)
    without = tuple(n for n in sorted({*command.without}) if image.node(n) is not None)
    unsafe = is_unsafe(command.level)
    return (BarrierRelaxed(topology.version, command.level, without, unsafe),)


def rollback(context: Context, command: Rollback) -> Decision:
    """Mark a transition that cannot go on, when it is before its point of no return."""
    image = context.image
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    transition = image.topology.transitions.get(command.transition_id)
    if transition is None or transition.mark:
        return overtaken(image)
    if way_back(image, transition) is None:
        return overtaken(image, f"'{transition.state}' is past the point of no return.")
    text = f"Rolled back: {command.why}"
    ids = transition.request_ids()
    blamed = tuple(i for i in ids if i in command.blamed) or ids
    rows = [image.requests.requests[request_id] for request_id in blamed]
    marked = TransitionMarked(transition.transition_id, text, blamed)
    return marked, *(RequestChanged(replace(row, error=text)) for row in rows)


def exclude_dead(context: Context, command: ExcludeDead) -> Decision:
    """Exclude the nodes that a pending request declares dead; that is all that some requests ask for.

    It needs no round, since the round that is under way may wait for these very nodes. From then on a barrier
    waits until its nodes know of it (``acks.barrier``), and so refuse the excluded ones.
    """
    image = context.image
    request = request_in_term(image, command.term, command.target)
    if isinstance(request, Rejection):
        return request
    nodes = [image.membership.nodes[node_id] for node_id in request.dead_nodes]
    dead = [n for n in nodes if n.state is not NodeState.LEFT and not n.excluded]
    goes_on = not OPERATIONS[request.kind].excludes_only
    if request.status is not RequestStatus.PENDING or (goes_on and not dead):
        return overtaken(image, f"Request {request.request_id} has nobody to exclude any more.")
    refused = check_exclusion(image, request, {node.node_id for node in dead})
    if refused is not None:
        return refused
    excluded = tuple(NodeChanged(replace(n, excluded_since=context.epoch)) for n in dead)
    if goes_on:
        return excluded
    return *excluded, *ended(context, image, request, RequestStatus.DONE, "")


def serve_request(context: Context, command: ServeRequest) -> Decision:
    """The next step of a request that needs no transition, when nothing is missing for it."""
    image = context.image
    request = request_in_term(image, command.term, command.target)
    if isinstance(request, Rejection):
        return request
    served = OPERATIONS[request.kind].served
    if served is None or request.status not in UNFINISHED or request.status != command.status:
        return overtaken(image, f"Request {request.request_id} is {request.status}.")
    if command.step_epoch != served.since(image, request):
        return overtaken(image, f"Request {request.request_id} has taken a step since then.")
    missing = served.missing(image, request)
    if missing is not None:
        return overtaken(image, f"Request {request.request_id} waits for {missing.what}.")
    return served.step(context, request)


def finish_cleanup(context: Context, command: FinishCleanup) -> Decision:
    image = context.image
    node = image.node(command.node_id)
    if node is None:
        return unknown_node(command.node_id)
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    if not command.session or node.cleanup_session() != command.session:
        return overtaken(image)
    awaiting = [r for r in image.requests.unfinished() if node.node_id in r.awaited_nodes]
    return NodeChanged(replace(node, cleanup_since=0)), *(
        RequestChanged(
            replace(r, awaited_nodes=tuple(n for n in r.awaited_nodes if n != node.node_id))
        )
        for r in awaiting
    )


def finish_enabling(context: Context, command: FinishEnabling) -> Decision:
    """Enable what the request asks for, if all support it still; else it ends with who does not."""
    image = context.image
    request = request_in_term(image, command.term, command.target)
    if isinstance(request, Rejection):
        return request
    if request.status is not RequestStatus.PENDING or not request.features:
        return overtaken(image, f"Request {request.request_id} has nothing to enable any more.")
    lacking = check_supported(image, request.features)
    if lacking is not None:
        why = f"{lacking.message} {lacking.hint}"
        return ended(context, image, request, RequestStatus.FAILED, why)
    enabled = FeaturesEnabled(request.features)
    return enabled, *ended(context, image, request, RequestStatus.DONE, "")


def _next_version(context: Context, level: str) -> Versions:
    topology = context.image.topology
    return Versions(
        version=max(topology.version, context.image.founding.version_floor) + 1,
        fence_version=topology.version,
        since_epoch=context.epoch,
        fence_epoch=topology.fence_epoch if topology.settled() else context.epoch,
        let_through=let_through(context.image, level),
    )


def _move(draft: Draft, asked: Move) -> bool:
    """False when the transition is not where the coordinator saw it, or reads would move to excluded nodes."""
    transition = draft.image.topology.transitions.get(asked.transition_id)
    if transition is None or (transition.state, transition.session) != (asked.state, asked.session):
        return False
    if not transition.mark and excluded_receivers(draft.image, transition):
        return False
    move(draft, transition, asked)
    return True


def _open(draft: Draft, group: tuple[str, ...]) -> Rejection | None:
    """None when the group opened as one transition; its rows stay as they are when it has no room."""
    requests = _pending(draft, group)
    if not requests:
        return overtaken(draft.image, "None of the requests to start is pending any more.")
    ids = tuple(request.request_id for request in requests)
    plan = draft.context.worked_out.once(("plan", ids), lambda: plan_group(draft.image, requests))
    planned = plan.transition
    if planned is None or plan.refusal is not None:
        return plan.refusal
    operation = OPERATIONS[planned.kind]
    for request in requests:
        draft.add(RequestChanged(started(draft.context, request)))
    draft.add(*draft.context.worked_out.once(("opening", ids), lambda: (*opening(planned),)))
    draft.add(*operation.on_open(draft.image, planned, draft.version))
    enter(draft, planned, planned.state)
    return None


def _pending(draft: Draft, group: tuple[str, ...]) -> list[Request]:
    """Those of the group that still wait, of the kind of the first of them."""
    rows = [draft.image.request(request_id) for request_id in dict.fromkeys(group)]
    waiting = [r for r in rows if r is not None and r.status is RequestStatus.PENDING]
    grouped = bool(waiting) and OPERATIONS[waiting[0].kind].grouped
    same = [r for r in waiting if r.kind is waiting[0].kind]
    return same if grouped else same[:1]
