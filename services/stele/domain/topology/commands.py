"""The coordinator's commands, each guarded by its term."""

from typing import ClassVar

import msgspec

from stele.domain.base import Command
from stele.domain.names import BarrierLevel, RequestStatus, TransitionState
from stele.domain.table_snapshots.model import WrittenPart


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
