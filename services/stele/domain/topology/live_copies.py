"""Live copies: replicas on nodes that are not excluded. Two rules keep enough of them.

*Acknowledged writes.* After an exclusion, each range must keep enough live replicas that no quorum
exists without one of them. Together they then have every acknowledged write. Otherwise the
exclusion needs ``force`` (``check_loss``).

*Rows.* Nodes that lost a range keep its rows while its live replicas are fewer than that
(``may_lack_writes``, ``tablets_may_lack_writes``). A quorum would be too strict: with two replicas
and one of them dead, cleanups would wait for the removal of the dead node, and tablets could not
move away from it to nodes that still have to clean up.

The replicas of a range are those that serve its reads. A transition that goes back will read from
the old ones again, so ``losses`` counts these.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final, NamedTuple

import msgspec
import numpy as np

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import TABLET_MAP
from stele.domain.ring.columns import PAD
from stele.domain.ring.placement import WRITES, Placement, Which, apply, ends_of, rows_of, text_of
from stele.domain.ring.quorum import blocking, quorum_of
from stele.domain.ring.ranges import Range, RangeReplicas, upper_bound
from stele.domain.ring.transition import rollback
from stele.domain.topology.operations.table import OPERATIONS, excluded_receivers, way_back

MOST_NAMED: Final = 3
"""Largest number of ranges of a placement that a text lists one by one."""

replace = msgspec.structs.replace


class Short(NamedTuple):
    """Ranges of a placement with too few live replicas, and their indexes in it."""

    placement: str
    places: tuple[int, ...]
    rows: tuple[RangeReplicas, ...]

    def dead(self, excluded: Set[str]) -> frozenset[str]:
        """Return which of these nodes are replicas."""
        return frozenset(n for row in self.rows for n in row.writes if n in excluded)


def may_lack_writes(image: Image) -> bool:
    """Return whether the live replicas of a range may lack acknowledged writes.

    Then no node deletes rows that it does not own. The last copy of such a range may be on a node
    that lost it, and the log does not contain on which.
    """
    return any(short_of_writes(image, image.membership.excluded()))


def tablets_may_lack_writes(image: Image, transition: Transition) -> bool:
    """Return the same for the tablets of a transition, whose former replicas are known."""
    excluded, placements = image.membership.excluded(), image.ring.placements
    return any(
        is_short_of_writes(placements[name].row_for(row.end), excluded)
        for name, plan in transition.plans.items()
        for row in plan.rows
    )


def is_short_of_writes(row: RangeReplicas, excluded: Set[str]) -> bool:
    """Return whether the live replicas of a range may lack acknowledged writes."""
    live = len({*row.reads} - excluded)
    return live < len(row.reads) and live < blocking(len(row.reads))


def short_of_writes(image: Image, excluded: Set[str]) -> Iterator[Short]:
    """Yield the ranges whose live replicas may lack writes if exactly these nodes were excluded."""
    return _all_short(image, excluded, blocking)


def short_of_quorum(image: Image, excluded: Set[str]) -> Iterator[Short]:
    """Yield the ranges without a quorum of live replicas if exactly these nodes were excluded."""
    return _all_short(image, excluded, quorum_of)


def _all_short(image: Image, excluded: Set[str], needed: Callable[[int], int]) -> Iterator[Short]:
    for name, placement in _with_data(image) if excluded else ():
        yield from _chosen(name, placement, _short(placement, excluded, needed))


def losses(image: Image, dead: Set[str]) -> tuple[Short, ...]:
    """Return the ranges of these nodes that may lack acknowledged writes once they are excluded
    too.
    """
    if not dead:
        return ()
    after = _excluding(image, dead)
    # The exclusion itself may force transitions to go back.
    back = [t for t in after.topology.open() if _goes_back(after, t)]
    found = list[Short]()
    for name, now in _with_data(after):
        placement = now
        for plan in (t.plans[name] for t in back if name in t.plans):
            # Reads will return to the old replicas, so these must have the acknowledged writes.
            change = rollback(placement, plan, 0)
            placement = apply(placement, change.removed, change.added)
        short = _short(placement, after.membership.excluded(), blocking)
        found += _chosen(name, placement, short & _writes_to(placement, dead))
    return tuple(found)


def check_loss(image: Image, request: Request, dead: Set[str]) -> Rejection | None:
    """Refuse to exclude the dead nodes of a request if acknowledged writes may be lost."""
    lost = () if request.force else losses(image, dead)
    if not lost:
        return None
    excluded = image.membership.excluded() | dead
    names = sorted(frozenset[str]().union(*(each.dead(excluded) for each in lost)))
    count = sum(len(each.rows) for each in lost)
    return data_would_be_lost(image, request, described(image, lost), count, names)


def data_would_be_lost(
    image: Image, request: Request, ranges: str, count: int, dead: Sequence[str]
) -> Rejection:
    """Return the refusal to give up writes, with the nodes to start and the way to use force.

    ``ranges`` are ``count`` ranges in words.
    """
    startable = [name for name in dead if name not in image.membership.excluded()]
    how = "ask again with force"
    if request.replaced_id:  # STELE_REPLACE_NODE has no force
        command = f"`stele replace {request.replaced_id} URL --force`"
        how = f"start a new node with STELE_JOIN=no and use {command}"
    operation = OPERATIONS[request.kind]
    if operation.is_of_nodes and not hasattr(operation.command, "force"):
        how = f"first remove or replace them with force, as in `stele remove {' '.join(dead)} --force`"
    start = f"Start {' or '.join(startable)}, or {how}"
    how = start if startable else f"{how[0].upper()}{how[1:]}"
    return Rejection(
        "data_would_be_lost",
        f"{ranges} may have acknowledged writes that only {only_have(dead)}.",
        f"{how}: these writes are then given up.",
        {"ranges": str(count), "dead": ", ".join(dead)},
    )


def only_have(names: Sequence[str]) -> str:
    """Return ``n5 has`` or ``n4, n5 and n6 have``."""
    *others, last = names
    return f"{', '.join(others)} and {last} have" if others else f"{last} has"


def described(image: Image, found: tuple[Short, ...]) -> str:
    """Return the ranges or tablets in words, by keyspace or table."""
    return " and ".join(_described(image, each) for each in found)


def _described(image: Image, short: Short) -> str:
    schema, count = image.schema, len(short.rows)
    more = ", ..." if count > MOST_NAMED else ""
    if short.placement.startswith(TABLET_MAP):
        named = ", ".join(map(str, short.places[:MOST_NAMED]))
        return f"{count} tablets ({named}{more}) of {schema.using(short.placement)[0].name}"
    named = ", ".join(map(text_of, short.rows[:MOST_NAMED]))
    keyspaces = sorted(k.name for k in schema.by_id.values() if k.placement == short.placement)
    return f"{count} ranges ({named}{more}) of {', '.join(keyspaces)}"


def _with_data(image: Image) -> Iterator[tuple[str, Placement]]:
    for name in sorted(image.ring.placements):
        if image.schema.using(name):
            yield name, image.ring.placement(name)


def _goes_back(image: Image, transition: Transition) -> bool:
    if transition.mark:
        return True
    return bool(excluded_receivers(image, transition)) and way_back(image, transition) is not None


def _excluding(image: Image, dead: Set[str]) -> Image:
    nodes = image.membership.nodes
    for node_id in dead:
        nodes = nodes.set(node_id, replace(nodes[node_id], excluded_since=image.epoch))
    return replace(image, membership=replace(image.membership, nodes=nodes))


def _writes_to(placement: Placement, nodes: Set[str]) -> Which:
    """Return the ranges that one of these nodes writes.

    After reads have moved, an old replica may have writes that the new ones lost with a dead node.
    """
    names, writes = placement.nodes.names, placement.table.all().values[WRITES]
    # PAD, which is -1, is no node.
    numbers = [number for number, name in enumerate(names) if name in nodes]
    written: Which = np.any(np.isin(writes, numbers), axis=1)
    return written


def _short(placement: Placement, dead: Set[str], needed: Callable[[int], int]) -> Which:
    """Return the ranges with dead replicas that have fewer than ``needed`` live ones."""
    counts = (placement.reads() != PAD).sum(axis=1)
    least = np.array([needed(n) for n in range(int(counts.max(initial=0)) + 1)])
    died = placement.read_on(dead).sum(axis=1)
    short: Which = (died > 0) & (counts - died < least[counts])
    return short


def _chosen(name: str, placement: Placement, which: Which) -> Iterator[Short]:
    if which.any():
        rows = placement.table.all()
        found = rows_of(rows.chosen(which), ends_of(rows.keys)[which], placement.nodes)
        yield Short(name, tuple(np.flatnonzero(which).tolist()), tuple(found))


# Checks whether ordered work is still valid in the present image.


def is_wanted(image: Image, order: Order) -> bool:
    """Return whether the order's session is open, in a transition or as the node's cleanup."""
    if image.topology.of_session(order.session) is not None:
        return True
    node = image.node(order.node_id)
    return node is not None and bool(order.session) and node.cleanup_session() == order.session


def is_to_be_deleted(
    image: Image, order: Order, data_id: str, range_: Range, shard: int = 0
) -> bool:
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
