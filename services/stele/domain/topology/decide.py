"""The topology's commands, folds and views: rounds, fences and transitions.

The coordinator's commands are each guarded by its term.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, unknown_node
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.membership import NodeChanged
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.topology import (
    Advance,
    AdvanceFence,
    ClaimCoordinator,
    Coordinator,
    ExcludeDead,
    FinishCleanup,
    FinishEnabling,
    Move,
    RelaxBarrier,
    Rollback,
    ServeRequest,
    TransitionHead,
    TransitionSummary,
    Versions,
)
from stele.domain.model.transitions import (
    BarrierRelaxed,
    CoordinatorChanged,
    TopologyFact,
    TopologyImage,
    Transition,
    TransitionFinished,
    TransitionMarked,
    TransitionMoved,
    TransitionOpened,
    TransitionPlanned,
    TransitionUnplanned,
    VersionsChanged,
    joined,
    opening,
)
from stele.domain.names import UNFINISHED, NodeState, RequestStatus
from stele.domain.registry_entry import Domain
from stele.domain.ring.quorum import is_unsafe
from stele.domain.rules.features import check_supported
from stele.domain.rules.requests import (
    check_fenced,
    check_term,
    ended,
    overtaken,
    request_in_term,
    started,
)
from stele.domain.tables import Json
from stele.domain.topology.barriers import check_counted_at, let_through, level_in_force, next_lower
from stele.domain.topology.live_copies import check_loss, may_lack_writes
from stele.domain.topology.operations.leave import check_exclusion
from stele.domain.topology.operations.table import OPERATIONS, excluded_receivers, way_back
from stele.domain.topology.planning import plan_group
from stele.domain.topology.steps import Draft, enter, move

replace = msgspec.structs.replace


def claim_coordinator(context: Context, command: ClaimCoordinator) -> Decision:
    """Accept a claim for exactly the next term, so that one of two rivals is refused."""
    # Exactly the next term: a claim that was decided on an older image loses (rule 23).
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
    """Decide one round: all moves that still match and all openings with room, in one new version.

    The version before must be fenced already or by this epoch. So at most two adjacent rows of a
    range are in use (I3). See docs/design.md, rules 19 and 20.
    """
    image, topology = context.image, context.image.topology
    required(check_term(image, command.term) or check_counted_at(image, command.level))
    if topology.version != command.version:
        return overtaken(image)
    if not command.fence:
        required(check_fenced(image))
    draft = Draft(context)
    # The new version comes first: all moves and openings write their rows with it.
    draft.add(VersionsChanged(_next_version(context, command.level)))
    moved = [_move(draft, each) for each in command.moves]
    refusals = [_open(draft, group) for group in command.open]
    # A round with any effect is accepted; its other moves and openings are skipped (rule 20).
    if any(moved) or None in refusals:
        return tuple(draft.facts)
    return next((why for why in refusals if why is not None), overtaken(image))


def advance_fence(context: Context, command: AdvanceFence) -> Decision:
    image, topology = context.image, context.image.topology
    required(check_term(image, command.term) or check_counted_at(image, command.level))
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
    """Lower the barrier of the present version by one level, if the settings permit it."""
    image, topology = context.image, context.image.topology
    required(check_term(image, command.term))
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
    """Mark a transition that cannot continue, if it is before its point of no return."""
    image = context.image
    required(check_term(image, command.term))
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
    """Exclude the nodes that a pending request declares dead; some requests ask for nothing else.

    This needs no round, because the present round may wait for these very nodes. Every later
    barrier first waits until its nodes have applied the exclusion (``barriers.barrier``), because they
    then refuse the excluded nodes.
    """
    image = context.image
    request = required(request_in_term(image, command.term, command.target))
    nodes = [image.membership.nodes[node_id] for node_id in request.dead_nodes]
    dead = [n for n in nodes if n.state is not NodeState.LEFT and not n.excluded]
    goes_on = not OPERATIONS[request.kind].excludes_only
    if request.status is not RequestStatus.PENDING or (goes_on and not dead):
        return overtaken(image, f"Request {request.request_id} has no node left to exclude.")
    ids = {node.node_id for node in dead}
    # Checked again here: the coordinator's view may be older than the newest exclusions.
    required(check_exclusion(image, request, ids) or check_loss(image, request, ids))
    changes = [NodeChanged(replace(n, excluded_since=context.epoch)) for n in dead]
    # The exclusions must be part of the image in which the quorums are counted.
    changes += _stop_cleanups(context, changes)
    if goes_on:
        return tuple(changes)
    return *changes, *ended(context, image, request, RequestStatus.DONE, "")


def _stop_cleanups(context: Context, excluded: list[NodeChanged]) -> list[NodeChanged]:
    """Restart running cleanups if the live replicas of a range may lack writes.

    They are ordered again once none may. A node that cleans up under an older session stops as
    soon as it reads this epoch.
    """
    after = context.fold(context.image, excluded)
    dirty = [node for node in after.membership.normal().values() if node.cleanup_since]
    if not dirty or not may_lack_writes(after):
        return []
    return [NodeChanged(replace(node, cleanup_since=context.epoch)) for node in dirty]


def serve_request(context: Context, command: ServeRequest) -> Decision:
    """Take the next step of a request that needs no transition, if no condition is missing."""
    image = context.image
    request = required(request_in_term(image, command.term, command.target))
    served = OPERATIONS[request.kind].served
    if served is None or request.status not in UNFINISHED or request.status != command.status:
        return overtaken(image, f"Request {request.request_id} is {request.status}.")
    # Without this check a repeated command would take a second step.
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
    required(check_term(image, command.term))
    # A report of an older cleanup must not clear a newer mark.
    if not command.session or node.cleanup_session() != command.session or may_lack_writes(image):
        return overtaken(image)
    awaiting = [r for r in image.requests.unfinished() if node.node_id in r.awaited_nodes]
    return NodeChanged(replace(node, cleanup_since=0)), *(
        RequestChanged(
            replace(r, awaited_nodes=tuple(n for n in r.awaited_nodes if n != node.node_id))
        )
        for r in awaiting
    )


def finish_enabling(context: Context, command: FinishEnabling) -> Decision:
    """Enable the requested features if all members still support them.

    Otherwise the request fails, and its reason names the members without support.
    """
    image = context.image
    request = required(request_in_term(image, command.term, command.target))
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
    """Move one transition.

    Return False if it is not in the state that the coordinator saw, or if reads would move to
    excluded nodes.
    """
    transition = draft.image.topology.transitions.get(asked.transition_id)
    if transition is None or (transition.state, transition.session) != (asked.state, asked.session):
        return False
    if not transition.mark and excluded_receivers(draft.image, transition):
        return False
    move(draft, transition, asked)
    return True


def _open(draft: Draft, group: tuple[str, ...]) -> Rejection | None:
    """Open the group as one transition and return None, or return why it has no room.

    Without room the rows of its requests stay unchanged.
    """
    requests = _pending(draft, group)
    if not requests:
        return overtaken(draft.image, "None of the requests to start is pending any more.")
    ids = tuple(request.request_id for request in requests)
    plan = draft.context.cache.once(("plan", ids), lambda: plan_group(draft.image, requests))
    planned = plan.transition
    if planned is None or plan.refusal is not None:
        return plan.refusal
    operation = OPERATIONS[planned.kind]
    for request in requests:
        draft.add(RequestChanged(started(draft.context, request)))
    draft.add(*draft.context.cache.once(("opening", ids), lambda: (*opening(planned),)))
    draft.add(*operation.on_open(draft.image, planned, draft.version))
    enter(draft, planned, planned.state)
    return None


def _pending(draft: Draft, group: tuple[str, ...]) -> list[Request]:
    """Return the requests of the group that are still pending, all of the first one's kind.

    Requests of kinds without transitions are left out.
    """
    rows = [draft.image.request(request_id) for request_id in dict.fromkeys(group)]
    pending = [r for r in rows if r is not None and r.status is RequestStatus.PENDING]
    waiting = [r for r in pending if OPERATIONS[r.kind].first is not None]
    grouped = bool(waiting) and OPERATIONS[waiting[0].kind].grouped
    # One transition has one kind; the coordinator may have seen an older image.
    same = [r for r in waiting if r.kind is waiting[0].kind]
    return same if grouped else same[:1]


# The folds and views of versions and transitions, and their entry in the registry.


def versions_changed(image: TopologyImage, fact: VersionsChanged) -> TopologyImage:
    new = fact.versions
    assert image.version <= new.version
    # The fence neither goes back nor passes the version (I3).
    assert image.fence_version <= new.fence_version <= new.version
    return replace(image, **msgspec.structs.asdict(new))


def barrier_relaxed(image: TopologyImage, fact: BarrierRelaxed) -> TopologyImage:
    assert fact.version == image.version
    return replace(image, relaxed_to=fact.level)


def coordinator_changed(image: TopologyImage, fact: CoordinatorChanged) -> TopologyImage:
    return replace(image, coordinator=fact.coordinator)


def transition_opened(image: TopologyImage, fact: TransitionOpened) -> TopologyImage:
    opened = fact.transition
    return replace(image, transitions=image.transitions.set(opened.transition_id, opened))


def transition_changed(
    image: TopologyImage, fact: TransitionMoved | TransitionMarked
) -> TopologyImage:
    """Fold a fact whose fields are those of the transition that it changes."""
    return _changed(image, **msgspec.structs.asdict(fact))


def transition_planned(image: TopologyImage, fact: TransitionPlanned) -> TopologyImage:
    before = image.transitions[fact.transition_id].plans
    plan = joined(before.get(fact.placement), fact.plan)
    return _changed(image, fact.transition_id, plans={**before, fact.placement: plan})


def transition_unplanned(image: TopologyImage, fact: TransitionUnplanned) -> TopologyImage:
    before = image.transitions[fact.transition_id].plans
    plans = {name: plan for name, plan in before.items() if name != fact.placement}
    return _changed(image, fact.transition_id, plans=plans)


def transition_finished(image: TopologyImage, fact: TransitionFinished) -> TopologyImage:
    return replace(image, transitions=image.transitions.delete(fact.transition_id))


def _changed(image: TopologyImage, transition_id: str, **fields: Any) -> TopologyImage:
    changed = replace(image.transitions[transition_id], **fields)
    return replace(image, transitions=image.transitions.set(transition_id, changed))


def to_facts(image: TopologyImage) -> Iterable[TopologyFact]:
    yield VersionsChanged(versions_of(image))
    yield CoordinatorChanged(image.coordinator)
    for transition in image.open():
        yield from opening(transition)


def versions_of(image: TopologyImage) -> Versions:
    return Versions(**{name: getattr(image, name) for name in Versions.__struct_fields__})


def summary_of(transition: Transition) -> TransitionSummary:
    """Return a transition without the rows of its plans, which may be as many as the ring's."""
    head = {name: getattr(transition, name) for name in TransitionHead.__struct_fields__}
    ranges = {name: len(plan.rows) for name, plan in sorted(transition.plans.items())}
    return TransitionSummary(**head, ranges=ranges)


