"""Whether work that was ordered is still wanted by what the log says now."""

from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range, upper_bound


def is_wanted(image: Image, order: Order) -> bool:
    """A transition has the order's session open, or the node is to clean up under it."""
    if image.topology.of_session(order.session) is not None:
        return True
    node = image.node(order.node_id)
    return node is not None and bool(order.session) and node.cleanup_session() == order.session


def left_behind(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
    """True when the order's transition asks the node to delete this, and that shard neither reads nor writes
    it.
    """
    transition, data = image.topology.of_session(order.session), image.schema.of_data(data_id)
    if transition is None or data is None or data.placement not in transition.plans:
        return False
    rows = image.ring.placements[data.placement].overlapping(range_)
    return not any(shard in row.shards_of(order.node_id) for row in rows)


def is_foreign(image: Image, node_id: str, data_id: str, range_: Range, shard: int = 0) -> bool:
    """True when no placement, and no open plan on its way there or back, gives any of the range of this data to
    that shard of the node. What it is to lose it has by the rows, until these change for the last time.

    All data of a keyspace that is gone, or that was truncated away, is foreign to everybody.
    """
    keyspace = image.schema.of_data(data_id)
    if keyspace is None:
        return True
    rows = image.ring.placements[keyspace.placement].overlapping(range_)
    if any(shard in row.shards_of(node_id) for row in rows):
        return False
    end = upper_bound(range_.end)
    return not any(
        (row.places_before() if transition.mark else row.places_after()).get(node_id) == shard
        for transition in image.topology.transitions.values()
        if keyspace.placement in transition.plans
        for row in transition.plans[keyspace.placement].rows
        if row.start < end and range_.start < upper_bound(row.end)
    )
