"""The readiness of open transitions: whether each may take its next step, or must go back.

A transition waits for its nodes to acknowledge its state, to stream, or to do other work under its
session (docs/design.md, rules 20 to 24). Each check returns its answer together with the orders,
waits and commands that follow from it.
"""

from stele.coordinator.actions import (
    PASSED,
    Action,
    Check,
    CommandAction,
    TimerStart,
    TimerStop,
    failed,
)
from stele.coordinator.model import Patience, StepContext, Wait, earliest
from stele.coordinator.rounds import Settled
from stele.coordinator.work import is_done, order_work
from stele.domain.model.settings import STEP_TIME_LIMIT_S
from stele.domain.model.table_snapshots import WrittenPart
from stele.domain.model.topology import Move, Rollback
from stele.domain.model.transitions import Transition
from stele.domain.names import SILENCE, OrderKind, WaitKind
from stele.domain.topology.live_copies import tablets_may_lack_writes
from stele.domain.topology.operations.table import OPERATIONS, State, excluded_receivers, way_back


def next_move(context: StepContext, transition: Transition) -> Move:
    """Return the next step of a transition that is ready."""
    return Move(
        transition.transition_id,
        transition.state,
        transition.session,
        _uncleaned(context, transition),
        _written_parts(context, transition),
    )


def is_ready(context: StepContext, transition: Transition, settled: Settled) -> Check:
    """Check that the transition may take its next step. Streams continue in any case."""
    state = OPERATIONS[transition.kind].states[transition.state]
    entered_before = transition.entered_version < context.image.topology.version
    # Its own version is not settled, so its work may not start (rule 20). A transition that entered
    # its state earlier continues to stream (rule 24).
    if settled is Settled.NO and not entered_before:
        return failed()
    # Excluded nodes cannot receive reads. They are not blamed on a transition that is going back
    # already.
    excluded = () if transition.mark else excluded_receivers(context.image, transition)
    if excluded:
        why = f"{', '.join(excluded)} was declared dead"
        return failed(*_undo(context, transition, why, tuple(excluded)))
    if not transition.mark and state.awaits_all_acks:
        return _is_known_to_all(context, transition)
    if (transition.mark and state.on_failure) or not state.opens_session:
        return PASSED
    if state.work_of_members is not None or state.cleaned_by is not None:
        return _have_reported_work(context, transition, state)
    return _may_move_reads(context, transition, state)


def _may_move_reads(context: StepContext, transition: Transition, state: State) -> Check:
    """Check that the data has moved, and that the nodes to which reads move next are up."""
    streamed = _has_streamed(context, transition)
    if not streamed.passed:
        return streamed
    up = _are_subjects_up(context, transition) if state.needs_subjects_up else PASSED
    actions = [*streamed.actions, *up.actions]
    if not up.passed:
        return failed(*actions)
    return Check(True, [*actions, TimerStop(transition.transition_id)])


def _are_subjects_up(context: StepContext, transition: Transition) -> Check:
    """Check that the nodes to which reads move next are up; after that step there is no way back."""
    down = context.down([*transition.nodes()])
    if not down:
        return PASSED
    names = ", ".join(b.node_id for b in down)
    what, ids = f"{names} to be up before reads move there", transition.request_ids()
    patience = _patience_with_dead(context, transition)
    wait = Wait(WaitKind.RECEIVERS, what, down, ids, patience)
    return failed(wait, *_undo_if_dead(context, transition))


def _is_known_to_all(context: StepContext, transition: Transition) -> Check:
    """Check that every member that is not excluded has acknowledged the state.

    If it does not outlast silence, it is undone after a member was silent for too long.
    """
    behind = context.barrier_on(transition.entered_epoch).blockers
    timer = f"{transition.transition_id} known"
    if not behind:
        return Check(True, [TimerStop(timer)])
    names, limit_s = ", ".join(blocker.node_id for blocker in behind), context.limits.silence_s
    what, ids = (
        f"{names} to acknowledge version {transition.entered_version}",
        transition.request_ids(),
    )
    if context.outlasts_silence(transition.kind):
        return failed(Wait(WaitKind.MEMBERS, what, behind, ids))
    patience = Patience(context.timer_since_s(timer), limit_s, SILENCE, "it is undone")
    actions: list[Action] = [
        TimerStart(timer),
        Wait(WaitKind.MEMBERS, what, behind, ids, patience),
    ]
    if context.seen.now_s > patience.until_s():
        why = f"{names} did not acknowledge version {transition.entered_version} for {limit_s:g} s"
        actions += _undo(context, transition, why, ())
    return failed(*actions)


