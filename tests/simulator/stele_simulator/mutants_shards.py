"""Known bugs of shards: where in its node a tablet is, what goes from one to another, how they are evened."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from stele.agent import stores
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.transition import TransitionRow
from stele.domain.tablets import maps
from stele.domain.topology import live_copies
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, change_operation, planted

replace = msgspec.structs.replace
_STATE = TransitionState
_WITHIN: Final = RequestKind.INTRANODE_MIGRATION


def _stage(patch: Patch, stage: TransitionState, **changes: Any) -> None:
    """Return the stage of migrations within nodes."""
    operation = OPERATIONS[_WITHIN]
    states = {**operation.states, stage: replace(operation.states[stage], **changes)}
    change_operation(patch, _WITHIN, states=states)


# --- what goes from a shard to another


@planted(STORY)
def shard_is_read_before_it_is_streamed(patch: Patch) -> None:
    """The new shard serves reads as soon as it is written to."""
    _stage(patch, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


@planted(STORY, rule="I5")
def shard_is_not_streamed(patch: Patch) -> None:
    """Only nodes that did not have the tablet are given its data."""
    patch.attribute(TransitionRow, "receiving", TransitionRow.coming)


@planted(STORY)
def old_shard_keeps_its_rows(patch: Patch) -> None:
    """The rows on the previous shard are never deleted."""
    _stage(patch, _STATE.CLEANUP, cleaned_by=None)


@planted(STORY)
def new_shard_keeps_what_it_got(patch: Patch) -> None:
    """A migration within a node that is undone leaves what was streamed."""
    _stage(patch, _STATE.CLEANUP_TARGET, cleaned_by=None)


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


# --- how shards are evened out
