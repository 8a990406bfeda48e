"""The present and the wanted number of a tablet's replicas by dc, and their racks where listed.

At rest each tablet has the replicas that its keyspace asks for. During a change of replication
(``topology.operations.replication``) it may have any number between the old and the new one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Keyspace, Replication, Table
from stele.domain.ring.placement import Placement

# The racks of a tablet's replicas.
#
# If a keyspace lists the racks of a dc, each of them has one replica. Otherwise no rack gets more
# than the fullest rack of its dc has.


class InRack(NamedTuple):
    """The replicas in the target's rack after a move, and those in the dc's fullest rack now."""

    would_have: int
    fullest: int

    @property
    def allowed(self) -> bool:
        return self.would_have <= self.fullest


def after_move(
    nodes: Mapping[str, Node], replicas: Sequence[str], source: str, target: str
) -> InRack:
    """Return the numbers for a move from one of the replicas to another node of its dc."""
    dc = nodes[target].dc
    racks = Counter(nodes[node_id].rack for node_id in replicas if nodes[node_id].dc == dc)
    fullest = max(racks.values())
    racks[nodes[source].rack] -= 1
    return InRack(racks[nodes[target].rack] + 1, fullest)


def emptiest_racks(image: Image, replicas: Sequence[str], dc: str) -> frozenset[str]:
    """Return the racks of a dc with the fewest of these replicas; a new one goes there.

    Only racks with another member that stays and has tokens count, even if that member is down.
    """
    nodes = image.membership.nodes
    held = Counter(nodes[node_id].rack for node_id in replicas if nodes[node_id].dc == dc)
    return fewest(held, {node.rack for node in room(image, dc) if node.node_id not in replicas})


def fewest(held: Mapping[str, int], racks: Iterable[str]) -> frozenset[str]:
    """Return the racks that have fewest."""
    counts = {rack: held.get(rack, 0) for rack in racks}
    least = min(counts.values(), default=0)
    return frozenset(rack for rack, count in counts.items() if count == least)


def room(image: Image, dc: str) -> list[Node]:
    """Return the members of a dc that take tablets, even if they are down."""
    going, holding = image.requests.going(), image.membership.holding()
    return [node for n, node in holding.items() if node.dc == dc and n not in going]


Copies = Mapping[str, int]
"""Replicas by dc; a dc that is not named has none."""
Counts = npt.NDArray[np.int64]
"""Array of shape (tablets,)."""


class HasNodes(Protocol):
    """A move of a replica, or a request for one: the node that loses it and the one that gets
    it.
    """

    @property
    def from_node(self) -> str: ...
    @property
    def to_node(self) -> str: ...


class Between(NamedTuple):
    """The fewest and the most replicas of a tablet now, by dc, and the fewest over all dcs."""

    low: Copies
    high: Copies
    fewest: int


def change_of(image: Image, keyspace: Keyspace) -> Request | None:
    """Return the request that changes the keyspace's number of replicas, in either direction."""
    request_id = image.requests.changes.get(keyspace.keyspace_id)
    return None if request_id is None else image.requests.unfinished_by_id[request_id]


def is_required(image: Image, table: Table, move: HasNodes) -> bool:
    """Return True if the move is needed to reach the goal.

    An additional replica always is. A deletion, or a move to another rack, is needed only during a
    change of replication.
    """
    if not move.from_node:
        return bool(move.to_node)
    keyspace, nodes = image.schema.by_id[table.keyspace_id], image.membership.nodes
    if change_of(image, keyspace) is None:
        return False
    if not move.to_node:
        return True
    one, two = nodes[move.from_node], nodes[move.to_node]
    return one.rack != two.rack and two.dc in goal(image, keyspace).racks


def goal(image: Image, keyspace: Keyspace) -> Replication:
    """Return the replication that the keyspace's tablets are to reach."""
    change = change_of(image, keyspace)
    return keyspace.wanted if change is None or change.cancelled else change.wanted


def between(image: Image, keyspace: Keyspace) -> Between:
    one, change = keyspace.replication, change_of(image, keyspace)
    two = one if change is None else change.replication
    dcs = sorted({*one, *two})
    low = {dc: min(one.get(dc, 0), two.get(dc, 0)) for dc in dcs}
    high = {dc: max(one.get(dc, 0), two.get(dc, 0)) for dc in dcs}
    return Between(low, high, min(sum(one.values()), sum(two.values())))


class RackPlace(NamedTuple):
    """The dc and rack of a node; both are empty for a node that has left."""

    dc: str
    rack: str


class Deviation(NamedTuple):
    """By tablet of one dc, the replicas that it lacks and those outside its goal.

    If a tablet has both, in a dc with a rack list, some replicas must move to another rack.
    """

    lacks: Counts
    surplus: Counts

    @property
    def more(self) -> Counts:
        """Replicas to add."""
        found: Counts = np.maximum(self.lacks - self.surplus, 0)
        return found

    @property
    def fewer(self) -> Counts:
        """Replicas to delete."""
        found: Counts = np.maximum(self.surplus - self.lacks, 0)
        return found

    @property
    def to_move(self) -> Counts:
        """Replicas to move to another rack."""
        found: Counts = np.minimum(self.lacks, self.surplus)
        return found