def _has_streamed(context: StepContext, transition: Transition) -> Check:
    """Check that all nodes that gain ranges have the data.

    The transition is undone if one of them never will.
    """
    requests = transition.request_ids()
    operation = OPERATIONS[transition.kind]
    left_out = context.image.membership.excluded()
    receiving = operation.receiving(context.image, transition)
    receivers = [n for n in receiving if n not in left_out]
    session, then = transition.session, "it is undone"
    kind = operation.states[transition.state].streams_by
    silence_fails = not context.outlasts_silence(transition.kind)
    work = order_work(
        context, kind, session, requests[0], receivers, then, silence_fails=silence_fails
    )
    if work.failure:
        why = work.failure + _who_is_down(context)
        return failed(*work.orders, *_undo(context, transition, why, work.failed_nodes))
    if not work.unfinished:
        return Check(True, work.orders)
    what = f"{kind} by {', '.join(b.node_id for b in work.unfinished)}"
    is_dead = operation.subjects_work and context.down([*transition.nodes()])
    patience = _patience_with_dead(context, transition) if is_dead else work.patience
    limit = _patience_with_step(context, transition)
    wait = Wait(WaitKind.STREAM, what, work.unfinished, requests, earliest(patience, limit))
    actions: list[Action] = [*work.orders, TimerStart(_step_timer(transition)), wait]
    if limit is not None and context.seen.now_s > limit.until_s():
        if is_dead and silence_fails:
            actions.append(TimerStart(transition.transition_id))
        why = f"its data took longer to move than {limit.setting} allows"
        return failed(*actions, *_undo(context, transition, why, ()))
    return failed(*actions, *_undo_if_dead(context, transition))


def _have_reported_work(context: StepContext, transition: Transition, state: State) -> Check:
    """Check that every member that is not excluded has reported its work.

    Failed work is ordered again without a limit. If there is a way back, the transition is undone
    instead.

    Nodes that must clean up are not awaited while they are down, or once they have used up their
    attempts. They are marked and later receive the order without a transition. All of them are
    marked while the new replicas may lack acknowledged writes (docs/design.md, rule 29).

    A node that reports may not have the version on its disk yet. A node that has acknowledged it
    never serves an older one, so both are required.
    """
    requests, members = transition.request_ids(), [*context.image.membership.taking_part()]
    kind = state.work_of_members or OrderKind.CLEANUP
    # Spoiled work is undone even if all nodes report success.
    if state.on_failure is not None:
        invalidated = OPERATIONS[transition.kind].invalidated(context.image, transition)
        if invalidated:
            return failed(*_undo(context, transition, invalidated, ()))
    if state.cleaned_by is not None:
        # No node may delete now; the log marks all of them for a later cleanup.
        if tablets_may_lack_writes(context.image, transition):
            return PASSED
        cleaning = [n for n in state.cleaned_by(transition) if n in members]
        # Nodes that are down clean up after their return.
        members = [n for n in cleaning if not context.is_known_down(n)]
    then = "it is ordered again" if state.on_failure is None else "it is undone"
    silence_fails = not context.outlasts_silence(transition.kind)
    work = order_work(
        context, kind, transition.session, requests[0], members, then, silence_fails=silence_fails
    )
    unfinished = work.unfinished
    if work.failure and state.on_failure is not None:
        why = work.failure + _who_is_down(context)
        return failed(*work.orders, *_undo(context, transition, why, work.failed_nodes))
    if state.cleaned_by is not None:
        unfinished = tuple(b for b in unfinished if b.node_id not in work.failed_nodes)
    elif not unfinished:
        # A report does not prove that the version is on disk; an ack does (rule 50).
        unfinished = context.barrier_on(transition.entered_epoch).blockers
    if not unfinished:
        return Check(True, work.orders)
    down = {blocker.node_id: blocker for blocker in context.down(members)}
    blockers = tuple(down.get(b.node_id, b) for b in unfinished)
    what = f"{kind} by {', '.join(b.node_id for b in blockers)}"
    return failed(*work.orders, Wait(WaitKind.WORK, what, blockers, requests))


