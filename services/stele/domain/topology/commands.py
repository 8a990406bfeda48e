"""The coordinator's commands, each guarded by its term."""

from typing import ClassVar

import msgspec

from stele.domain.base import Command
from stele.domain.names import BarrierLevel, RequestStatus, TransitionState
from stele.domain.table_snapshots.facts import WrittenPart


class ClaimCoordinator(Command, frozen=True, tag="claim_coordinator"):
    """Become the coordinator of ``term``, which must be one above the term that the log knows."""

    of_services: ClassVar = True

    holder: str
    term: int


class Move(msgspec.Struct, frozen=True):
    """A transition that goes on, if it still is in this state and session.

    ``uncleaned`` are nodes that were to clean up in this state and have not: they will be ordered to anew.
    ``wrote`` is what nodes have reported to have written in this state for a snapshot.
    """

    transition_id: str
    state: TransitionState
    session: str = ""
    uncleaned: tuple[str, ...] = ()
    wrote: tuple[WrittenPart, ...] = ()


class Advance(Command, frozen=True, tag="advance", kw_only=True):
    """One round: the moves that still match, and the openings that have room, in one epoch and one new version.

    ``open`` are groups of pending requests; a group becomes one transition. With ``fence`` the present
    version is fenced by the same epoch: only for a coordinator to whom every participant has acknowledged
    it. ``level`` is the one at which the present version's barrier was counted; empty when everybody answered.
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

    ``level`` is the one at which its barrier was counted; empty when everybody answered.
    """

    of_services: ClassVar = True

    term: int
    version: int
    level: str = ""


class RelaxBarrier(Command, frozen=True, tag="relax_barrier"):
    """The barrier of ``version`` has waited for long: the next lower level, this one, will do.

    ``without`` are the replicas that the level before still waited for.
    """

    of_services: ClassVar = True

    term: int
    version: int
    level: BarrierLevel
    without: tuple[str, ...] = ()


class Rollback(Command, frozen=True, tag="rollback"):
    """Mark a transition to go back. ``blamed`` are the requests that end with it; none blames all."""

    of_services: ClassVar = True

    term: int
    transition_id: str
    why: str
    blamed: tuple[str, ...] = ()


class ExcludeDead(Command, frozen=True, tag="exclude_dead"):
    """The nodes that a pending request declares dead have been silent: nobody waits for them from now on."""

    of_services: ClassVar = True

    term: int
    target: str


class ServeRequest(Command, frozen=True, tag="serve_request"):
    """Nothing is missing for the next step of a request that needs no transition and has this status.

    ``step_epoch`` is that of its last step, where it takes several while it runs; 0: it does not.
    """

    of_services: ClassVar = True

    term: int
    target: str
    status: RequestStatus
    step_epoch: int = 0


class FinishCleanup(Command, frozen=True, tag="finish_cleanup"):
    """The node has dropped the data of ranges that it did not own when ``session`` asked for it."""

    of_services: ClassVar = True

    term: int
    node_id: str
    session: str


class FinishEnabling(Command, frozen=True, tag="finish_enabling"):
    """Every member has acknowledged the epoch of this request to enable features."""

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
