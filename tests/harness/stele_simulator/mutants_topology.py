"""Planted bugs of topology operations: ways back, placements, locks, quorums, data."""

from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from stele.agent import cleanup
from stele.agent.cleanup import Cleaner
from stele.agent.judging import Judge
from stele.agent.orders import OrderProgress
from stele.agent.pulling import Puller
from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.topology import Move
from stele.domain.model.transitions import VersionsChanged
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring import strategy, transition
from stele.domain.ring.quorum import quorum_of, read_satisfied, write_satisfied
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas
from stele.domain.ring.transition import TransitionRow, locks_of, stream_sources
from stele.domain.topology import live_copies, requests
from stele.domain.topology import steps as moves
from stele.domain.topology.decide import versions_of
from stele.domain.topology.operations import leave
from stele.domain.topology.steps import Draft
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_state, planted

replace = msgspec.structs.replace
_STATE = TransitionState


# --- ways back


@planted(STORY, rule="I11")
def rollback_after_the_point_of_no_return(patch: Patch) -> None:
    """An operation may be undone when reads have moved already."""
    change_state(
        patch, RequestKind.JOIN, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.LEFT_TOKEN_RING
    )
    change_state(
        patch, RequestKind.LEAVE, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.ROLLBACK_TO_NORMAL
    )


@planted(RUN, rule="I11")
def rollback_forgets_the_placements(patch: Patch) -> None:
    """The books are closed, the rows stay as they are."""
    change_state(patch, RequestKind.JOIN, _STATE.LEFT_TOKEN_RING, delta=None)
    change_state(patch, RequestKind.LEAVE, _STATE.ROLLBACK_TO_NORMAL, delta=None)


@planted(STORY, rule="I5")
def rollback_makes_a_third_version(patch: Patch) -> None:
    """A rollback does not wait until the step that it undoes is fenced."""

    plain = requests.mark

    def at_once(context: Context, request: Any, why: str, *, cancelled: bool) -> Any:
        found = plain(context, request, why, cancelled=cancelled)
        if not isinstance(found, tuple):
            return found
        draft, versions = Draft(context), versions_of(context.image.topology)
        draft.add(*found)
        version, epoch = versions.version + 1, context.epoch
        draft.add(VersionsChanged(replace(versions, version=version, since_epoch=epoch)))
        open_ = draft.image.topology.of_request(request.request_id)
        assert open_ is not None
        moves.move(draft, open_, Move(open_.transition_id, open_.state))
        return tuple(draft.facts)

    patch.function(requests.mark, at_once)


@planted(RUN, rule="I11")
def undone_group_keeps_its_tokens(patch: Patch) -> None:
    """Nodes that joined together with a cancelled one keep the tokens of the group's plan."""
    change_state(patch, RequestKind.JOIN, _STATE.LEFT_TOKEN_RING, drops_tokens=False)


# --- placements


@planted(STORY)
def leave_ignores_other_leaves(patch: Patch) -> None:
    """Two nodes that may leave one at a time are let go both."""
    plain = leave.check_enough_remain

    def alone(image: Image, leaving: Any) -> Any:
        empty = replace(image, requests=type(image.requests)())
        return plain(empty, leaving)

    patch.attribute(leave, "check_enough_remain", alone)


@planted(RUN, rule="I4")
def writes_move_with_the_reads(patch: Patch) -> None:
    """In write_both_read_new the old replicas get no writes, though late readers still ask them."""
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        change_state(patch, kind, _STATE.WRITE_BOTH_READ_NEW, delta=transition.finish)


