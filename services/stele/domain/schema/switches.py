"""Balancing switches that are off: of the cluster, a keyspace or a table, the widest first.

Co-located tables share one tablet map, so a switch of one of them stops the moves of all. The log
has no clock, so for the log a switch is off until a command switches it on. Callers with a clock
treat an expired switch as on.
"""

from collections.abc import Iterator

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.names import BALANCER, JOINING
from stele.domain.schema.model import Off, SchemaImage, Table


def all_off(schema: SchemaImage) -> list[Off]:
    """Return the switches that are off, by name. Objects that are being dropped are left out."""
    keyspaces = [k for k in schema.by_id.values() if k.balancing.off_since]
    tables = [t for t in schema.tables.values() if t.balancing.off_since]
    found = [Off(k.name, k.balancing) for k in keyspaces if not k.dropped_version]
    tables = [t for t in tables if not schema.data_of(t).dropped_version]
    found += [Off(schema.full_name(t), t.balancing) for t in tables]
    cluster = [Off("", schema.balancing)] if schema.balancing.off_since else []
    return [*cluster, *sorted(found)]


def off_for(schema: SchemaImage, table: Table, now_ms: int = 0) -> Iterator[Off]:
    """Yield the switches that stop moves of a table's tablets.

    Those of co-located tables come last.

    Without ``now_ms`` expired switches are included.
    """
    keyspace = schema.by_id[table.keyspace_id]
    # False sorts first, so the table's own switch comes before those of its group.
    group = sorted(schema.group_of(table), key=lambda other: other != table)
    for off in (
        Off("", schema.balancing),
        Off(keyspace.name, keyspace.balancing),
        *(Off(schema.full_name(each), each.balancing) for each in group),
    ):
        if off.balancing.off_since and not off.expired(now_ms):
            yield off


def gives_all_away(image: Image, node_id: str) -> bool:
    """Return True if the node must become empty. Balancing switches do not stop that."""
    node = image.node(node_id)
    if node is None or not node.takes_part() or node_id in image.requests.going():
        return True
    return not (node.tokens or node.state in JOINING)


def check_balancing(
    image: Image, actor: str, table: Table, from_node: str = ""
) -> Rejection | None:
    """Reject a command of the balancer on a table that is off. Other actors may send it.

    A move from the node ``from_node`` is allowed if that node must become empty.
    """
    off = next(off_for(image.schema, table), None)
    if off is None or actor != BALANCER:
        return None
    if from_node and gives_all_away(image, from_node):
        return None
    return Rejection(
        "balancing_off",
        f"{off.words().capitalize()} since epoch {off.balancing.off_since}.",
        f"{off.remedy()} switches it on.",
        {"name": off.name, "off_since": str(off.balancing.off_since)},
    )
