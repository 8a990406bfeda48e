"""The barriers of a round (design, section 3): who must have answered before anything else moves.

A version waits until every participant has applied it and drained the ones before, or a quorum of every
touched range has and the patience with the rest is over. In the first case the fence can go with the next
Advance. In the second it is written for itself, and must be known to a quorum before any work begins or
anything moves: else who was left out could still be served.
"""

from enum import Enum

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience
from stele.domain.acks import Barrier, barrier, is_covered
from stele.domain.topology.commands import AdvanceFence, Rollback
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import WaitKind


class Settled(Enum):
    """How far the present version is."""

    NO = "no"
    BY_ALL = "by all"
    """Everybody acknowledged it, and it is not fenced yet: the next Advance may carry the fence."""
    FENCED = "fenced"


def settle(desk: Desk) -> Settled:
    """Wait for the barriers of the present version; whoever can never answer is not waited for."""
    topology = desk.seen.image.topology
    if not topology.settled():
        applied = _barrier(desk, topology.since_epoch)
        if applied.complete:
            return Settled.BY_ALL
        if _enough(desk, applied):
            _exclude(desk, applied)
            desk.submit(AdvanceFence(desk.seen.term, topology.version))
            return Settled.NO
        _wait(desk, WaitKind.APPLIED, f"version {topology.version} everywhere", applied)
        return Settled.NO
    known = _barrier(desk, topology.fence_epoch)
    if known.complete or _enough(desk, known):
        _exclude(desk, known)
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
    back = desk.memory.left_out - {blocker.node_id for blocker in found.blockers}
    if back:
        desk.remember(left_out=desk.memory.left_out - back)
    return found


def _enough(desk: Desk, found: Barrier) -> bool:
    """A quorum, once everybody has had time to answer. Who missed a barrier gets none until it acknowledges
    again.
    """
    patient = desk.seen.now_s - desk.memory.since_s < desk.limits.barrier_patience_s
    awaited = [b for b in found.blockers if b.node_id not in desk.memory.left_out]
    return found.quorum and not (patient and awaited)


def _exclude(desk: Desk, found: Barrier) -> None:
    missed = {blocker.node_id for blocker in found.blockers}
    if missed - desk.memory.left_out:
        desk.remember(left_out=desk.memory.left_out | missed)


def _wait(desk: Desk, kind: WaitKind, what: str, found: Barrier) -> None:
    """The barrier waits, with names. What rests on nodes that are dead for good turns round while it can."""
    blockers = [blocker.node_id for blocker in found.blockers]
    desk.wait(kind, what, found.blockers, patience=_patience(desk, found))
    dead = desk.dead(blockers, desk.memory.since_s)
    if dead and not found.quorum:
        for transition in _to_undo(desk, {*dead}):
            why = f"no quorum without the dead nodes {', '.join(sorted(dead))}"
            blamed = tuple(s.request_id for s in transition.subjects if s.node_id in dead)
            desk.submit(
                Rollback(desk.seen.term, transition.transition_id, why, blamed),
                transition.request_ids(),
            )


def _patience(desk: Desk, found: Barrier) -> Patience | None:
    """How long the barrier waits; none where it needs nodes that nobody can do without."""
    since_s, limits = desk.memory.since_s, desk.limits
    if found.quorum:
        then = "a quorum is enough, and the others are fenced out"
        return Patience(since_s, limits.barrier_patience_s, "STELE_BARRIER_PATIENCE_S", then)
    down = {blocker.node_id for blocker in found.blockers if not desk.is_up(blocker.node_id)}
    if not _to_undo(desk, down):
        return None
    then = "what has no quorum without them is undone"
    return desk.patience_with_dead(since_s, then)


def _to_undo(desk: Desk, dead: set[str]) -> list[Transition]:
    """Transitions of this version, which can go back, of whom these nodes alone make a quorum impossible."""
    if not dead:
        return []
    image = desk.seen.image
    excluded = image.membership.excluded()
    return [
        transition
        for transition in image.topology.open()
        if not transition.mark
        and transition.entered_version == image.topology.version
        and OPERATIONS[transition.kind].states[transition.state].on_failure is not None
        and any(
            not is_covered(replicas, replicas - dead - excluded, excluded)
            for replicas in OPERATIONS[transition.kind].touched(image, transition)
        )
    ]
