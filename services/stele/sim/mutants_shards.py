"""Known bugs of shards: where in its node a tablet is, what goes from one to another, how they are evened."""

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any, Final

import msgspec
import numpy as np

from stele.agent import partitions
from stele.domain.balance import allocation
from stele.domain.balance.places import ShardPlaces
from stele.domain.balance.state import State
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.transition import TransitionRow
from stele.domain.schema.facts import Keyspace
from stele.domain.tablets import maps, sizing
from stele.domain.tablets.sizing import Scope
from stele.domain.topology import wanted
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations import base
from stele.domain.topology.operations.base import Sources
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.patching import Patch
from stele.sim.planting import change_operation

replace = msgspec.structs.replace
_STATE = TransitionState
_WITHIN: Final = RequestKind.INTRANODE_MIGRATION


def _stage(patch: Patch, stage: TransitionState, **changes: Any) -> None:
    """Of migrations within nodes alone."""
    operation = OPERATIONS[_WITHIN]
    states = {**operation.states, stage: replace(operation.states[stage], **changes)}
    patch.item(OPERATIONS, _WITHIN, replace(operation, states=states))


# --- what goes from a shard to another


def shard_is_read_before_it_is_streamed(patch: Patch) -> None:
    """The new shard serves reads as soon as it is written to."""
    _stage(patch, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


def shard_is_not_streamed(patch: Patch) -> None:
    """Only nodes that did not have the tablet are given its data."""
    patch.attribute(TransitionRow, "receiving", TransitionRow.coming)


def old_shard_keeps_its_rows(patch: Patch) -> None:
    """Nobody deletes what the shard has that was left."""
    _stage(patch, _STATE.CLEANUP, cleaned_by=None)


def new_shard_keeps_what_it_got(patch: Patch) -> None:
    """A migration within a node that is undone leaves what was streamed."""
    _stage(patch, _STATE.CLEANUP_TARGET, cleaned_by=None)


def one_shard_is_written(patch: Patch) -> None:
    """While a tablet goes from a shard to another only the one that is read is written to."""
    plain = partitions.write_partitions

    def first(image: Image, node_id: str, data_id: str, token: int) -> tuple[str, ...]:
        return plain(image, node_id, data_id, token)[:1]

    patch.function(plain, first)


def cleanup_forgets_shards(patch: Patch) -> None:
    """Who is to delete what a shard has left deletes it of all shards."""

    def of_plans(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
        open_, data = image.topology.of_session(order.session), image.schema.of_data(data_id)
        return open_ is not None and data is not None and data.placement in open_.plans

    patch.function(wanted.left_behind, of_plans)


def moves_forget_the_shards_of_others(patch: Patch) -> None:
    """When one replica of a tablet goes elsewhere, the others are on the first shards of their nodes."""

    def forgetful(row: RangeReplicas, new: tuple[str, ...], to: Mapping[str, int]) -> TransitionRow:
        shards = tuple(to.get(node, 0) for node in new)
        return TransitionRow(row.start, row.end, row.reads, new, row.places(row.reads), shards)

    patch.function(transition.changing, forgetful)


def siblings_on_other_shards_become_one(patch: Patch) -> None:
    """A merge waits until both tablets are on the same nodes, be it on any shards of these."""

    def by_node(placement: Placement) -> Any:
        reads = np.sort(placement.reads(), axis=1)
        return np.flatnonzero((reads[::2] != reads[1::2]).any(axis=1))

    patch.function(maps.apart, by_node)


def force_gives_up_what_the_node_itself_has(patch: Patch) -> None:
    """A shard is content with nothing when somebody accepts that dead nodes' data is lost."""
    plain = base.sources_of_gained

    def with_less(
        image: Image, moving: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
    ) -> Sources | None:
        found = plain(image, moving, row, node_id, unavailable)
        left = {*row.old} - base.given_up(image, moving) - {node_id}
        if found is None or not base.given_up(image, moving):
            return found
        return found[0], min(found[1], len(left))

    change_operation(patch, _WITHIN, sources=with_less)


# --- how shards are evened out


def new_tables_fill_the_first_shard(patch: Patch) -> None:
    """A new table's replicas are all on the first shards of their nodes."""
    patch.attribute(allocation, "_shards_for", lambda state, node: np.zeros_like(node))


def sizing_takes_nodes_for_shards(patch: Patch) -> None:
    """How many tablets a table has goes by the number of nodes."""
    plain = sizing.scopes_of

    def by_nodes(image: Image, keyspace: Keyspace, held: Mapping[str, int]) -> dict[str, Scope]:
        nodes = Counter(node.dc for node in image.membership.holding().values())
        return {dc: replace(s, shards=nodes[dc]) for dc, s in plain(image, keyspace, held).items()}

    patch.function(plain, by_nodes)


def streams_are_counted_for_the_first_shard(patch: Patch) -> None:
    """Whatever shard a replica is on, its streams take the room of the node's first."""
    patch.attribute(State, "slot", lambda state, unit, node: int(state.first_shard[node]))


def tables_that_are_off_are_evened_within_nodes(patch: Patch) -> None:
    """Where balancing is off, tablets go from shard to shard all the same."""

    def anywhere(places: ShardPlaces, replica: int, column: int) -> bool:
        return not places.waits(replica)

    patch.attribute(ShardPlaces, "fits", anywhere)


SHARD_MUTANTS: Final = (
    shard_is_read_before_it_is_streamed,
    shard_is_not_streamed,
    old_shard_keeps_its_rows,
    new_shard_keeps_what_it_got,
    one_shard_is_written,
    cleanup_forgets_shards,
    moves_forget_the_shards_of_others,
    siblings_on_other_shards_become_one,
)
SHARD_TEST_MUTANTS: Final = (
    force_gives_up_what_the_node_itself_has,
    new_tables_fill_the_first_shard,
    sizing_takes_nodes_for_shards,
    streams_are_counted_for_the_first_shard,
    tables_that_are_off_are_evened_within_nodes,
)