def rows(image: TopologyImage) -> Json:
    """Return summaries of the transitions, whose plans may have very many rows."""
    return {
        "topology": versions_of(image),
        "coordinator": image.coordinator,
        "transitions": {each.transition_id: summary_of(each) for each in image.open()},
    }


def view(image: TopologyImage) -> Json:
    """Return the whole transitions."""
    return {**rows(image), "transitions": tuple(image.open())}


DOMAIN = Domain(
    name="topology",
    empty=TopologyImage(),
    decide={
        ClaimCoordinator: claim_coordinator,
        Advance: advance,
        AdvanceFence: advance_fence,
        RelaxBarrier: relax_barrier,
        Rollback: rollback,
        ExcludeDead: exclude_dead,
        ServeRequest: serve_request,
        FinishCleanup: finish_cleanup,
        FinishEnabling: finish_enabling,
        **{each.command: each.ask for each in OPERATIONS.values() if each.command is not None},
    },
    apply={
        VersionsChanged: versions_changed,
        BarrierRelaxed: barrier_relaxed,
        CoordinatorChanged: coordinator_changed,
        TransitionOpened: transition_opened,
        TransitionMoved: transition_changed,
        TransitionMarked: transition_changed,
        TransitionPlanned: transition_planned,
        TransitionUnplanned: transition_unplanned,
        TransitionFinished: transition_finished,
    },
    to_facts=to_facts,
    rows=rows,
    view=view,
)
