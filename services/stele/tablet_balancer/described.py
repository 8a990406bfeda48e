"""The loads and limits of nodes, as responses describe them."""

from typing import NamedTuple

import numpy as np

from stele.domain.balance.evenness import evenness
from stele.domain.balance.planned import TableSpread
from stele.domain.balance.state import LEAVING, State
from stele.domain.image import Image
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.look import look
from stele.domain.tablets.maps import held_by
from stele.domain.tablets.measure import Measure
from stele.runtime.answers.tablet_balancer import BalancedNode, BalancedShard


class Described(NamedTuple):
    """The measure of balance, the nodes, the replicas to move away, and the spread of each table.

    ``nodes`` are those that take tablets or hold some. ``to_leave`` is the number of replicas on
    nodes that must become empty.
    """

    measure: Measure
    nodes: dict[str, BalancedNode]
    to_leave: int
    tables: tuple[TableSpread, ...]


def described(image: Image, conditions: Conditions, now_s: float) -> Described:
    """Describe the balance of an image. ``now_s`` is a time of the clock that stamped the loads."""
    what, loads = look(image, conditions).what, conditions.loads
    spread = evenness(what.state, what.names)
    even = {node.id: node for node in spread.nodes}
    place = {node_id: at for at, node_id in enumerate(what.node_ids)}
    nodes = {
        node_id: BalancedNode(
            tablets=tablets,
            size_bytes=even[node_id].size_bytes if loads.by_node and node_id in even else None,
            capacity_bytes=loads.capacity_bytes(node_id),
            of_share=even[node_id].of_share if node_id in even else None,
            report_age_s=loads.age_s(node_id, now_s),
            rate=even[node_id].rate if loads.by_node and node_id in even else None,
            shards=_shards(what.state, place[node_id], known=bool(loads.by_node))
            if node_id in place
            else (),
        )
        for node_id, tablets in held_by(image).items()
    }
    leaving = np.isin(what.state.state, LEAVING)
    to_leave = int(what.state.count[:, leaving].sum())
    return Described(what.measure, nodes, to_leave, spread.tables)


def _shards(state: State, node: int, *, known: bool) -> tuple[BalancedShard, ...]:
    """Return the shards of a node. Bytes are the sums of its tablets' sizes as reported."""
    replicas, shards = state.members(node), int(state.shards[node])
    shard = state.shard.ravel()[replicas]
    sizes = np.nan_to_num(state.size[replicas // state.width])
    held = np.bincount(shard, minlength=shards).tolist()
    total = np.bincount(shard, sizes, shards).tolist()
    return tuple(
        BalancedShard(tablets=tablets, size_bytes=int(size_bytes) if known else None)
        for tablets, size_bytes in zip(held, total, strict=True)
    )
