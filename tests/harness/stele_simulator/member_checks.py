"""The invariants of who is a member, and of what is left when some are declared dead."""

from typing import Final

from stele.domain.image import Image
from stele.domain.model.schema import owner_of
from stele.domain.names import TABLET_MAP, NodeState, RequestKind, RequestStatus
from stele_simulator import ranges_in_use as in_use
from stele_simulator.violation import require

_IN_VAIN: Final = (RequestStatus.FAILED, RequestStatus.CANCELLED)


def check_excluded(before: Image, after: Image) -> None:
    """A node is declared dead by a request that is not done, and stays so until it has left."""
    declared = {n for request in before.requests.unfinished() for n in request.dead_nodes}
    for node_id, node in after.membership.nodes.items():
        old = before.node(node_id)
        since = 0 if old is None else old.excluded_since
        require(
            not node.excluded_since or node.excluded_since == since or node_id in declared,
            "I10",
            "nodes are excluded whom a request declares dead",
            f"epoch {after.epoch} excludes {node_id}; declared are {sorted(declared)}",
        )
        require(
            not since or node.excluded_since == since or node.state is NodeState.LEFT,
            "I6",
            "who is excluded stays so until it has left",
            f"epoch {after.epoch} makes {node_id} {node.state}, excluded since {node.excluded_since}",
        )


def check_node_states(image: Image) -> None:
    """Only nodes with an operation are in a transitional state. A rejected node never joins again."""
    working = {n for transition in image.topology.open() for n in transition.nodes()}
    waiting = {request.node_id for request in image.requests.pending()}
    for node_id, node in image.membership.nodes.items():
        request = image.request(node.request_id)
        if node_id in working:
            continue
        allowed = {NodeState.NORMAL, NodeState.LEFT}
        if node_id in waiting:
            allowed.add(NodeState.NONE)
        if request is not None and request.node_id == node_id and request.status in _IN_VAIN:
            asked_to_join = request.kind in (RequestKind.JOIN, RequestKind.REPLACE)
            allowed -= {NodeState.NORMAL} if asked_to_join else set()
        require(
            node.state in allowed,
            "I10",
            f"{node_id}, for which no operation is under way, is {' or '.join(sorted(allowed))}",
            f"it is {node.state} at epoch {image.epoch}",
        )


def check_somebody_stays(before: Image, after: Image) -> None:
    """Of the nodes that serve reads now or later, at least one is not declared dead."""
    if after.membership.excluded() <= before.membership.excluded():
        return
    readers = {
        node
        for placement in after.ring.placements.values()
        for row in placement.rows
        for node in (*row.reads, *row.other)
    }
    readers = readers or {*after.membership.ring_tokens().values()}
    require(
        bool(readers - after.membership.excluded()),
        "I10",
        "somebody who has data is not declared dead",
        f"epoch {after.epoch} leaves none of {sorted(readers)}",
    )


def check_can_be_read(before: Image, after: Image) -> None:
    """I7: no range loses its quorum by moving to nodes that are declared dead, neither by an operation nor
    because its keyspace or table is new. A co-located range is on the same nodes as its base table's.
    """
    dead = after.membership.excluded()
    if not dead:
        return
    known = {owner_of(data.data_id): data.data_id for data in before.schema.all_data()}
    for data in after.schema.all_data():
        one = in_use.placement_of(before, known.get(owner_of(data.data_id), ""))
        if one is None and data.placement.startswith(TABLET_MAP):
            one = before.ring.placements.get(data.placement)
        two = in_use.placement_of(after, data.data_id)
        if two is None or two is one:
            continue
        for row in two.rows:
            older = () if one is None else one.overlapping(in_use.range_of(row))
            require(
                _has_quorum(row.reads, dead) or any(not _has_quorum(r.reads, dead) for r in older),
                "I7",
                f"({row.start}, {row.end}] of {data.name} has a quorum without {sorted(dead)}",
                f"epoch {after.epoch} gives it to {row.reads}",
            )


def _has_quorum(replicas: tuple[str, ...], dead: frozenset[str]) -> bool:
    return not replicas or len({*replicas} - dead) >= in_use.majority(len(replicas))
