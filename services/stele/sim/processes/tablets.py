"""What holds of tablets at rest, counted from the rows of their maps. None of the balancer's rules is asked."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from stele.domain.image import Image
from stele.domain.schema.facts import Table
from stele.sim.kernel import us

if TYPE_CHECKING:
    from stele.sim.processes.world import World

QUIET_S: Final = 12.0
"""So long the balancer must ask for nothing. It looks once a second, and nodes that move tablets tell of their
loads within seconds."""
MOST_APART: Final = 2
"""Tablets weigh by their bytes, which differ."""


def unbalanced(world: "World", image: Image) -> str:
    """What is amiss with some tablet, or that the balancer goes on moving them."""
    for table in image.schema.tables.values():
        if table.placement and not table.dropped_version:
            found = _misplaced(world, image, table)
            if found:
                return found
    since_us = world.kernel.now_us - world.witness.balanced_us
    if world.balancers and since_us < us(QUIET_S):
        return f"the balancer asked for something {since_us / 1e6:.1f} s ago"
    return ""


def _misplaced(world: "World", image: Image, table: Table) -> str:
    keyspace = image.schema.by_id[table.keyspace_id]
    racks = {node.node_id: node.rack for node in world.nodes}
    wanted = sum(keyspace.replication.values())
    held = Counter[str]()
    for row in image.ring.placements[table.placement].rows:
        where = f"({row.start}, {row.end}] of {table.name} is on {', '.join(row.writes)}"
        if row.other or row.other_shards or sorted(row.reads) != sorted(row.writes):
            return f"{where}, and half way"
        if len({*row.writes}) != wanted or len(row.writes) != wanted:
            return f"{where}, of which {wanted} are asked for"
        gone = sorted({*row.writes} - racks.keys())
        if gone:
            return f"{where}, but there is no {gone[0]}"
        found = {racks[node] for node in row.writes}
        if len(found) < min(wanted, len({*racks.values()})):
            return f"{where}, in {', '.join(sorted(found))}"
        held.update(row.writes)
    return _uneven(held, racks, wanted, table)


def _uneven(held: Counter[str], racks: dict[str, str], wanted: int, table: Table) -> str:
    """Where each rack has one replica of each tablet, or there is one rack, all nodes have about as many."""
    by_rack: dict[str, list[str]] = {}
    for node, rack in racks.items():
        by_rack.setdefault(rack, []).append(node)
    if len(by_rack) not in (1, wanted):
        return ""
    for rack, nodes in sorted(by_rack.items()):
        counts = {node: held[node] for node in sorted(nodes)}
        if max(counts.values()) - min(counts.values()) > MOST_APART:
            return f"the tablets of {table.name} in {rack} are {counts}"
    return ""