@planted(RUN, rule="I4")
def read_new_too_early(patch: Patch) -> None:
    """Reads go to the new replicas while these still stream."""
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        change_state(patch, kind, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


@planted(STORY, rule="I7")
def racks_are_ignored(patch: Patch) -> None:
    """Replicas are taken as they come on the ring."""
    patch.attribute(strategy, "_racks", lambda owners, places: owners * 0)


@planted(STORY)
def locks_are_the_changed_rows_only(patch: Patch) -> None:
    """The pieces beside a changed token are not locked, and the result is not checked."""
    patch.function(
        locks_of, lambda plan, before: tuple(Range(row.start, row.end) for row in plan.rows)
    )


@planted(RUN, rule="I3")
def row_takes_the_version_of_a_split(patch: Patch) -> None:
    """A range whose bounds alone move counts as changed."""
    plain = transition._delta

    def all_new(placement: Any, wanted: Any, version: int) -> Any:
        delta = plain(placement, wanted, version)
        return replace(delta, added=tuple(replace(row, version=version) for row in delta.added))

    patch.attribute(transition, "_delta", all_new)


@planted(RUN, rule="I3")
def row_keeps_its_version(patch: Patch) -> None:
    """A range that has other replicas still has the version of before."""
    plain = transition._delta

    def as_before(placement: Any, wanted: Any, version: int) -> Any:
        delta = plain(placement, wanted, version)
        rows = [(row, placement.overlapping(Range(row.start, row.end))) for row in delta.added]
        kept = (replace(row, version=max(r.version for r in there)) for row, there in rows)
        return replace(delta, added=tuple(kept))

    patch.attribute(transition, "_delta", as_before)


# --- quorums


@planted(RUN, rule="I4")
def write_quorum_over_the_old_set_only(patch: Patch) -> None:
    """A write is acknowledged by a quorum of those who are read from now."""

    def reads_only(answered: Set[str], row: RangeReplicas) -> bool:
        return len(answered & set(row.reads)) >= quorum_of(len(row.reads))

    patch.function(write_satisfied, reads_only)


@planted(RUN, rule="I14")
def write_is_acknowledged_by_one(patch: Patch) -> None:
    """One replica is enough for a quorum write."""
    patch.function(write_satisfied, lambda answered, row: bool(answered & set(row.writes)))


@planted(RUN, rule="I14")
def read_is_answered_by_one(patch: Patch) -> None:
    """One replica is enough for a quorum read."""
    patch.function(read_satisfied, lambda answered, row: bool(answered & set(row.reads)))


# --- data


@planted(STORY)
def stream_from_one_replica(patch: Patch) -> None:
    """Any old replica will do as the source, though it may have missed writes."""

    def first(row: TransitionRow, gaining: str, failed: Set[str] = frozenset()) -> Any:
        assert gaining, "somebody asks"
        sources = tuple(node for node in row.old if node not in failed)
        return sources, 1 if row.old else 0

    patch.function(stream_sources, first)


@planted(STORY, rule="I6")
def stream_from_a_source_that_is_behind(patch: Patch) -> None:
    """The source gives what it has before it knows the fence, and accepts older writes after."""

    @asynccontextmanager
    async def giving(self: Any, epoch: int, session: str) -> AsyncIterator[None]:
        with self._state.enter(session) as guard:
            yield
            guard.check()

    patch.attribute(Judge, "giving", giving)


@planted(STORY)
def stream_reports_success_first(patch: Patch) -> None:
    """A node reports its streaming as done when it starts it."""

    async def nothing(self: Puller, order: Order, progress: OrderProgress) -> None:
        return None

    patch.attribute(Puller, "run", nothing)


@planted(RUN)
def cleanup_is_forgotten(patch: Patch) -> None:
    """Ranges that a node lost are never deleted."""
    patch.attribute(moves, "_mark_cleanup", lambda draft, touched: [])


@planted(RUN)
def cleanup_counts_before_it_is_done(patch: Patch) -> None:
    """A node is called clean without having dropped anything."""

    async def nothing(self: Cleaner, order: Order, progress: OrderProgress) -> None:
        return None

    patch.attribute(Cleaner, "run", nothing)


@planted(RUN)
def cleanup_keeps_primary_ranges_only(patch: Patch) -> None:
    """Cleanup drops what a node holds as the second or third replica."""

    def not_primary(
        image: Image, node_id: str, data_id: str, range_: Range, shard: int = 0
    ) -> bool:
        data = image.schema.of_data(data_id)
        if data is None:
            return True
        rows = image.ring.placements[data.placement].overlapping(range_)
        return all(row.reads[0] != node_id for row in rows)

    def rows_of(image: Image, node_id: str, data_id: str, shard: int = 0) -> list[Range]:
        data = image.schema.of_data(data_id)
        if data is None:
            return [Range(MIN_TOKEN, MIN_TOKEN)]
        rows = image.ring.placements[data.placement].rows
        ranges = (Range(row.start, row.end) for row in rows)
        return [each for each in ranges if not_primary(image, node_id, data_id, each)]

    patch.function(live_copies.is_foreign, not_primary)
    patch.function(cleanup.foreign_ranges, rows_of)
