"""The barriers of a round (docs/design.md, rules 20, 26, 27).

A version is settled in one of two ways:

- Every participant has applied it and drained the older versions. The next Advance carries the
  fence.
- The level in force is reached for every touched range, and the patience with the other nodes is
  over. The coordinator writes the fence alone, and waits until as many have applied that epoch.
  Otherwise a node that was left out could still be served.

If the settings permit it, a barrier that waits too long is relaxed by one level, in a separate
epoch.
"""

from enum import Enum
from typing import Final

import msgspec

from stele.coordinator.actions import Action, Actions, CommandAction, TimerStart, TimerStop
from stele.coordinator.model import Patience, StepContext, Wait, earliest
from stele.domain.image import Image
from stele.domain.model.settings import RELAX_AFTER_S
from stele.domain.model.topology import AdvanceFence, RelaxBarrier, Rollback
from stele.domain.model.transitions import Transition
from stele.domain.names import WaitKind
from stele.domain.topology.barriers import (
    Barrier,
    barrier,
    configured_level,
    lowered_level,
    lowest_level,
    missing_replicas,
    next_lower,
)
from stele.domain.topology.operations.table import goes_back_without

_AT_LEVEL: Final = "barrier "
"""Prefix of the key of a timer: how long the present barrier has waited for a level."""


class Settled(Enum):
    """State of the barriers of the present version."""

    NO = "no"
    BY_ALL = "by all"
    """All participants acknowledged it, and it is not fenced: the next Advance may carry the fence.
    """
    FENCED = "fenced"


class Settlement(msgspec.Struct, frozen=True):
    """The state of the present version's barriers, and the actions that follow from it."""

    settled: Settled
    left_out: frozenset[str]
    """Nodes that missed a barrier, for the next call (``Memory.left_out``)."""
    actions: Actions = ()
    level: str = ""
    """The level at which the barrier was passed; empty if all members had answered."""


def check_barriers(context: StepContext) -> Settlement:
    """Return how far the present version is settled, with the waits for its barriers.

    Nodes that can never answer are not awaited.
    """
    topology = context.image.topology
    if topology.settled():
        return _settle_fence(context)
    found = _barrier(context, topology.since_epoch)
    if found.complete:
        return Settlement(Settled.BY_ALL, _left_out(context, found), _stop_timer(found))
    if not _has_passed(context, found):
        waits = _wait(context, WaitKind.APPLIED, f"version {topology.version} everywhere", found)
        return Settlement(Settled.NO, _left_out(context, found), [*_stop_timer(found), *waits])
    # The nodes without an answer are left out from now on: the barrier of the fence must not give
    # them new patience.
    fence = CommandAction(AdvanceFence(context.term, topology.version, found.level))
    return Settlement(Settled.NO, _left_out_after(context, found), [*_stop_timer(found), fence])


def _settle_fence(context: StepContext) -> Settlement:
    topology = context.image.topology
    found = _barrier(context, topology.fence_epoch)
    if found.complete or _has_passed(context, found):
        # The next Advance states the level, so that the log can refuse a count made at too low a
        # level.
        level = "" if found.complete else found.level
        return Settlement(
            Settled.FENCED, _left_out_after(context, found), _stop_timer(found), level
        )
    what = f"the fence of version {topology.version} to be known"
    waits = _wait(context, WaitKind.FENCED, what, found)
    return Settlement(Settled.NO, _left_out(context, found), [*_stop_timer(found), *waits])


def _barrier(context: StepContext, epoch: int) -> Barrier:
    seen = context.seen
    version = seen.image.topology.version
    return barrier(seen.image, seen.acks, epoch, version, seen.now_s, seen.state_id_of)


def _stop_timer(found: Barrier) -> list[Action]:
    """Stop the barrier's timer if it is satisfied."""
    return [TimerStop(f"{_AT_LEVEL}{found.level}")] if found.satisfied else []


def _left_out(context: StepContext, found: Barrier) -> frozenset[str]:
    """Return the nodes that get no patience. A node that answers again gets patience again."""
    return context.memory.left_out & {blocker.node_id for blocker in found.blockers}


def _left_out_after(context: StepContext, found: Barrier) -> frozenset[str]:
    """Return the nodes that get no patience after this barrier has passed without some nodes."""
    return _left_out(context, found) | {blocker.node_id for blocker in found.blockers}


