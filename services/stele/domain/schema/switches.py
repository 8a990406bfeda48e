"""Where balancing is switched off: for the cluster, a keyspace or a table; the widest switch comes first.

Co-located tables have one tablet map, so what switches one of them off leaves all of them where they are.

The log knows no time, so to it a switch is off until a command switches it on. Who looks by a clock counts one
whose time limit has passed as on.
"""

from collections.abc import Iterator

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.names import BALANCER, JOINING
from stele.domain.schema.facts import Off, SchemaImage, Table


def all_off(schema: SchemaImage) -> list[Off]:
    """By name, those of what is being dropped not."""
    keyspaces = [k for k in schema.by_id.values() if not k.dropped_version]
    tables = [t for t in schema.tables.values() if not schema.data_of(t).dropped_version]
    found = [Off(keyspace.name, keyspace.balancing) for keyspace in keyspaces]
    found += [Off(schema.full_name(table), table.balancing) for table in tables]
    return [off for off in (Off("", schema.balancing), *sorted(found)) if off.balancing.off_since]


def off_for(schema: SchemaImage, table: Table, now_ms: int = 0) -> Iterator[Off]:
    """The switches that keep a table's tablets where they are; those of tables with the same map come last.
    Without a time, those that have expired too.
    """
    keyspace = schema.by_id[table.keyspace_id]
    group = sorted(schema.group_of(table), key=lambda other: other != table)
    for off in (
        Off("", schema.balancing),
        Off(keyspace.name, keyspace.balancing),
        *(Off(schema.full_name(each), each.balancing) for each in group),
    ):
        if off.balancing.off_since and not off.expired(now_ms):
            yield off


def gives_all_away(image: Image, node_id: str) -> bool:
    """Its tablets leave it whether balancing is on or off."""
    node = image.node(node_id)
    if node is None or not node.takes_part() or node_id in image.requests.going():
        return True
    return not (node.tokens or node.state in JOINING)


def check_balancing(
    image: Image, actor: str, table: Table, from_node: str = ""
) -> Rejection | None:
    """The balancer may not touch a table that is off, but for what ``from_node`` gives away. Others may."""
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
