"""The changes of a tablet's replicas that its map allows: a move, an addition, or a deletion."""

from stele.domain.base import Rejection
from stele.domain.context import unknown_node, unknown_tablet
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.operations import TabletMove, TabletRepair, TabletRestore
from stele.domain.model.schema import Table
from stele.domain.names import STAYS
from stele.domain.planner.cluster import keeps_list, strays, vacant
from stele.domain.ring.ranges import ANY, RangeReplicas
from stele.domain.tablets.copies import after_move, between, emptiest_racks, goal
from stele.domain.tablets.maps import row_of


def replicas_after(replicas: tuple[str, ...], move: TabletMove) -> tuple[str, ...]:
    """Return the tablet's replicas after the move.

    The new replica takes the position of the old one, or comes last if there is no old one.
    """
    if not move.from_node:
        return *replicas, move.to_node
    found = (move.to_node if node == move.from_node else node for node in replicas)
    return tuple(node for node in found if node)


def check_move(image: Image, table: Table, move: TabletMove) -> Rejection | None:
    """Return the reason for which a tablet of an existing table cannot get these replicas."""
    refused = _check_named(move) or (_check_target(image, move) if move.to_node else None)
    if refused is not None:
        return refused
    # The row is read only after the tablet's number is known to be valid.
    refused = check_tablet(image, table, move) or _check_row(image, table, move)
    if refused is not None:
        return refused
    row = row_of(image.ring.placements[table.placement], move.tablet)
    refused = _check_shard(image, row, move) if move.to_node else None
    if refused is not None or move.from_node == move.to_node:
        return refused
    return _check_places(image, table, row, move)


def _check_places(
    image: Image, table: Table, row: RangeReplicas, move: TabletMove
) -> Rejection | None:
    """Reject a move after which a dc or a rack has another number of replicas than its goal."""
    counted = _check_counts(image, table, row, move)
    if counted is not None:
        return counted
    dc = _dc(image, move.to_node or move.from_node)
    listed = goal(image, image.schema.by_id[table.keyspace_id]).racks.get(dc)
    if listed is not None:
        return _check_list(image, row, move, listed)
    if move.from_node and move.to_node:
        return _check_rack(image, row, move)
    return _check_new_rack(image, row, move) if move.to_node else None


def _check_counts(
    image: Image, table: Table, row: RangeReplicas, move: TabletMove
) -> Rejection | None:
    """Reject a move after which a dc has another number of replicas than its keyspace asks for."""
    if move.from_node and move.to_node:
        return _check_dc(image, move)
    check = _check_more if move.to_node else _check_fewer
    return check(image, table, row, move)


def _check_list(
    image: Image, row: RangeReplicas, move: TabletMove, racks: tuple[str, ...]
) -> Rejection | None:
    """Reject a move that does not bring the tablet closer to its rack list or keep it as close.

    A deletion takes a replica outside the list, and an addition goes to a listed rack without one.
    A move stays in its rack or does both.
    """
    nodes = image.membership.nodes
    dc = _dc(image, move.to_node or move.from_node)
    here = [node_id for node_id in row.reads if nodes[node_id].dc == dc]
    of = [nodes[node_id].rack for node_id in here]
    source = here.index(move.from_node) if move.from_node else None
    target = nodes[move.to_node].rack if move.to_node else None
    if target is None:
        allowed = source in strays(racks, of)
    elif source is None:
        allowed = target in vacant(racks, of)
    else:
        allowed = keeps_list(racks, of, source, target)
    if allowed:
        return None
    return Rejection(
        "rack_list",
        f"Tablets of {move.table} have one replica in each of the racks {', '.join(racks)} of '{dc}', and"
        f" tablet {move.tablet} has its own in {', '.join(sorted(of))}.",
        f"Name a node of {_where(racks, of, source)}: `stele keyspace alter"
        f" {move.table.partition('.')[0]} --replication {dc}=RACK,RACK` names other racks.",
        {"dc": dc, "racks": ",".join(racks)},
    )