def _has_passed(context: StepContext, found: Barrier) -> bool:
    """Return whether the level in force is reached and all awaited nodes have had time to answer.

    A node that missed a barrier gets no time until it acknowledges again (docs/design.md, rule 27).
    """
    # Otherwise one dead node would cost the full patience in every round.
    awaited = [b for b in found.blockers if b.node_id not in context.memory.left_out]
    return found.satisfied and not (_has_patience(context) and awaited)


def _has_patience(context: StepContext) -> bool:
    return context.seen.now_s - context.round_since_s() < context.limits.barrier_patience_s


def _wait(context: StepContext, kind: WaitKind, what: str, found: Barrier) -> list[Action]:
    """Return the barrier's wait, with the nodes that it waits for.

    Transitions whose barrier needs dead nodes are undone, where silence may undo them.
    """
    if found.satisfied:
        then = f"{found.level} is enough, and the others are fenced out"
        limit_s = context.limits.barrier_patience_s
        rest = Patience(context.round_since_s(), limit_s, "STELE_BARRIER_PATIENCE_S", then)
        return [Wait(kind, what, found.blockers, patience=rest)]
    # After the patience only the nodes that keep the level from being reached are named.
    blockers = found.blockers if _has_patience(context) else found.held_up_by() or found.blockers
    level = str(found.level)
    if lowered_level(context.image):
        level = f"{level}, relaxed from {configured_level(context.image)},"
    detail = f"{level} lacks {', '.join(sorted(found.missing))}"
    patience = _patience(context, found)
    actions: list[Action] = [
        TimerStart(f"{_AT_LEVEL}{found.level}"),
        Wait(kind, what, blockers, patience=patience, detail=detail),
    ]
    dead = context.dead([b.node_id for b in found.blockers], context.round_since_s())
    for transition in _to_undo(context, {*dead}):
        why = f"no quorum without the dead nodes {', '.join(sorted(dead))}"
        blamed = tuple(s.request_id for s in transition.subjects if s.node_id in dead)
        undo = Rollback(context.term, transition.transition_id, why, blamed)
        actions.append(CommandAction(undo, transition.request_ids()))
    return [*actions, *_relax(context, found)]


def _relax(context: StepContext, found: Barrier) -> list[Action]:
    """Lower the barrier by one level after each time limit, where the settings permit it."""
    topology, lower = context.image.topology, next_lower(context.image)
    patience = _patience_with_the_level(context, found)
    if lower is None or patience is None or context.seen.now_s < patience.until_s():
        return []
    without = tuple(sorted(found.missing))
    return [CommandAction(RelaxBarrier(context.term, topology.version, lower, without))]


def _patience_with_the_level(context: StepContext, found: Barrier) -> Patience | None:
    """Return how long the level in force is awaited; None if it may not be relaxed."""
    since_s, lower = context.timer_since_s(f"{_AT_LEVEL}{found.level}"), next_lower(context.image)
    if lower is None:
        return None
    limit_s = RELAX_AFTER_S.of(context.image.features.settings)
    return Patience(since_s, limit_s, RELAX_AFTER_S.name, f"{lower} will do")


def _patience(context: StepContext, found: Barrier) -> Patience | None:
    """Return how long an unsatisfied barrier waits; None if it needs nodes that it cannot do
    without.
    """
    relaxes = _patience_with_the_level(context, found)
    down = {blocker.node_id for blocker in found.blockers if not context.is_up(blocker.node_id)}
    if not _to_undo(context, down):
        return relaxes
    then = "what has no quorum without them is undone"
    return earliest(context.patience_with_dead(context.round_since_s(), then), relaxes)


def _to_undo(context: StepContext, dead: set[str]) -> list[Transition]:
    """Return the transitions of this version whose barrier only the nodes ``dead`` block.

    They can still go back, and would lack replicas even at the lowest level that the settings
    permit. Transitions that outlast silence are not among them: a new coordinator asks for the
    answers again, and data may have been moving for hours.
    """
    if not dead:
        return []
    image = context.image
    return [
        transition
        for transition in image.topology.open()
        if not transition.mark
        and transition.entered_version == image.topology.version
        and not context.outlasts_silence(transition.kind)
        and goes_back_without(image, transition, dead)
        and missing_replicas(image, transition, _others(image, dead), lowest_level(image))
    ]


def _others(image: Image, dead: set[str]) -> frozenset[str]:
    """Return all nodes that may still answer."""
    return frozenset(image.membership.nodes) - dead - image.membership.excluded()
