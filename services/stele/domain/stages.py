"""The topology state machine as a table: one row for each step of each operation (seeds 000 and 002).

A row says all about its step: what entering it writes, what it waits for, and where it goes on success
and on failure. Each step waits for the barrier and the fence of its version; ``streams`` adds the data.
A step without ``on_failure`` is past the point of no return, or is itself the way back.

join:  join_group0 -> write_both_read_old -> write_both_read_new -> (normal)
       failure before write_both_read_new: left_token_ring -> (left)
leave: write_both_read_old -> write_both_read_new -> left_token_ring -> (left)
       failure before write_both_read_new: rollback_to_normal -> (normal)
"""

from collections.abc import Callable
from typing import Final

import msgspec

from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.ranges import Placement
from stele.domain.ring.transition import PlacementDelta, TransitionPlan

Delta = Callable[[Placement, TransitionPlan], PlacementDelta]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an operation; see the module's text."""

    node_state: NodeState
    """State of the operation's node from this step on."""
    delta: Delta | None = None
    """How the rows of each placement change on entering; None leaves them as they are."""
    drops_tokens: bool = False
    streams: bool = False
    """Opens a session on entering, and is left only when the data has been streamed under it."""
    on_success: TransitionState = TransitionState.NONE
    on_failure: TransitionState | None = None


_STATE = TransitionState
JOIN: Final = {
    _STATE.JOIN_GROUP0: Stage(
        node_state=NodeState.BOOTSTRAPPING,
        delta=transition.split_delta,
        on_success=_STATE.WRITE_BOTH_READ_OLD,
        on_failure=_STATE.LEFT_TOKEN_RING,
    ),
    _STATE.WRITE_BOTH_READ_OLD: Stage(
        node_state=NodeState.BOOTSTRAPPING,
        delta=transition.write_both_read_old,
        streams=True,
        on_success=_STATE.WRITE_BOTH_READ_NEW,
        on_failure=_STATE.LEFT_TOKEN_RING,
    ),
    _STATE.WRITE_BOTH_READ_NEW: Stage(
        node_state=NodeState.BOOTSTRAPPING,
        delta=transition.write_both_read_new,
        on_success=_STATE.NONE,
    ),
    _STATE.NONE: Stage(node_state=NodeState.NORMAL, delta=transition.finish),
    _STATE.LEFT_TOKEN_RING: Stage(
        node_state=NodeState.BOOTSTRAPPING, delta=transition.rollback, drops_tokens=True
    ),
}
LEAVE: Final = {
    _STATE.WRITE_BOTH_READ_OLD: Stage(
        node_state=NodeState.DECOMMISSIONING,
        delta=transition.write_both_read_old,
        streams=True,
        on_success=_STATE.WRITE_BOTH_READ_NEW,
        on_failure=_STATE.ROLLBACK_TO_NORMAL,
    ),
    _STATE.WRITE_BOTH_READ_NEW: Stage(
        node_state=NodeState.DECOMMISSIONING,
        delta=transition.write_both_read_new,
        on_success=_STATE.LEFT_TOKEN_RING,
    ),
    _STATE.LEFT_TOKEN_RING: Stage(
        node_state=NodeState.DECOMMISSIONING, delta=transition.finish, drops_tokens=True
    ),
    _STATE.ROLLBACK_TO_NORMAL: Stage(
        node_state=NodeState.DECOMMISSIONING, delta=transition.rollback
    ),
    _STATE.NONE: Stage(node_state=NodeState.LEFT),
}
STAGES: Final = {RequestKind.JOIN: JOIN, RequestKind.LEAVE: LEAVE}

FIRST_STAGE: Final = {
    RequestKind.JOIN: _STATE.JOIN_GROUP0,
    RequestKind.LEAVE: _STATE.WRITE_BOTH_READ_OLD,
}
ROLLED_BACK: Final = {RequestKind.JOIN: NodeState.LEFT, RequestKind.LEAVE: NodeState.NORMAL}
"""Where the node of an operation ends once the operation has been undone."""


def stage_of(kind: RequestKind, state: TransitionState) -> Stage:
    """The row of one step; every state that a topology can be in has one."""
    return STAGES[kind][state]