def _where(racks: tuple[str, ...], of: list[str], source: int | None) -> str:
    free = sorted(vacant(racks, of))
    if free:
        return f"rack {' or '.join(free)}"
    return "another rack" if source is None else f"rack {of[source]}"


def check_tablet(
    image: Image, table: Table, asked: TabletMove | TabletRepair | TabletRestore
) -> Rejection | None:
    """Return the reason for which an existing table has no such tablet, or None."""
    if not table.placement:
        return no_tablets(asked.table)
    count = len(image.ring.placements[table.placement])
    if asked.of not in (0, count):
        return Rejection(
            "tablets_resized",
            f"Table {asked.table} now has {count} tablets, and had {asked.of} when this one was chosen.",
            "Ask again, for one of the new tablets.",
        )
    if not 0 <= asked.tablet < count:
        return unknown_tablet(asked.table, count, asked.tablet)
    return None


def no_tablets(table: str) -> Rejection:
    return Rejection(
        "no_tablets",
        f"Table {table} has no tablets: its keyspace is spread over the ring.",
        "Move nodes' tokens, or rebuild nodes; or make a keyspace with tablets.",
    )


def _check_named(move: TabletMove) -> Rejection | None:
    if move.from_node or move.to_node:
        return None
    return Rejection(
        "no_node",
        f"No node is named for tablet {move.tablet} of {move.table}.",
        "Name who is to give it, who is to get it, or both.",
    )


def _check_row(image: Image, table: Table, move: TabletMove) -> Rejection | None:
    """Require that a replica is on the source node and none is on the target node."""
    row = row_of(image.ring.placements[table.placement], move.tablet)
    if move.from_node and move.from_node not in row.reads:
        return _not_so(move, f"has no replica on '{move.from_node[:80]}'", row)
    if move.to_node in row.writes and move.to_node != move.from_node:
        return _not_so(move, f"has a replica on '{move.to_node[:80]}' already", row)
    return None


def _not_so(move: TabletMove, what: str, row: RangeReplicas) -> Rejection:
    places = [row.place(node) for node in row.writes]
    return Rejection(
        "other_replicas",
        f"Tablet {move.tablet} of {move.table} {what}.",
        f"It has them on {', '.join(places)}.",
        {"replicas": ",".join(places)},
    )


def _check_shard(image: Image, row: RangeReplicas, move: TabletMove) -> Rejection | None:
    """Require a shard that the node has, and a different one for a move within the node."""
    shards = image.membership.nodes[move.to_node].shards
    if not ANY <= move.to_shard < shards:
        return Rejection(
            "unknown_shard",
            f"Node '{move.to_node}' has shards 0 to {shards - 1}, and no {move.to_shard}.",
            "Name one of these, or none: then the tablet goes to the one with the fewest.",
            {"shards": str(shards)},
        )
    if move.from_node != move.to_node:
        return None
    if shards == 1:
        return Rejection(
            "one_shard",
            f"Node '{move.to_node}' has one shard, so no tablet goes to another one of it.",
            "Name another node.",
        )
    if move.to_shard == row.shard_of(move.to_node):
        return _not_so(move, f"is on shard {move.to_shard} of '{move.to_node}' already", row)
    return None


def _check_target(image: Image, move: TabletMove) -> Rejection | None:
    node = image.node(move.to_node)
    if node is None:
        return unknown_node(move.to_node[:80])
    going = node.node_id in image.requests.going()
    if node.takes_part() and node.state in STAYS and node.tokens and not going:
        # Without force, old rows on the target would mix with the streamed rows of the tablet.
        return None if move.force else _check_clean(node)
    state = "about to leave" if going else "excluded" if node.excluded else node.state
    why = "has no tokens" if node.state in STAYS and not node.tokens else f"is {state}"
    return Rejection(
        "no_room_for_tablets",
        f"Node '{node.node_id}' takes no tablets: it {why}.",
        "Name a member with tokens that stays.",
    )


