"""Known bugs of tablets: moves, copies, resizes, co-located tables, shards and balancing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import msgspec
import numpy as np

from stele.agent import stores
from stele.agent.cleanup import Cleaner, delete_all
from stele.agent.orders import OrderProgress
from stele.agent.stores import Span, parted
from stele.coordinator import transitions
from stele.coordinator.actions import Actions, Check
from stele.coordinator.model import StepContext
from stele.coordinator.rounds import Settled
from stele.coordinator.transitions import is_ready
from stele.coordinator.work import order_work
from stele.domain.balancer import proposals
from stele.domain.column import Ints
from stele.domain.context import Decision, unknown_table
from stele.domain.ddl import tables
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.membership import NodeChanged
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.schema import (
    Data,
    Keyspace,
    Off,
    SchemaImage,
    Table,
    TableChanged,
    tablet_map,
)
from stele.domain.model.transitions import Transition
from stele.domain.names import TABLET_MAP, OrderKind, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.columns import Rows
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas
from stele.domain.ring.transition import TransitionRow
from stele.domain.rules import schema
from stele.domain.tablets import maps
from stele.domain.topology import live_copies
from stele.domain.topology.operations import keyspaces, tablet_migration
from stele.domain.topology.operations.base import (
    Served,
    Sources,
    gaining_nodes,
    losing_nodes,
    planned_sets,
    sources_of_gained,
)
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import (
    STORY,
    change_operation,
    change_state,
    plan_without_locks,
    planted,
)

# Planted bugs of tablets, most of them known from other stores: deletions and moves at the wrong
# time.


replace = msgspec.structs.replace
_STATE = TransitionState
_MIGRATION: Final = RequestKind.TABLET_MIGRATION


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
    change_state(patch, _MIGRATION, use_new, cleaned_by=losing_nodes, on_success=end)
    _without_its_fence(patch, use_new)


@planted(STORY)
def target_deletes_before_the_barrier(patch: Patch) -> None:
    """On the way back the target deletes what it has got while it may still be written to."""
    _without_its_fence(patch, _STATE.CLEANUP_TARGET)


@planted(STORY)
def target_keeps_what_it_got(patch: Patch) -> None:
    """A migration that is undone leaves what was streamed."""
    change_state(patch, _MIGRATION, _STATE.CLEANUP_TARGET, cleaned_by=None)


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
    change_state(
        patch, _MIGRATION, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new
    )


@planted(STORY)
def tablet_is_not_streamed(patch: Patch) -> None:
    """A migration passes its streaming by."""
    change_state(
        patch, _MIGRATION, _STATE.WRITE_BOTH_READ_OLD, on_success=_STATE.WRITE_BOTH_READ_NEW
    )


@planted(STORY)
def tablet_moves_twice_at_once(patch: Patch) -> None:
    """A tablet that moves may be asked to move, and nothing keeps the second migration from opening."""
    patch.attribute(tablet_migration, "_check_alone", lambda move, tablet, moving: None)
    plan_without_locks(patch, _MIGRATION)


@planted(STORY)
def migration_cannot_be_undone(patch: Patch) -> None:
    """A migration whose target is dead waits for it for ever."""
    for stage in (_STATE.ALLOW_WRITE_BOTH_READ_OLD, _STATE.WRITE_BOTH_READ_OLD, _STATE.STREAMING):
        change_state(patch, _MIGRATION, stage, on_failure=None)


@planted(STORY, rule="I11")
def migration_turns_round_too_late(patch: Patch) -> None:
    """A migration may be undone once the new replica alone is written to, or the old one has deleted all."""
    for stage in (_STATE.USE_NEW, _STATE.CLEANUP, _STATE.END_MIGRATION):
        change_state(patch, _MIGRATION, stage, on_failure=_STATE.CLEANUP_TARGET)


@planted(STORY, rule="I4")
def reads_turn_round_before_the_barrier(patch: Patch) -> None:
    """Writes pass the new replica by although somebody may still read from it."""
    change_operation(patch, _MIGRATION, touched=planned_sets)


@planted(STORY)
def migration_turns_to_the_dead(patch: Patch) -> None:
    """It is undone after the reads have moved, though the replicas before are dead."""
    change_state(patch, _MIGRATION, _STATE.WRITE_BOTH_READ_NEW, turns_back_if=None)


@planted(STORY, rule="I11")
def undone_migration_is_left_half_way(patch: Patch) -> None:
    """The way back leaves the target among those who are written to."""
    change_state(patch, _MIGRATION, _STATE.CLEANUP_TARGET, delta=None)


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
        change_operation(patch, kind, blocked=OPERATIONS[_MIGRATION].blocked)


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


# Known bugs of splits and merges: what they wait for, what they keep, and when they are wanted no
# more.


_RESIZE: Final = RequestKind.TABLET_RESIZE


@planted(STORY)
def resize_does_not_wait_for_migrations(patch: Patch) -> None:
    """The new map comes while tablets of the old one move."""
    plan_without_locks(patch, _RESIZE)


@planted(STORY)
def siblings_that_are_apart_become_one(patch: Patch) -> None:
    """A merge does not wait until both tablets are on the same nodes."""
    change_operation(patch, _RESIZE, blocked=OPERATIONS[RequestKind.TRUNCATE].blocked)


@planted(STORY, rule="I3")
def new_tablets_forget_their_versions(patch: Patch) -> None:
    """After a resize late requests are served by the replicas that their tablet had before."""
    plain = maps.resized

    def forgetful(placement: Placement, count: int) -> Rows:
        rows = plain(placement, count)
        _, _, *replicas = rows.values
        never = np.zeros(len(rows), np.int64)
        return Rows(rows.keys, (never, never, *replicas))

    patch.function(plain, forgetful)


@planted(STORY, rule="I3")
def merged_tablet_has_the_version_of_the_first(patch: Patch) -> None:
    """A merged tablet forgets the newest change of its second half."""

    def first(versions: Ints, versions_before: Ints) -> tuple[Ints, Ints]:
        return versions[::2], versions_before[::2]

    patch.attribute(maps, "_versions_of_both", first)


# Known bugs of co-located tables: what is done to a tablet and not to all tables that have it.


@planted(STORY)
def base_table_alone_moves(patch: Patch) -> None:
    """A tablet that moves is streamed and cleaned up of the table that owns the map, and of no other."""
    plain = SchemaImage.using

    def owner_alone(self: SchemaImage, placement: str) -> list[Data]:
        found = plain(self, placement)
        return found[:1] if placement.startswith(TABLET_MAP) else found

    patch.attribute(SchemaImage, "using", owner_alone)


@planted(STORY)
def colocated_rows_stay_behind(patch: Patch) -> None:
    """A node that gave a tablet away deletes only the rows of the table that owns the tablet map."""
    plain = live_copies.is_to_be_deleted

    def owned(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
        data = image.schema.of_data(data_id)
        table = None if data is None else image.schema.table_named(data.name)
        of_another = table is not None and bool(table.base_table_id)
        return not of_another and plain(image, order, data_id, range_, shard)

    patch.function(plain, owned)


@planted(STORY, rule="I7")
def colocated_table_has_a_copy_of_the_map(patch: Patch) -> None:
    """A co-located table begins where the other one is, and moves by itself."""

    def copied(image: Image, keyspace: Keyspace, table: Table, name: str) -> Decision:
        base = image.schema.table_named(name)
        if base is None or not base.placement:
            return unknown_table(name)
        placement = tablet_map(table.table_id)
        created = TableChanged(msgspec.structs.replace(table, placement=placement))
        return created, *image.ring.creation(placement, image.ring.placements[base.placement])

    patch.attribute(tables, "_colocated", copied)


@planted(STORY)
def drop_takes_the_map_of_others(patch: Patch) -> None:
    """With a co-located table the map goes that others have too."""
    plain = keyspaces.dropped_table

    def with_map(image: Image, table: Table) -> Iterable[AnyFact]:
        yield from plain(image, table)
        if table.base_table_id:
            yield from keyspaces._dropped_placement(image, table.placement)

    patch.function(plain, with_map)


@planted(STORY)
def base_is_dropped_under_the_others(patch: Patch) -> None:
    """A table is dropped although others have its tablets."""
    patch.attribute(keyspaces, "check_alone", lambda image, table: None)


# Known bugs of switched off balancing: what moves all the same, what is cancelled with it, when
# it ends.


@planted(STORY)
def balancer_moves_a_table_that_is_off(patch: Patch) -> None:
    """Neither the balancer's plan nor the log's decision heeds that balancing is off."""
    patch.function(proposals.switched_off, lambda image, now_ms: {})
    patch.function(schema.check_balancing, lambda image, actor, table, from_node="": None)


@planted(STORY)
def switch_that_has_expired_stays_off(patch: Patch) -> None:
    """The time limit of a switch passes, and nothing moves."""
    patch.attribute(Off, "expired", lambda self, now_ms: False)


# Known bugs of shards: where in its node a tablet is, what goes from one to another, how they are
# evened.


_WITHIN: Final = RequestKind.INTRANODE_MIGRATION


def _stage_shards(patch: Patch, stage: TransitionState, **changes: Any) -> None:
    """Return the stage of migrations within nodes."""
    operation = OPERATIONS[_WITHIN]
    states = {**operation.states, stage: replace(operation.states[stage], **changes)}
    change_operation(patch, _WITHIN, states=states)


# --- what goes from a shard to another


@planted(STORY)
def shard_is_read_before_it_is_streamed(patch: Patch) -> None:
    """The new shard serves reads as soon as it is written to."""
    _stage_shards(patch, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


@planted(STORY)
def old_shard_keeps_its_rows(patch: Patch) -> None:
    """The rows on the previous shard are never deleted."""
    _stage_shards(patch, _STATE.CLEANUP, cleaned_by=None)


@planted(STORY)
def new_shard_keeps_what_it_got(patch: Patch) -> None:
    """A migration within a node that is undone leaves what was streamed."""
    _stage_shards(patch, _STATE.CLEANUP_TARGET, cleaned_by=None)


@planted(STORY)
def one_shard_is_written(patch: Patch) -> None:
    """While a tablet goes from a shard to another only the one that is read is written to."""
    plain = stores.write_partitions

    def first(image: Image, node_id: str, data_id: str, token: int) -> tuple[str, ...]:
        return plain(image, node_id, data_id, token)[:1]

    patch.function(plain, first)


@planted(STORY)
def cleanup_forgets_shards(patch: Patch) -> None:
    """A cleanup of one shard deletes the rows of all shards."""

    def of_plans(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
        open_, data = image.topology.of_session(order.session), image.schema.of_data(data_id)
        return open_ is not None and data is not None and data.placement in open_.plans

    patch.function(live_copies.is_to_be_deleted, of_plans)


@planted(STORY)
def moves_forget_the_shards_of_others(patch: Patch) -> None:
    """When one replica of a tablet goes elsewhere, the others are on the first shards of their nodes."""

    def forgetful(row: RangeReplicas, new: tuple[str, ...], to: Mapping[str, int]) -> TransitionRow:
        shards = tuple(to.get(node, 0) for node in new)
        return TransitionRow(row.start, row.end, row.reads, new, row.places(row.reads), shards)

    patch.function(transition.changing, forgetful)


@planted(STORY)
def siblings_on_other_shards_become_one(patch: Patch) -> None:
    """A merge waits until both tablets are on the same nodes, but not on the same shards."""

    def by_node(placement: Placement) -> Any:
        reads = np.sort(placement.reads(), axis=1)
        return np.flatnonzero((reads[::2] != reads[1::2]).any(axis=1))

    patch.function(maps.apart, by_node)


# Known bugs of tablets that get more replicas, or fewer.


_CHANGE: Final = RequestKind.TABLET_RF_CHANGE


def _served() -> Served:
    served = OPERATIONS[_CHANGE].served
    assert served is not None
    return served


@planted(STORY, rule="I5")
def who_keeps_a_tablet_is_given_nothing(patch: Patch) -> None:
    """A replica goes although those that stay may lack what it has acknowledged with another one."""
    change_operation(patch, RequestKind.TABLET_MIGRATION, receivers=gaining_nodes)


@planted(STORY, rule="I7")
def copies_count_before_they_are_there(patch: Patch) -> None:
    """The keyspace has its new replication at once, and its tablets have not."""
    served = _served()
    hasty = Served(missing=lambda image, request: None, step=served.step, goes_back=True)
    change_operation(patch, _CHANGE, served=hasty)


@planted(STORY)
def cancelled_change_is_left_half_way(patch: Patch) -> None:
    """Cancelling a change of replication ends it at once, with tablets half changed."""
    served = _served()
    change_operation(patch, _CHANGE, served=Served(missing=served.missing, step=served.step))
