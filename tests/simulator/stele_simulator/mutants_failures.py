"""Planted bugs of operations in which something fails: the ways back, and that later there is none."""

from collections.abc import Iterable
from typing import Any

import msgspec

from stele.coordinator.work import failure_of
from stele.domain.image import Image
from stele.domain.model.transitions import Transition
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.rules import ring
from stele.domain.topology.operations import leave
from stele.domain.topology.operations.base import planned_sets
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

replace = msgspec.structs.replace
_STATE = TransitionState


def _failing_goes(
    patch: Patch, kind: RequestKind, state: TransitionState, to: TransitionState | None
) -> None:
    table: Any = OPERATIONS[kind].states
    patch.item(table, state, replace(table[state], on_failure=to))


@planted(STORY)
def no_way_back_from_the_first_state(patch: Patch) -> None:
    """A node that cannot join or replace is kept waiting instead of being turned away."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        _failing_goes(patch, kind, _STATE.JOIN_GROUP0, None)


@planted(STORY)
def no_way_back_while_it_streams(patch: Patch) -> None:
    """A leave or removal stays incomplete when no node can take over."""
    for kind in (RequestKind.LEAVE, RequestKind.REMOVE):
        _failing_goes(patch, kind, _STATE.WRITE_BOTH_READ_OLD, None)


@planted(STORY, rule="I11")
def way_back_from_the_dead(patch: Patch) -> None:
    """A removal or a replacement may be undone when reads have moved already."""
    removing, replacing = RequestKind.REMOVE, RequestKind.REPLACE
    _failing_goes(patch, removing, _STATE.WRITE_BOTH_READ_NEW, _STATE.ROLLBACK_TO_NORMAL)
    _failing_goes(patch, replacing, _STATE.WRITE_BOTH_READ_NEW, _STATE.LEFT_TOKEN_RING)


@planted(STORY, rule="I11")
def way_back_from_the_last_state(patch: Patch) -> None:
    """An operation may be undone when all that is left is to close the books."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        _failing_goes(patch, kind, _STATE.FINISHING, _STATE.LEFT_TOKEN_RING)
    for kind in (RequestKind.LEAVE, RequestKind.REMOVE):
        _failing_goes(patch, kind, _STATE.LEFT_TOKEN_RING, _STATE.ROLLBACK_TO_NORMAL)
    for kind in (RequestKind.MOVE, RequestKind.KEYSPACE_RF_CHANGE):
        _failing_goes(patch, kind, _STATE.FINISHING, _STATE.ROLLBACK_TO_NORMAL)


@planted(STORY)
def drop_can_be_called_off(patch: Patch) -> None:
    """A drop is taken back, though some route by the version that has no such keyspace."""
    _failing_goes(patch, RequestKind.DROP_KEYSPACE, _STATE.DROP_KEYSPACE, _STATE.DROP_KEYSPACE)


@planted(STORY)
def way_back_waits_for_a_quorum(patch: Patch) -> None:
    """The way back from a missing quorum waits for that quorum."""

    def counted(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
        return planned_sets(image, replace(transition, mark=""))

    for kind, operation in OPERATIONS.items():
        if operation.touched is planned_sets:
            change_operation(patch, kind, touched=counted)


@planted(STORY, rule="I11")
def way_back_forgets_the_dead(patch: Patch) -> None:
    """A removal or a replacement that is undone leaves the rows as they are."""
    for kind, state in (
        (RequestKind.REMOVE, _STATE.ROLLBACK_TO_NORMAL),
        (RequestKind.REPLACE, _STATE.LEFT_TOKEN_RING),
    ):
        table: Any = OPERATIONS[kind].states
        patch.item(table, state, replace(table[state], delta=None))


@planted(STORY)
def streams_are_never_given_up(patch: Patch) -> None:
    """A stream without progress, or with repeated failures, never fails."""
    patch.function(failure_of, lambda context, work, **_: "")


@planted(STORY, rule="I10")
def who_is_turned_away_may_wait_on(patch: Patch) -> None:
    """A node whose join was rejected before it began is none of those that have left."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        change_operation(patch, kind, rejected=None)


@planted(RUN, rule="I10")
def undone_join_makes_a_member(patch: Patch) -> None:
    """A node that could not join, or was called off, counts as one that has."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        change_operation(patch, kind, undone=NodeState.NORMAL)


@planted(STORY, rule="I10")
def undone_leave_stays_half_way(patch: Patch) -> None:
    """A node that could not leave, or whose move or rebuild failed, is not normal again."""
    for kind in (RequestKind.LEAVE, RequestKind.MOVE, RequestKind.REBUILD):
        change_operation(patch, kind, undone=None)


@planted(STORY)
def more_leave_than_the_replication_allows(patch: Patch) -> None:
    """A leave does not check the number of remaining nodes."""
    patch.function(leave.check_enough_remain, lambda image, leaving: None)


@planted(STORY)
def taken_tokens_are_given_again(patch: Patch) -> None:
    """A node may ask for tokens that another one has."""
    patch.function(ring.check_tokens, lambda image, tokens, own=(): None)


@planted(STORY, rule="I5")
def last_state_needs_no_quorum(patch: Patch) -> None:
    """The last state of a transition needs no quorum."""

    def counted(plain: Any) -> Any:
        def touched(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
            state = OPERATIONS[transition.kind].states[transition.state]
            return plain(image, transition) if state.on_success is not None else ()

        return touched

    for kind, operation in OPERATIONS.items():
        change_operation(patch, kind, touched=counted(operation.touched))
