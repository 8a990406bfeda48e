"""Checks whether ordered work is still valid in the present image."""

from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range, upper_bound
from stele.domain.topology.live_copies import is_short_of_writes


def is_wanted(image: Image, order: Order) -> bool:
    """Return whether the order's session is open, in a transition or as the node's cleanup."""
    if image.topology.of_session(order.session) is not None:
        return True
    node = image.node(order.node_id)
    return node is not None and bool(order.session) and node.cleanup_session() == order.session


def left_behind(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
    """Return whether the order's transition asks the node to delete this range of a shard.

    The shard must neither read nor write it, and its live replicas must have every acknowledged
    write.
    """
    transition, data = image.topology.of_session(order.session), image.schema.of_data(data_id)
    if transition is None or data is None or data.placement not in transition.plans:
        return False
    rows = image.ring.placements[data.placement].overlapping(range_)
    excluded = image.membership.excluded()
    return not any(
        shard in row.shards_of(order.node_id) or is_short_of_writes(row, excluded) for row in rows
    )


def is_foreign(image: Image, node_id: str, data_id: str, range_: Range, shard: int = 0) -> bool:
    """Return whether no placement and no open plan gives any of the range of this data to the
    node's shard.

    Plans count in both directions, there and back. A range that the node will lose is still its own
    until the rows change for the last time. All data of a dropped keyspace, and truncated data, is
    foreign to every node.
    """
    keyspace = image.schema.of_data(data_id)
    if keyspace is None:
        return True
    rows = image.ring.placements[keyspace.placement].overlapping(range_)
    if any(shard in row.shards_of(node_id) for row in rows):
        return False
    # An open plan counts as well: the node may be about to receive this range.
    end = upper_bound(range_.end)
    return not any(
        (row.places_before() if transition.mark else row.places_after()).get(node_id) == shard
        for transition in image.topology.transitions.values()
        if keyspace.placement in transition.plans
        for row in transition.plans[keyspace.placement].rows
        if row.start < end and range_.start < upper_bound(row.end)
    )