def _uncleaned(context: StepContext, transition: Transition) -> tuple[str, ...]:
    """Return the nodes that must clean up in this state and have not reported."""
    cleaned_by = OPERATIONS[transition.kind].states[transition.state].cleaned_by
    if cleaned_by is None:
        return ()
    taking_part, session = context.image.membership.taking_part(), transition.session
    asked = (n for n in cleaned_by(transition) if n in taking_part)
    return tuple(n for n in asked if not is_done(context, (n, OrderKind.CLEANUP, session)))


def _written_parts(context: StepContext, transition: Transition) -> tuple[WrittenPart, ...]:
    """Return the parts that members report to have written in this state, sorted by node.

    Excluded members are left out.
    """
    kind = OPERATIONS[transition.kind].states[transition.state].work_of_members
    if kind is None or transition.mark:
        return ()
    works = ((n, kind, transition.session) for n in context.image.membership.taking_part())
    reports = (
        context.seen.reports.by_work[work].report for work in works if is_done(context, work)
    )
    found = (
        WrittenPart(
            node_id=report.node_id,
            manifest=report.manifest,
            rows=report.keys_done,
            size_bytes=report.bytes_done,
        )
        for report in reports
        if report.manifest
    )
    return tuple(sorted(found, key=lambda part: part.node_id))


def _who_is_down(context: StepContext) -> str:
    """Return the members that are down, as the end of a reason: others may have failed because of
    them.
    """
    down = context.members_down
    return f"; down: {', '.join(b.node_id for b in down)}" if down else ""


def _step_timer(transition: Transition) -> str:
    """Return the key of the timer of a step in which data moves."""
    return f"{transition.transition_id} {transition.entered_epoch}"


def _patience_with_step(context: StepContext, transition: Transition) -> Patience | None:
    """Return the log's limit for a step in which data moves; None while no limit is set."""
    limit_s = STEP_TIME_LIMIT_S.of(context.image.features.settings)
    if limit_s == STEP_TIME_LIMIT_S.default:
        return None
    since_s = context.timer_since_s(_step_timer(transition))
    return Patience(since_s, limit_s, STEP_TIME_LIMIT_S.name, "it is undone")


def _patience_with_dead(context: StepContext, transition: Transition) -> Patience | None:
    """Return how long a transition waits for its own nodes that are down; None: without limit."""
    if context.outlasts_silence(transition.kind):
        return None
    return context.patience_with_dead(
        context.timer_since_s(transition.transition_id), "it is undone"
    )


def _undo_if_dead(context: StepContext, transition: Transition) -> list[Action]:
    """Undo a transition that waits for one of its nodes if the node is permanently dead."""
    works, timer = OPERATIONS[transition.kind].subjects_work, transition.transition_id
    nodes = [*transition.nodes()]
    if context.outlasts_silence(transition.kind) or not works or not context.down(nodes):
        return [TimerStop(timer)]
    dead = context.dead(nodes, context.timer_since_s(timer))
    if not dead:
        return [TimerStart(timer)]
    why = f"node {dead[0]} has been silent for {context.limits.dead_node_patience_s:g} s"
    return [TimerStart(timer), *_undo(context, transition, why, tuple(dead))]


def _undo(
    context: StepContext, transition: Transition, why: str, nodes: tuple[str, ...]
) -> list[CommandAction]:
    """Mark the transition to go back.

    Requests of its failed nodes are blamed. Without a failed node among them, all of its requests
    end.
    """
    # Past the point of no return an operation only moves forward (rule 22).
    if transition.mark or way_back(context.image, transition) is None:
        return []
    blamed = tuple(s.request_id for s in transition.subjects if s.node_id in nodes)
    command = Rollback(context.term, transition.transition_id, why, blamed)
    return [CommandAction(command, transition.request_ids())]
