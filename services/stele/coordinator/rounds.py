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

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience, sooner
from stele.domain.acks import Barrier, barrier
from stele.domain.image import Image
from stele.domain.topology.barriers import (
    configured_level,
    lowered_level,
    lowest_level,
    missing_replicas,
    next_lower,
)
from stele.domain.topology.commands import AdvanceFence, RelaxBarrier, Rollback
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import RELAX_AFTER_S
from stele.domain.topology.operations.table import goes_back_without
from stele.domain.topology.waits import WaitKind

_AT_LEVEL: Final = "barrier "
"""Prefix of the key of a wait: the time since which the present barrier has waited for a level."""


class Settled(Enum):
    """State of the barriers of the present version."""

    NO = "no"
    BY_ALL = "by all"
    """All participants acknowledged it, and it is not fenced: the next Advance may carry the fence.
    """
    FENCED = "fenced"


def settle(desk: Desk) -> Settled:
    """Wait for the barriers of the present version, and return how far it is settled.

    Nodes that can never answer are not awaited.
    """
    topology = desk.seen.image.topology
    if not topology.settled():
        applied = _barrier(desk, topology.since_epoch)
        if applied.complete:
            return Settled.BY_ALL
        if _enough(desk, applied):
            # Remember the nodes without an answer before the fence is sent: the next barrier must
            # not give them new patience.
            _exclude(desk, applied)
            desk.submit(AdvanceFence(desk.seen.term, topology.version, applied.level))
            return Settled.NO
        _wait(desk, WaitKind.APPLIED, f"version {topology.version} everywhere", applied)
        return Settled.NO
    known = _barrier(desk, topology.fence_epoch)
    if known.complete or _enough(desk, known):
        _exclude(desk, known)
        # The next Advance states the level, so that the log can refuse a count made at too low a
        # level.
        desk.counted_at = "" if known.complete else known.level
        return Settled.FENCED
    _wait(desk, WaitKind.FENCED, f"the fence of version {topology.version} to be known", known)
    return Settled.NO


def _barrier(desk: Desk, epoch: int) -> Barrier:
    seen = desk.seen
    found = barrier(
        seen.image,
        seen.acks,
        epoch,
        seen.image.topology.version,
        seen.now_s,
        seen.state_id_of,
    )
    if found.satisfied:
        desk.waits_no_more(f"{_AT_LEVEL}{found.level}")
    # A node that answers again gets patience again.
    back = desk.memory.left_out - {blocker.node_id for blocker in found.blockers}
    if back:
        desk.remember(left_out=desk.memory.left_out - back)
    return found


def _enough(desk: Desk, found: Barrier) -> bool:
    """Return whether the level in force is reached and all awaited nodes have had time to answer.

    A node that missed a barrier gets no time until it acknowledges again (docs/design.md, rule 27).
    """
    # Otherwise one dead node would cost the full patience in every round.
    awaited = [b for b in found.blockers if b.node_id not in desk.memory.left_out]
    return found.satisfied and not (_is_patient(desk) and awaited)


def _is_patient(desk: Desk) -> bool:
    return desk.seen.now_s - desk.round_since_s() < desk.limits.barrier_patience_s


def _exclude(desk: Desk, found: Barrier) -> None:
    missed = {blocker.node_id for blocker in found.blockers}
    if missed - desk.memory.left_out:
        desk.remember(left_out=desk.memory.left_out | missed)


def _wait(desk: Desk, kind: WaitKind, what: str, found: Barrier) -> None:
    """Add the barrier's wait, with the nodes that it waits for.

    Transitions whose barrier needs dead nodes are undone, where silence may undo them.
    """
    if found.satisfied:
        desk.wait(kind, what, found.blockers, patience=_patience_with_the_rest(desk, found))
        return
    # After the patience only the nodes that keep the level from being reached are named.
    blockers = found.blockers if _is_patient(desk) else found.held_up_by() or found.blockers
    detail = f"{_level_text(desk, found)} lacks {', '.join(sorted(found.missing))}"
    desk.wait(kind, what, blockers, patience=_patience(desk, found), detail=detail)
    dead = desk.dead([blocker.node_id for blocker in found.blockers], desk.round_since_s())
    for transition in _to_undo(desk, {*dead}):
        why = f"no quorum without the dead nodes {', '.join(sorted(dead))}"
        blamed = tuple(s.request_id for s in transition.subjects if s.node_id in dead)
        desk.submit(
            Rollback(desk.seen.term, transition.transition_id, why, blamed),
            transition.request_ids(),
        )
    _relax(desk, found)


def _level_text(desk: Desk, found: Barrier) -> str:
    """Return the level in force, with the configured level if the barrier was relaxed."""
    image = desk.seen.image
    if not lowered_level(image):
        return found.level
    return f"{found.level}, relaxed from {configured_level(image)},"


def _relax(desk: Desk, found: Barrier) -> None:
    """Lower the barrier by one level after each time limit, where the settings permit it."""
    topology, lower = desk.seen.image.topology, next_lower(desk.seen.image)
    patience = _patience_with_the_level(desk, found)
    if lower is None or patience is None or desk.seen.now_s < patience.until_s():
        return
    without = tuple(sorted(found.missing))
    desk.submit(RelaxBarrier(desk.seen.term, topology.version, lower, without))


def _patience_with_the_rest(desk: Desk, found: Barrier) -> Patience:
    """Return how long all nodes are awaited after the level in force is reached."""
    then = f"{found.level} is enough, and the others are fenced out"
    limit_s = desk.limits.barrier_patience_s
    return Patience(desk.round_since_s(), limit_s, "STELE_BARRIER_PATIENCE_S", then)


def _patience_with_the_level(desk: Desk, found: Barrier) -> Patience | None:
    """Return how long the level in force is awaited; None if it may not be relaxed."""
    since_s, lower = desk.waiting_since(f"{_AT_LEVEL}{found.level}"), next_lower(desk.seen.image)
    if lower is None:
        return None
    limit_s = RELAX_AFTER_S.of(desk.seen.image.features.settings)
    return Patience(since_s, limit_s, RELAX_AFTER_S.name, f"{lower} will do")


def _patience(desk: Desk, found: Barrier) -> Patience | None:
    """Return how long an unsatisfied barrier waits; None if it needs nodes that it cannot do
    without.
    """
    relaxes = _patience_with_the_level(desk, found)
    down = {blocker.node_id for blocker in found.blockers if not desk.is_up(blocker.node_id)}
    if not _to_undo(desk, down):
        return relaxes
    then = "what has no quorum without them is undone"
    return sooner(desk.patience_with_dead(desk.round_since_s(), then), relaxes)


def _to_undo(desk: Desk, dead: set[str]) -> list[Transition]:
    """Return the transitions of this version whose barrier only the nodes ``dead`` block.

    They can still go back, and would lack replicas even at the lowest level that the settings
    permit. Transitions that outlast silence are not among them: a new coordinator asks for the
    answers again, and data may have been moving for hours.
    """
    if not dead:
        return []
    image = desk.seen.image
    return [
        transition
        for transition in image.topology.open()
        if not transition.mark
        and transition.entered_version == image.topology.version
        and not desk.outlasts_silence(transition.kind)
        and goes_back_without(image, transition, dead)
        and missing_replicas(image, transition, _others(image, dead), lowest_level(image))
    ]


def _others(image: Image, dead: set[str]) -> frozenset[str]:
    """Return all nodes that may still answer."""
    return frozenset(image.membership.nodes) - dead - image.membership.excluded()