def _check_clean(node: Node) -> Rejection | None:
    """Reject a node that still has rows of ranges that it no longer owns; see ``uncleaned``.

    With force the node takes a tablet back with these rows. After a forced exclusion they may be
    the last copies.
    """
    if not node.cleanup_since:
        return None
    return Rejection(
        "cleanup_pending",
        f"Node '{node.node_id}' takes no tablets yet: since epoch {node.cleanup_since} it has rows to delete"
        " that are no longer its own.",
        "Ask again once `stele nodes` shows no cleanup of it. With force it takes the tablet with those rows.",
    )


def _check_dc(image: Image, move: TabletMove) -> Rejection | None:
    """Reject a move between dcs: each dc keeps its number of replicas."""
    nodes = image.membership.nodes
    source, target = nodes[move.from_node].dc, nodes[move.to_node].dc
    if source == target:
        return None
    return Rejection(
        "other_dc",
        f"Node '{move.from_node}' is in dc '{source}', and '{move.to_node}' in '{target}'.",
        f"Name a node of '{source}': the keyspace says how many replicas each dc has.",
    )


def _check_rack(image: Image, row: RangeReplicas, move: TabletMove) -> Rejection | None:
    """Reject a move that gives a rack more replicas of the tablet than the fullest rack has now."""
    nodes = image.membership.nodes
    found = after_move(nodes, row.reads, move.from_node, move.to_node)
    if found.allowed:
        return None
    return Rejection(
        "rack_is_full",
        f"Rack '{nodes[move.to_node].rack}' of '{move.to_node}' would have {found.would_have} replicas of"
        f" tablet {move.tablet} of {move.table}, and no rack has more than {found.fullest} now.",
        "Name a node of another rack.",
    )


def _check_new_rack(image: Image, row: RangeReplicas, move: TabletMove) -> Rejection | None:
    """Require that a new replica goes to a rack with the fewest replicas, among racks with room."""
    nodes = image.membership.nodes
    target = nodes[move.to_node]
    racks = emptiest_racks(image, row.reads, target.dc)
    if target.rack in racks:
        return None
    return Rejection(
        "rack_is_full",
        f"Rack '{target.rack}' of '{move.to_node}' has more replicas of tablet {move.tablet} of {move.table}"
        f" than {', '.join(sorted(racks))} of the same dc.",
        "Name a node of another rack.",
    )


def _check_more(
    image: Image, table: Table, row: RangeReplicas, move: TabletMove
) -> Rejection | None:
    """Reject a replica beyond what the keyspace asks for, or will ask for, without ``beyond``."""
    dc = image.membership.nodes[move.to_node].dc
    held, most = _held(image, row, dc), between(image, image.schema.by_id[table.keyspace_id]).high
    if move.beyond or held < most.get(dc, 0):
        return None
    return Rejection(
        "replicas_exceeded",
        f"Tablet {move.tablet} of {move.table} has {held} replicas in '{dc}': so many its keyspace asks for.",
        f"{_how_many(move)}. With --beyond this one gets one more; the balancer deletes one again, unless it is"
        " off.",
        {"dc": dc, "replicas": str(held)},
    )


def _check_fewer(
    image: Image, table: Table, row: RangeReplicas, move: TabletMove
) -> Rejection | None:
    """Reject a deletion below what the keyspace asks for, or will ask for (I7)."""
    dc, bounds = _dc(image, move.from_node), between(image, image.schema.by_id[table.keyspace_id])
    held = _held(image, row, dc)
    if held > bounds.low.get(dc, 0) and len(row.reads) > bounds.fewest:
        return None
    return Rejection(
        "too_few_replicas",
        f"Tablet {move.tablet} of {move.table} has {held} replicas in '{dc}', {len(row.reads)} in all: no more"
        " than its keyspace asks for.",
        f"{_how_many(move)}; `stele tablet move` has one elsewhere.",
        {"dc": dc, "replicas": str(held)},
    )


def _how_many(move: TabletMove) -> str:
    keyspace = move.table.partition(".")[0]
    return (
        f"`stele keyspace alter {keyspace} --replication DC=COPIES` says how many all are to have"
    )


def _held(image: Image, row: RangeReplicas, dc: str) -> int:
    return sum(_dc(image, node_id) == dc for node_id in row.reads)


def _dc(image: Image, node_id: str) -> str:
    return image.membership.nodes[node_id].dc
