"""The topology without its plans: versions, fence, open transitions, and the coordinator's term.

See docs/design.md, rules 19 and 23.
"""

from typing import ClassVar

import msgspec

from stele.domain.base import Command
from stele.domain.model.table_snapshots import WrittenPart
from stele.domain.names import BarrierLevel, RequestKind, RequestStatus, TransitionState


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The routing version, its fence, and the level of its barrier.

    ``version`` rises with every change of routing. ``fence_version`` follows once older versions
    are drained or fenced out. ``since_epoch`` is the epoch of the newest version: a barrier waits
    for it. ``fence_epoch`` is the epoch that wrote ``fence_version``.

    ``relaxed_to`` is the level to which this version's barrier was relaxed. ``let_through`` is the
    level of a relaxed barrier that the newest of these epochs passed. Both are empty without a
    relaxation; ``let_through`` is also empty if all members had answered.
    """

    version: int = 1
    fence_version: int = 1
    since_epoch: int = 0
    fence_epoch: int = 0
    relaxed_to: str = ""
    let_through: str = ""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a transition is about: its request, and its tokens after a join or before a
    leave.

    ``replaced_id`` is the node whose tokens it takes over.
    """

    request_id: str
    node_id: str
    tokens: tuple[int, ...] = ()
    replaced_id: str = ""


class TransitionHead(msgspec.Struct, frozen=True, kw_only=True):
    """One operation under way, without the placements of its steps.

    ``session`` is open while work is done. ``entered_version`` and ``entered_epoch`` are those of
    its newest step. ``mark`` is the reason why it goes back, with its next step or already.
    ``blamed`` are the requests that end with it; the others become pending again.
    """

    transition_id: str
    kind: RequestKind
    state: TransitionState
    session: str = ""
    entered_version: int = 0
    entered_epoch: int = 0
    subjects: tuple[Subject, ...] = ()
    keyspace_id: str = ""
    table_id: str = ""
    mark: str = ""
    blamed: tuple[str, ...] = ()

    def nodes(self) -> tuple[str, ...]:
        return tuple(subject.node_id for subject in self.subjects)

    def request_ids(self) -> tuple[str, ...]:
        """Return the requests that it carries out."""
        return tuple(s.request_id for s in self.subjects) or (self.transition_id,)


class TransitionSummary(TransitionHead, frozen=True, kw_only=True):
    """A transition for display: ``ranges`` is the number of changed ranges, by placement."""

    ranges: dict[str, int] = {}


class Coordinator(msgspec.Struct, frozen=True):
    """The newest claim to drive the topology. Commands of an older term are rejected."""

    term: int = 0
    holder: str = ""


# The coordinator's commands, each guarded by its term.


class ClaimCoordinator(Command, frozen=True, tag="claim_coordinator"):
    """Become the coordinator of ``term``, which must be one above the newest term in the log."""

    of_services: ClassVar = True

    holder: str
    term: int


class Move(msgspec.Struct, frozen=True):
    """A transition that takes its next step if it is still in this state and session.

    ``uncleaned`` are nodes that had to clean up in this state and have not reported; they are
    ordered again later. ``wrote`` are the parts that nodes report to have written in this state for
    a snapshot.
    """

    transition_id: str
    state: TransitionState
    session: str = ""
    uncleaned: tuple[str, ...] = ()
    wrote: tuple[WrittenPart, ...] = ()


class Advance(Command, frozen=True, tag="advance", kw_only=True):
    """One round: moves that still match and openings with room, in one epoch and one new version.

    ``open`` holds groups of pending requests; a group becomes one transition. With ``fence`` the
    present version is fenced by the same epoch. That is allowed only if every participant has
    acknowledged it. ``level`` is the level at which the present version's barrier was counted;
    empty if all members answered.
    """

    of_services: ClassVar = True

    term: int
    version: int
    moves: tuple[Move, ...] = ()
    open: tuple[tuple[str, ...], ...] = ()
    fence: bool = False
    level: str = ""


class AdvanceFence(Command, frozen=True, tag="advance_fence"):
    """Fence out every version below ``version``, which must be the current one.

    ``level`` is the level at which its barrier was counted; empty if all members answered.
    """

    of_services: ClassVar = True

    term: int
    version: int
    level: str = ""


class RelaxBarrier(Command, frozen=True, tag="relax_barrier"):
    """Lower the barrier of ``version`` to the next lower level, because it has waited for too long.

    ``without`` are the replicas that the level before still lacked.
    """

    of_services: ClassVar = True

    term: int
    version: int
    level: BarrierLevel
    without: tuple[str, ...] = ()


class Rollback(Command, frozen=True, tag="rollback"):
    """Mark a transition to go back.

    ``blamed`` are the requests that end with it; empty blames all.
    """

    of_services: ClassVar = True

    term: int
    transition_id: str
    why: str
    blamed: tuple[str, ...] = ()


class ExcludeDead(Command, frozen=True, tag="exclude_dead"):
    """Exclude the nodes that a pending request declares dead, because they have been silent.

    Barriers no longer wait for them.
    """

    of_services: ClassVar = True

    term: int
    target: str


class ServeRequest(Command, frozen=True, tag="serve_request"):
    """Take the next step of a request that needs no transition and has this status.

    ``step_epoch`` is the epoch of its last step, if it takes several while it runs; otherwise 0.
    """

    of_services: ClassVar = True

    term: int
    target: str
    status: RequestStatus
    step_epoch: int = 0


class FinishCleanup(Command, frozen=True, tag="finish_cleanup"):
    """Record that the node has deleted the ranges that it did not own when ``session`` began."""

    of_services: ClassVar = True

    term: int
    node_id: str
    session: str


class FinishEnabling(Command, frozen=True, tag="finish_enabling"):
    """Enable the features of a request: every member has acknowledged its epoch."""

    of_services: ClassVar = True

    term: int
    target: str


TopologyCommand = (
    ClaimCoordinator
    | Advance
    | AdvanceFence
    | RelaxBarrier
    | Rollback
    | ExcludeDead
    | ServeRequest
    | FinishCleanup
    | FinishEnabling
)
