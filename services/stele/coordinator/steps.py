"""``next_steps``: the coordinator's next actions, a pure function of its observations.

All that matters is in the image. A new coordinator claims the next term, calls this function and
continues where the last one stopped (docs/design.md, rule 23). ``Memory`` only spaces repetitions.
"""

from immutables import Map

from stele.coordinator.archive import look_after_archive
from stele.coordinator.desk import Desk, replace
from stele.coordinator.enabling import enable
from stele.coordinator.exclusions import exclude
from stele.coordinator.generations import look_after_generations
from stele.coordinator.knowledge import Limits, Memory, Observed, Patience, Steps, sooner
from stele.coordinator.openings import openings
from stele.coordinator.rounds import Settled, settle
from stele.coordinator.served import serve
from stele.coordinator.snapshots import look_after_snapshots
from stele.coordinator.work import failure_of, forget_in_time, is_done, order_work
from stele.domain.acks import Blocker
from stele.domain.membership.model import Node
from stele.domain.names import OrderKind
from stele.domain.table_snapshots.model import WrittenPart
from stele.domain.topology.commands import (
    Advance,
    AdvanceFence,
    FinishCleanup,
    Move,
    Rollback,
)
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import STEP_TIME_LIMIT_S
from stele.domain.topology.live_copies import (
    described,
    short_of_writes,
    tablets_may_lack_writes,
)
from stele.domain.topology.operations.table import OPERATIONS, State, excluded_receivers, way_back
from stele.domain.topology.waits import SILENCE, WaitKind

__all__ = ["Limits", "Memory", "Observed", "Steps", "next_steps"]


