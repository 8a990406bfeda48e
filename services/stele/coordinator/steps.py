"""``next_steps``: the coordinator's next actions, a pure function of its observations.

All that matters is in the image. A new coordinator claims the next term, calls this function and
continues where the last one stopped (docs/design.md, rule 23). ``Memory`` only spaces repetitions.

Each call returns one value with everything to do. Rules do not send, and do not change
the context: they return actions (``coordinator.actions``), which are concatenated here in the order
of the rules. ``carried_out`` turns them into messages, and the driver sends these.
"""

import msgspec
from immutables import Map

from stele.coordinator.actions import Action, CommandAction, carried_out
from stele.coordinator.archive import keep_archive
from stele.coordinator.model import Limits, Memory, Observed, StepContext, Steps, Wait, refusal_text
from stele.coordinator.openings import exclude, openings
from stele.coordinator.rounds import Settled, Settlement, check_barriers
from stele.coordinator.transitions import is_ready, next_move
from stele.coordinator.upkeep import (
    clean_up,
    expire_snapshots,
    finish_enabling,
    keep_generations,
    serve,
)
from stele.domain.model.topology import Advance, AdvanceFence, Move
from stele.domain.names import WaitKind

replace = msgspec.structs.replace

__all__ = ["Limits", "Memory", "Observed", "Steps", "next_steps", "standby"]


def next_steps(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    """Return the steps of a coordinator whose term is current in the log; otherwise none.

    There is one round at a time, and the barriers of its version come first. Streams continue
    meanwhile, and are ordered only under settled versions. Then one Advance moves all ready
    transitions and opens all requests with room (docs/design.md, rules 20 and 24).
    """
    memory = _memory_of_round(memory, seen)
    if seen.image.topology.coordinator.term != seen.term:
        return standby(memory, seen, limits, "another coordinator holds the term")
    context = StepContext(memory, seen, limits)
    # Exclusion precedes the barriers: the present round may wait for these very nodes.
    actions = [*exclude(context), *finish_enabling(context)]
    settlement = check_barriers(context)
    actions += settlement.actions
    moves = list[Move]()
    for transition in seen.image.topology.open():
        ready = is_ready(context, transition, settlement.settled)
        actions += ready.actions
        if ready.passed:
            moves.append(next_move(context, transition))
    if settlement.settled is not Settled.NO:
        actions += _advance(context, tuple(moves), settlement)
    actions += clean_up(context)
    actions += keep_archive(context)
    actions += serve(context)
    actions += keep_generations(context)
    actions += expire_snapshots(context)
    steps = carried_out(context, actions)
    return replace(steps, memory=replace(steps.memory, left_out=settlement.left_out))


def standby(memory: Memory, seen: Observed, limits: Limits, why: str) -> Steps:
    """Return the wait of a coordinator that does not act, with its start."""
    return carried_out(StepContext(memory, seen, limits), [Wait(WaitKind.STANDBY, why)])


def _memory_of_round(memory: Memory, seen: Observed) -> Memory:
    """Return the memory for the present round.

    A new round restarts its wait and its commands. Orders of sessions that are closed are dropped,
    as are timers of requests and transitions that have ended.
    """
    topology = seen.image.topology
    round_ = (seen.term, topology.version, topology.fence_version)
    if round_ == memory.round:
        return memory
    nodes = seen.image.membership.nodes.values()
    cleanups = {node.cleanup_session() for node in nodes if node.cleanup_since}
    sessions = {*topology.sessions(), *cleanups}
    timed = {*topology.transitions, *seen.image.requests.unfinished_by_id}
    return Memory(
        round=round_,
        since_s=seen.now_s,
        left_out=memory.left_out,
        wait_starts=memory.wait_starts,
        timers=Map({t: s for t, s in memory.timers.items() if t.partition(" ")[0] in timed}),
        next_index=memory.next_index,
        orders=Map({w: sent for w, sent in memory.orders.items() if w[2] in sessions}),
        plans=memory.plans,
    )


def _advance(context: StepContext, moves: tuple[Move, ...], settlement: Settlement) -> list[Action]:
    """Submit the next round, or only the fence of this one if all members have acknowledged it."""
    topology, fence = context.image.topology, settlement.settled is Settled.BY_ALL
    opening = openings(context)
    actions = [*opening.actions]
    if not moves and not opening.groups:
        if fence:
            actions.append(CommandAction(AdvanceFence(context.term, topology.version)))
        return actions
    whole = Advance(
        term=context.term,
        version=topology.version,
        moves=moves,
        open=opening.groups,
        fence=fence,
        level=settlement.level,
    )
    command = _without_refused(context, whole)
    # Requests left out of a reduced round still show why they wait.
    left_out = tuple(i for group in whole.open if group not in command.open for i in group)
    if left_out:
        refusal = refusal_text(context.memory.commands.get(repr(whole)), context.seen)
        what = f"another try to open{refusal}"
        actions.append(Wait(WaitKind.LOG, what, request_ids=left_out))
    moved = (topology.transitions[move.transition_id].request_ids() for move in moves)
    request_ids = tuple(i for group in (*moved, *command.open) for i in group)
    return [*actions, CommandAction(command, request_ids)]


def _without_refused(context: StepContext, whole: Advance) -> Advance:
    """Return the whole round, or less of it if the log refused it.

    An opening that breaks the round, for instance one that an older build decides, must not block
    other openings or open transitions.
    """
    if not whole.open or not context.refusals(whole):
        return whole
    # Try the groups one at a time, the least refused first, so that a bad group blocks no other.
    single = min((replace(whole, open=(group,)) for group in whole.open), key=context.refusals)
    return replace(whole, open=()) if whole.moves and context.refusals(single) else single
