"""Planted bugs of tablets, most of them known from other stores: deletions and moves at the wrong time."""

from collections.abc import Iterable, Set
from typing import Any, Final

import msgspec

from stele.agent.cleanup import Cleaner, delete_all
from stele.agent.orders import OrderProgress
from stele.agent.stores import Span, parted
from stele.coordinator import transitions
from stele.coordinator.actions import Actions, Check
from stele.coordinator.model import StepContext
from stele.coordinator.rounds import Settled
from stele.coordinator.transitions import is_ready
from stele.coordinator.work import order_work
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.membership import NodeChanged
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.transitions import Transition
from stele.domain.names import OrderKind, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology.operations import keyspaces, tablet_migration
from stele.domain.topology.operations.base import (
    Sources,
    losing_nodes,
    planned_sets,
    sources_of_gained,
)
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, change_operation, planted

replace = msgspec.structs.replace
_STATE = TransitionState
_MIGRATION: Final = RequestKind.TABLET_MIGRATION


def _stage(patch: Patch, stage: TransitionState, **changes: Any) -> None:
    table: Any = OPERATIONS[_MIGRATION].states
    patch.item(table, stage, replace(table[stage], **changes))


def _without_its_fence(patch: Patch, stage: TransitionState) -> None:
    """Send the orders of this stage before the fence."""
    plain = is_ready

    def early(context: StepContext, moving: Transition, settled: Settled) -> Check:
        early_orders: Actions = ()
        if moving.state is stage and settled is Settled.NO:
            kind, session, ids = OrderKind.CLEANUP, moving.session, moving.request_ids()
            cleaned_by = OPERATIONS[moving.kind].states[stage].cleaned_by
            nodes = [] if cleaned_by is None else cleaned_by(moving)
            up = [n for n in nodes if context.is_up(n)]
            early_orders = order_work(context, kind, session, ids[0], up, "").orders
        found = plain(context, moving, settled)
        return Check(found.passed, [*early_orders, *found.actions])

    patch.function(plain, early)


# --- what is deleted


@planted(STORY)
def source_deletes_before_the_barrier(patch: Patch) -> None:
    """The replica that is left deletes its data while requests may still be routed to it, and never again."""
    use_new, end = _STATE.USE_NEW, _STATE.END_MIGRATION
    _stage(patch, use_new, cleaned_by=losing_nodes, on_success=end)
    _without_its_fence(patch, use_new)


@planted(STORY)
def target_deletes_before_the_barrier(patch: Patch) -> None:
    """On the way back the target deletes what it has got while it may still be written to."""
    _without_its_fence(patch, _STATE.CLEANUP_TARGET)


@planted(STORY)
def target_keeps_what_it_got(patch: Patch) -> None:
    """A migration that is undone leaves what was streamed."""
    _stage(patch, _STATE.CLEANUP_TARGET, cleaned_by=None)


@planted(STORY)
def late_cleanup_is_forgotten(patch: Patch) -> None:
    """A node that is down during a cleanup is not marked for a later one."""
    patch.attribute(transitions, "_uncleaned", lambda context, moving: ())


@planted(STORY)
def cleanup_deletes_whole_tables(patch: Patch) -> None:
    """A node that loses one tablet of a table deletes the whole table."""
    plain = Cleaner.run

    async def run(self: Any, order: Order, progress: OrderProgress) -> None:
        image = self._follower.image
        moving = image.topology.of_session(order.session)
        if moving is None:
            await plain(self, order, progress)
            return
        stored = await self._store.partitions()
        spans = [
            Span(partition, MIN_TOKEN, MIN_TOKEN)
            for name in moving.plans
            for data in image.schema.using(name)
            for partition in stored
            if parted(partition)[0] == data.data_id
        ]
        await delete_all(self._store, spans, lambda span: True, progress)

    patch.attribute(Cleaner, "run", run)


# --- what moves when


