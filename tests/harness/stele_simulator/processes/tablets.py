"""Rules for tablets at rest, counted from the rows of their maps, without the balancer's rules."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from stele.domain.image import Image
from stele.domain.model.schema import Keyspace, Table
from stele.runtime.answers.tablet_balancer import BalanceState
from stele_simulator.kernel import us
from stele_simulator.processes.balancing import BalancerMachine

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

QUIET_S: Final = 12.0
"""So long the balancer must ask for nothing. It looks once a second, and nodes that move tablets tell of their
loads within seconds."""
MOST_APART: Final = 2
"""Tablets weigh by their bytes, which differ."""


def unbalanced(world: "World", image: Image) -> str:
    """Return what is wrong with a tablet, or that the balancer still moves them."""
    for table in image.schema.tables.values():
        if table.placement and not table.dropped_version:
            found = _misplaced(world, image, table)
            if found:
                return found
    since_us = world.kernel.now_us - world.witness.balanced_us
    if world.balancers and since_us < us(QUIET_S):
        return f"the balancer asked for something {since_us / 1e6:.1f} s ago"
    return next(filter(None, (_unsaid(world, each) for each in world.balancers)), "")


def _unsaid(world: "World", machine: BalancerMachine) -> str:
    """Return missing statements of the balancer, when all nodes run and no work is left."""
    balancer = machine.balancer
    assert balancer is not None and machine.loads is not None
    world.runs(machine)
    try:
        loads = machine.loads.table(balancer.image)
        answer = balancer.answer_for(balancer.image, balancer.conditions(loads))
    finally:
        world.runs(None)
    if answer.down:
        return f"the balancer takes {', '.join(answer.down)} for down"
    if answer.state is not BalanceState.BALANCED:
        return f"the balancer says that the tablets are {answer.state}, {answer.stuck}"
    return ""


def _misplaced(world: "World", image: Image, table: Table) -> str:
    keyspace = image.schema.by_id[table.keyspace_id]
    racks = {node.node_id: (node.dc, node.rack) for node in world.nodes}
    held = Counter[str]()
    for row in image.ring.placements[table.placement].rows:
        where = f"({row.start}, {row.end}] of {table.name} is on {', '.join(row.writes)}"
        if row.other or row.other_shards or sorted(row.reads) != sorted(row.writes):
            return f"{where}, and half way"
        gone = sorted({*row.writes} - racks.keys())
        if gone:
            return f"{where}, but there is no {gone[0]}"
        if len({*row.writes}) != len(row.writes):
            return f"{where}, twice on a node"
        for dc in sorted({dc for dc, _ in racks.values()}):
            wanted = keyspace.replication.get(dc, 0)
            found = [racks[node][1] for node in row.writes if racks[node][0] == dc]
            most = len({rack for its, rack in racks.values() if its == dc})
            if len(found) != wanted or len({*found}) < min(wanted, most):
                return f"{where}, in {dc} in {', '.join(sorted(found))}; {wanted} are asked for"
        held.update(row.writes)
    return _uneven(held, racks, keyspace, table)


def _uneven(
    held: Counter[str], racks: dict[str, tuple[str, str]], keyspace: Keyspace, table: Table
) -> str:
    """Where each rack has one replica of each tablet, or there is one rack, all nodes have about as many."""
    for dc, wanted in sorted(keyspace.replication.items()):
        by_rack: dict[str, list[str]] = {}
        for node, (its, rack) in racks.items():
            if its == dc:
                by_rack.setdefault(rack, []).append(node)
        if len(by_rack) not in (1, wanted):
            continue
        for rack, nodes in sorted(by_rack.items()):
            counts = {node: held[node] for node in sorted(nodes)}
            if max(counts.values()) - min(counts.values()) > MOST_APART:
                return f"the tablets of {table.name} in {rack} of {dc} are {counts}"
    return ""