def next_steps(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    """Return the steps of a coordinator whose term is current in the log; otherwise none.

    There is one round at a time, and the barriers of its version come first. Streams continue
    meanwhile, and are ordered only under settled versions. Then one Advance moves all ready
    transitions and opens all requests with room (docs/design.md, rules 20 and 24).
    """
    desk = Desk(_at_this_round(memory, seen), seen, limits)
    if seen.image.topology.coordinator.term != seen.term:
        desk.wait(WaitKind.STANDBY, "another coordinator holds the term")
        return desk.steps()
    # Exclusion precedes the barriers: the present round may wait for these very nodes.
    exclude(desk)
    enable(desk)
    settled = settle(desk)
    moves = [
        Move(t.transition_id, t.state, t.session, _uncleaned(desk, t), _wrote(desk, t))
        for t in seen.image.topology.open()
        if _is_ready(desk, t, settled)
    ]
    if settled is not Settled.NO:
        _advance(desk, tuple(moves), settled)
    _clean_up(desk)
    look_after_archive(desk)
    serve(desk)
    look_after_generations(desk)
    look_after_snapshots(desk)
    return desk.steps()


def _at_this_round(memory: Memory, seen: Observed) -> Memory:
    """Return the memory for the present round.

    A new round restarts its wait and its commands. Orders of sessions that are closed are dropped.
    """
    topology = seen.image.topology
    round_ = (seen.term, topology.version, topology.fence_version)
    if round_ == memory.round:
        return memory
    sessions = {*topology.sessions(), *_cleanup_sessions(seen)}
    waits = {*topology.transitions, *seen.image.requests.open}
    return Memory(
        round=round_,
        since_s=seen.now_s,
        left_out=memory.left_out,
        met=memory.met,
        waits=Map({w: s for w, s in memory.waits.items() if w.partition(" ")[0] in waits}),
        next_index=memory.next_index,
        orders=Map({w: sent for w, sent in memory.orders.items() if w[2] in sessions}),
        plans=memory.plans,
    )


def _cleanup_sessions(seen: Observed) -> list[str]:
    nodes = seen.image.membership.nodes.values()
    return [node.cleanup_session() for node in nodes if node.cleanup_since]


def _advance(desk: Desk, moves: tuple[Move, ...], settled: Settled) -> None:
    """Submit the next round, or only the fence of this one if all members have acknowledged it."""
    term, version = desk.seen.term, desk.seen.image.topology.version
    fence = settled is Settled.BY_ALL
    open_ = openings(desk)
    if moves or open_:
        whole = Advance(
            term=term, version=version, moves=moves, open=open_, fence=fence, level=desk.counted_at
        )
        command = _what_is_taken(desk, whole)
        # Requests left out of a reduced round still show why they wait.
        left_out = tuple(i for group in open_ if group not in command.open for i in group)
        if left_out:
            what = f"another try to open{desk.why_refused(whole)}"
            desk.wait(WaitKind.LOG, what, requests=left_out)
        ids = [t.request_ids() for t in _moved(desk, moves)]
        desk.submit(command, tuple(i for group in (*ids, *command.open) for i in group))
    elif fence:
        desk.submit(AdvanceFence(term, version))


def _what_is_taken(desk: Desk, whole: Advance) -> Advance:
    """Return the whole round, or less of it if the log refused it.

    An opening that breaks the round, for instance one that an older build decides, must not block
    other openings or open transitions.
    """
    if not whole.open or not desk.refused(whole):
        return whole
    # Try the groups one at a time, the least refused first, so that a bad group blocks no other.
    single = min((replace(whole, open=(group,)) for group in whole.open), key=desk.refused)
    return replace(whole, open=()) if whole.moves and desk.refused(single) else single


def _moved(desk: Desk, moves: tuple[Move, ...]) -> list[Transition]:
    transitions = desk.seen.image.topology.transitions
    return [transitions[move.transition_id] for move in moves]


def _is_ready(desk: Desk, transition: Transition, settled: Settled) -> bool:
    """Return whether the transition may take its next step. Streams continue in any case."""
    state = OPERATIONS[transition.kind].states[transition.state]
    entered_before = transition.entered_version < desk.seen.image.topology.version
    # Its own version is not settled, so its work may not start (rule 20). A transition that entered
    # its state earlier continues to stream (rule 24).
    if settled is Settled.NO and not entered_before:
        return False
    # Excluded nodes cannot receive reads. They are not blamed on a transition that is going back
    # already.
    excluded = () if transition.mark else excluded_receivers(desk.seen.image, transition)
    if excluded:
        _undo(desk, transition, f"{', '.join(excluded)} was declared dead", tuple(excluded))
        return False
    if not transition.mark and state.everybody_knows:
        return _is_known_to_all(desk, transition)
    if (transition.mark and state.on_failure) or not state.opens_session:
        return True
    if state.everybody_does is not None or state.cleaned_by is not None:
        return _have_all_done(desk, transition, state)
    ready = _has_streamed(desk, transition) and (
        not state.needs_subjects_up or _are_subjects_up(desk, transition)
    )
    if ready:
        desk.waits_no_more(transition.transition_id)
    return ready


def _are_subjects_up(desk: Desk, transition: Transition) -> bool:
    """Return whether the nodes to which reads move next are up; after that step there is no way
    back.
    """
    down = desk.down([*transition.nodes()])
    if not down:
        return True
    names = ", ".join(b.node_id for b in down)
    what, ids = f"{names} to be up before reads move there", transition.request_ids()
    desk.wait(WaitKind.RECEIVERS, what, down, ids, _patience_with_dead(desk, transition))
    return _undo_if_dead(desk, transition)


def _is_known_to_all(desk: Desk, transition: Transition) -> bool:
    """Return whether every member that is not excluded has acknowledged the state.

    If it does not outlast silence, it is undone after a member was silent for too long.
    """
    behind = desk.answered(transition.entered_epoch).blockers
    what = f"{transition.transition_id} known"
    if not behind:
        desk.waits_no_more(what)
        return True
    names, limit_s = ", ".join(blocker.node_id for blocker in behind), desk.limits.silence_s
    patience = None
    if not desk.outlasts_silence(transition.kind):
        patience = Patience(desk.waiting_since(what), limit_s, SILENCE, "it is undone")
    text = f"{names} to acknowledge version {transition.entered_version}"
    desk.wait(WaitKind.MEMBERS, text, behind, transition.request_ids(), patience)
    if patience is not None and desk.seen.now_s > patience.until_s():
        why = f"{names} did not acknowledge version {transition.entered_version} for {limit_s:g} s"
        _undo(desk, transition, why, ())
    return False


def _has_streamed(desk: Desk, transition: Transition) -> bool:
    """Return whether all nodes that gain ranges have the data.

    The transition is undone if one of them never will.
    """
    requests = transition.request_ids()
    operation = OPERATIONS[transition.kind]
    left_out = desk.seen.image.membership.excluded()
    receiving = operation.receiving(desk.seen.image, transition)
    receivers = [n for n in receiving if n not in left_out]
    session, then = transition.session, "it is undone"
    kind = operation.states[transition.state].streams_by
    silence_fails = not desk.outlasts_silence(transition.kind)
    work = order_work(
        desk, kind, session, requests[0], receivers, then, silence_fails=silence_fails
    )
    if work.failure:
        _undo(desk, transition, work.failure + _who_is_down(desk), work.failed_nodes)
        return False
    if work.unfinished:
        what = f"{kind} by {', '.join(b.node_id for b in work.unfinished)}"
        dead = desk.down([*transition.nodes()]) if operation.subjects_work else ()
        patience = _patience_with_dead(desk, transition) if dead else work.patience
        patience = sooner(patience, _patience_with_step(desk, transition))
        desk.wait(WaitKind.STREAM, what, work.unfinished, requests, patience)
        if _is_overdue(desk, transition):
            limit = STEP_TIME_LIMIT_S.name
            _undo(desk, transition, f"its data took longer to move than {limit} allows", ())
            return False
        return _undo_if_dead(desk, transition)
    return True


def _have_all_done(desk: Desk, transition: Transition, state: State) -> bool:
    """Return whether every member that is not excluded has reported its work.

    Failed work is ordered again without a limit. If there is a way back, the transition is undone
    instead.

    Nodes that must clean up are not awaited while they are down, or once they have used up their
    attempts. They are marked and later receive the order without a transition. All of them are
    marked while the new replicas may lack acknowledged writes (docs/design.md, rule 29).

    A node that reports may not have the version on its disk yet. A node that has acknowledged it
    never serves an older one, so both are required.
    """
    requests, members = transition.request_ids(), [*desk.seen.image.membership.taking_part()]
    kind = state.everybody_does or OrderKind.CLEANUP
    # Spoiled work is undone even if all nodes report success.
    if state.on_failure is not None and _is_spoiled(desk, transition):
        return False
    if state.cleaned_by is not None:
        # No node may delete now; the log marks all of them for a later cleanup.
        if tablets_may_lack_writes(desk.seen.image, transition):
            return True
        cleaning = [n for n in state.cleaned_by(transition) if n in members]
        # Nodes that are down clean up after their return.
        members = [n for n in cleaning if not desk.is_known_down(n)]
    then = "it is ordered again" if state.on_failure is None else "it is undone"
    silence_fails = not desk.outlasts_silence(transition.kind)
    work = order_work(
        desk, kind, transition.session, requests[0], members, then, silence_fails=silence_fails
    )
    unfinished = work.unfinished
    if work.failure and state.on_failure is not None:
        _undo(desk, transition, work.failure + _who_is_down(desk), work.failed_nodes)
        return False
    if state.cleaned_by is not None:
        unfinished = tuple(b for b in unfinished if b.node_id not in work.failed_nodes)
    elif not unfinished:
        # A report does not prove that the version is on disk; an ack does (rule 50).
        unfinished = desk.answered(transition.entered_epoch).blockers
    if not unfinished:
        return True
    down = {blocker.node_id: blocker for blocker in desk.down(members)}
    blockers = tuple(down.get(b.node_id, b) for b in unfinished)
    what = f"{kind} by {', '.join(b.node_id for b in blockers)}"
    desk.wait(WaitKind.WORK, what, blockers, requests)
    return False


def _uncleaned(desk: Desk, transition: Transition) -> tuple[str, ...]:
    """Return the nodes that must clean up in this state and have not reported."""
    cleaned_by = OPERATIONS[transition.kind].states[transition.state].cleaned_by
    if cleaned_by is None:
        return ()
    taking_part, session = desk.seen.image.membership.taking_part(), transition.session
    asked = (n for n in cleaned_by(transition) if n in taking_part)
    return tuple(n for n in asked if not is_done(desk, (n, OrderKind.CLEANUP, session)))


def _is_spoiled(desk: Desk, transition: Transition) -> bool:
    """Undo the transition if the finished work has become useless; return whether it has."""
    why = OPERATIONS[transition.kind].spoiled(desk.seen.image, transition)
    if why:
        _undo(desk, transition, why, ())
    return bool(why)


def _wrote(desk: Desk, transition: Transition) -> tuple[WrittenPart, ...]:
    """Return the parts that members report to have written in this state, sorted by node.

    Excluded members are left out.
    """
    kind = OPERATIONS[transition.kind].states[transition.state].everybody_does
    if kind is None or transition.mark:
        return ()
    works = ((n, kind, transition.session) for n in desk.seen.image.membership.taking_part())
    reports = (desk.seen.reports.by_work[work].report for work in works if is_done(desk, work))
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


def _who_is_down(desk: Desk) -> str:
    """Return the members that are down, as the end of a reason: others may have failed because of
    them.
    """
    down = desk.members_down
    return f"; down: {', '.join(b.node_id for b in down)}" if down else ""


def _is_overdue(desk: Desk, transition: Transition) -> bool:
    """Return whether its data has been moving for longer than the log's limit for a step."""
    patience = _patience_with_step(desk, transition)
    return patience is not None and desk.seen.now_s > patience.until_s()


def _patience_with_step(desk: Desk, transition: Transition) -> Patience | None:
    """Return the log's limit for a step in which data moves; None while no limit is set."""
    since_s = desk.waiting_since(f"{transition.transition_id} {transition.entered_epoch}")
    limit_s = STEP_TIME_LIMIT_S.of(desk.seen.image.features.settings)
    if limit_s == STEP_TIME_LIMIT_S.default:
        return None
    return Patience(since_s, limit_s, STEP_TIME_LIMIT_S.name, "it is undone")


def _patience_with_dead(desk: Desk, transition: Transition) -> Patience | None:
    """Return how long a transition waits for its own nodes that are down; None: without limit."""
    if desk.outlasts_silence(transition.kind):
        return None
    return desk.patience_with_dead(desk.waiting_since(transition.transition_id), "it is undone")


def _undo_if_dead(desk: Desk, transition: Transition) -> bool:
    """Undo a transition that waits for one of its nodes if the node is permanently dead; return
    False.
    """
    works = OPERATIONS[transition.kind].subjects_work
    if desk.outlasts_silence(transition.kind) or not works or not desk.down([*transition.nodes()]):
        desk.waits_no_more(transition.transition_id)
        return False
    since_s = desk.waiting_since(transition.transition_id)
    dead = desk.dead([*transition.nodes()], since_s)
    if dead:
        why = f"node {dead[0]} has been silent for {desk.limits.dead_node_patience_s:g} s"
        _undo(desk, transition, why, tuple(dead))
    return False


def _undo(desk: Desk, transition: Transition, why: str, nodes: tuple[str, ...]) -> None:
    """Mark the transition to go back.

    Requests of its failed nodes are blamed. Without a failed node among them, all of its requests
    end.
    """
    # Past the point of no return an operation only moves forward (rule 22).
    if transition.mark or way_back(desk.seen.image, transition) is None:
        return
    blamed = tuple(s.request_id for s in transition.subjects if s.node_id in nodes)
    command = Rollback(desk.seen.term, transition.transition_id, why, blamed)
    desk.submit(command, transition.request_ids())


def _clean_up(desk: Desk) -> None:
    """Order cleanup from live nodes that hold data of others, beside all other work.

    This is safe: a node deletes only ranges that no placement and no open plan gives to it, and
    checks before each batch. While the live replicas of a range may lack acknowledged writes, all
    nodes keep their data.
    """
    image, excluded = desk.seen.image, desk.seen.image.membership.excluded()
    dirty = [node for node in image.membership.normal().values() if node.cleanup_since]
    short = tuple(short_of_writes(image, excluded)) if dirty else ()
    if short:
        dead = ", ".join(sorted(frozenset[str]().union(*(each.dead(excluded) for each in short))))
        what = f"cleanup until {described(image, short)} no longer depend on {dead}"
        desk.wait(WaitKind.CLEANUP, what)
        return
    for node in dirty:
        # A node that is down keeps its mark and gets the order after its return.
        if desk.is_up(node.node_id):
            _clean_up_node(desk, node)


def _clean_up_node(desk: Desk, node: Node) -> None:
    work = (node.node_id, OrderKind.CLEANUP, node.cleanup_session())
    if is_done(desk, work):
        desk.submit(FinishCleanup(desk.seen.term, node.node_id, node.cleanup_session()))
        return
    failure = failure_of(desk, work)
    if failure:
        forget_in_time(desk, work)
        blockers = (Blocker(node.node_id, failure, desk.silent_for_s(node.node_id)),)
        desk.wait(WaitKind.CLEANUP, f"the next try to clean up: {failure}", blockers)
    else:
        state = order_work(
            desk,
            OrderKind.CLEANUP,
            node.cleanup_session(),
            node.request_id,
            [node.node_id],
            "it is tried again later",
        )
        what = f"cleanup by {node.node_id}"
        desk.wait(WaitKind.CLEANUP, what, state.unfinished, patience=state.patience)