def deviations(
    wanted: Replication, places: Sequence[RackPlace], replicas: npt.NDArray[np.integer]
) -> dict[str, Deviation]:
    """Return by dc how tablets differ from their goal.

    ``replicas`` has shape (tablets, width). Its values are positions in ``places``, one for each
    node; -1 means no replica.
    """
    found = dict[str, Deviation]()
    for dc in sorted({*wanted.copies, *(place.dc for place in places)}):
        there = _count_of([place.dc == dc for place in places], replicas)
        lacks = np.maximum(wanted.copies.get(dc, 0) - there, 0)
        if dc in wanted.racks:
            racks = [RackPlace(dc, rack) for rack in wanted.racks[dc]]
            filled = [_count_of([at == rack for at in places], replicas) > 0 for rack in racks]
            # A second replica in one listed rack does not fill another rack.
            lacks = len(racks) - np.sum(filled, axis=0)
        surplus = there - wanted.copies.get(dc, 0) + lacks
        found[dc] = Deviation(lacks, surplus)
    return found


class DeviatingTable(NamedTuple):
    """A table with ``tablets`` tablets, out of ``of``, that differ from their goal.

    Together these lack ``more`` replicas, have ``fewer`` too many, and have ``to_move`` in other
    racks than their goal.
    """

    table: str
    tablets: int
    of: int
    more: int
    fewer: int
    to_move: int = 0

    def left(self) -> int:
        return self.more + self.fewer + self.to_move


def deviating_tables(image: Image, keyspace: Keyspace) -> Iterator[DeviatingTable]:
    """Yield the keyspace's tables with tablets whose read replicas differ from the goal.

    During a cancelled change, tablets are left out that wait for an operator to remove dead nodes
    or add others. These are tablets with a replica on a dead node, or on every available node.
    """
    wanted, change = goal(image, keyspace), change_of(image, keyspace)
    for table in image.schema.tables_of(keyspace):
        placement = image.ring.placements.get(table.placement)
        # Co-located tables share a map. It counts once, with its owner.
        if placement is None or table.base_table_id:
            continue
        places = _places(image, placement.nodes.names)
        found = deviations(wanted, places, placement.reads())
        counted = np.any([each.lacks + each.surplus for each in found.values()], axis=0)
        if change is not None and change.cancelled:
            counted &= ~placement.read_on(image.membership.excluded()).any(axis=1)
            for dc, each in found.items():
                counted &= (each.lacks == 0) | _has_room(image, wanted, dc, placement)
        if counted.any():
            yield DeviatingTable(
                table=image.schema.full_name(table),
                tablets=int(counted.sum()),
                of=len(placement),
                more=sum(int(each.more[counted].sum()) for each in found.values()),
                fewer=sum(int(each.fewer[counted].sum()) for each in found.values()),
                to_move=sum(int(each.to_move[counted].sum()) for each in found.values()),
            )


def recounting(image: Image, off: Set[str]) -> list[str]:
    """Describe in words the tables whose read replicas differ from the goal.

    Tables that are ``off`` keep surplus replicas while no change asks for their deletion.
    """
    keyspaces = sorted(image.schema.by_id.values(), key=lambda keyspace: keyspace.name)
    return [
        f"{each.tablets} of {each.of} tablets of {each.table} are to have"
        f" {goal(image, keyspace).words()}"
        for keyspace in keyspaces
        if keyspace.tablets
        for each in deviating_tables(image, keyspace)
        if each.more or each.table not in off or change_of(image, keyspace) is not None
    ]


def _has_room(
    image: Image, wanted: Replication, dc: str, placement: Placement
) -> npt.NDArray[np.bool_]:
    """Return by tablet whether a member can take another replica.

    With a rack list, each rack that lacks a replica needs such a member; otherwise any member of
    the dc will do.
    """
    members = room(image, dc)
    racks = wanted.racks.get(dc)
    if racks is None:
        free = {node.node_id for node in members}
        has_room: npt.NDArray[np.bool_] = placement.read_on(free).sum(axis=1) < len(free)
        return has_room
    found = np.ones(len(placement), np.bool_)
    places = image.membership.nodes.items()
    for rack in {*racks} - {node.rack for node in members}:
        inside = {name for name, node in places if (node.dc, node.rack) == (dc, rack)}
        found &= placement.read_on(inside).any(axis=1)
    return found


def _count_of(which: Sequence[bool], replicas: npt.NDArray[np.integer]) -> Counts:
    """Return by tablet its number of replicas on the nodes of a mask."""
    # The additional False is the entry for -1, which means no replica.
    found: Counts = np.array([*which, False])[replicas].sum(axis=1)
    return found


def _places(image: Image, names: Sequence[str]) -> list[RackPlace]:
    nodes = image.membership.nodes
    return [
        RackPlace(nodes[name].dc, nodes[name].rack) if name in nodes else RackPlace("", "")
        for name in names
    ]


def moves_of(image: Image, keyspace: Keyspace) -> Iterable[Request]:
    """Return the unfinished requests that add, delete or move replicas for the keyspace's goal.

    Moves count only if they bring a replica to another listed rack.
    """
    tables = {table.table_id: table for table in image.schema.tables_of(keyspace)}
    mine = (
        r
        for r in image.requests.unfinished_by_id.values()
        if r.moves_replica and r.table_id in tables
    )
    return (r for r in mine if r.recounts or is_required(image, tables[r.table_id], r))