@planted(STORY, rule="I11")
def tablet_is_read_before_it_is_streamed(patch: Patch) -> None:
    """The new replica serves reads as soon as it is written to."""
    _stage(patch, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


@planted(STORY)
def tablet_is_not_streamed(patch: Patch) -> None:
    """A migration passes its streaming by."""
    _stage(patch, _STATE.WRITE_BOTH_READ_OLD, on_success=_STATE.WRITE_BOTH_READ_NEW)


@planted(STORY)
def tablet_moves_twice_at_once(patch: Patch) -> None:
    """A tablet that moves may be asked to move, and nothing keeps the second migration from opening."""
    plain = tablet_migration.plans

    def unlocked(image: Image, requests: Any) -> Any:
        found = plain(image, requests)
        if not isinstance(found, dict):
            return found
        return {name: replace(plan, locks=()) for name, plan in found.items()}

    patch.attribute(tablet_migration, "_check_alone", lambda move, tablet, moving: None)
    change_operation(patch, _MIGRATION, plans=unlocked)


@planted(STORY)
def migration_cannot_be_undone(patch: Patch) -> None:
    """A migration whose target is dead waits for it for ever."""
    for stage in (_STATE.ALLOW_WRITE_BOTH_READ_OLD, _STATE.WRITE_BOTH_READ_OLD, _STATE.STREAMING):
        _stage(patch, stage, on_failure=None)


@planted(STORY, rule="I11")
def migration_turns_round_too_late(patch: Patch) -> None:
    """A migration may be undone once the new replica alone is written to, or the old one has deleted all."""
    for stage in (_STATE.USE_NEW, _STATE.CLEANUP, _STATE.END_MIGRATION):
        _stage(patch, stage, on_failure=_STATE.CLEANUP_TARGET)


@planted(STORY, rule="I4")
def reads_turn_round_before_the_barrier(patch: Patch) -> None:
    """Writes pass the new replica by although somebody may still read from it."""
    change_operation(patch, _MIGRATION, touched=planned_sets)


@planted(STORY)
def migration_turns_to_the_dead(patch: Patch) -> None:
    """It is undone after the reads have moved, though the replicas before are dead."""
    _stage(patch, _STATE.WRITE_BOTH_READ_NEW, turns_back_if=None)


@planted(STORY, rule="I11")
def undone_migration_is_left_half_way(patch: Patch) -> None:
    """The way back leaves the target among those who are written to."""
    _stage(patch, _STATE.CLEANUP_TARGET, delta=None)


@planted(STORY)
def tablet_is_rebuilt_from_one(patch: Patch) -> None:
    """Any other source serves in place of an excluded one."""

    def from_one(
        image: Image, moving: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
    ) -> Sources | None:
        found = sources_of_gained(image, moving, row, node_id, unavailable)
        return None if found is None else (found[0], min(found[1], 1))

    change_operation(patch, _MIGRATION, sources=from_one)


# --- nodes that go, tables that go


@planted(STORY, rule="I7")
def nodes_leave_with_their_tablets(patch: Patch) -> None:
    """A leave or removal does not wait until the node's tablets have moved."""
    for kind in (RequestKind.LEAVE, RequestKind.REMOVE):
        change_operation(patch, kind, held=OPERATIONS[_MIGRATION].held)


@planted(STORY)
def tablets_of_the_replaced_are_forgotten(patch: Patch) -> None:
    """The new node takes the dead one's tokens, and none of its tablets."""

    def left(image: Image, replaced: Transition, epoch: int) -> Iterable[Any]:
        for subject in replaced.subjects:
            yield NodeChanged(image.membership.nodes[subject.replaced_id].gone())

    change_operation(patch, RequestKind.REPLACE, on_done=left)


@planted(STORY)
def drop_forgets_the_migrations(patch: Patch) -> None:
    """A table is dropped, and its tablets move on."""

    def alone(image: Image, placement: str) -> Iterable[Any]:
        yield PlacementDropped(placement)

    patch.attribute(keyspaces, "_dropped_placement", alone)


@planted(STORY)
def dropped_table_is_kept_on_disk(patch: Patch) -> None:
    """The rows of a dropped table are never deleted."""
    plain = OPERATIONS[RequestKind.DROP_TABLE].on_done

    def unmarked(image: Image, dropped: Transition, epoch: int) -> Iterable[Any]:
        return (f for f in plain(image, dropped, epoch) if not isinstance(f, NodeChanged))

    change_operation(patch, RequestKind.DROP_TABLE, on_done=unmarked)
