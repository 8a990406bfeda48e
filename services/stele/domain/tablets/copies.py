"""How many replicas tablets have in each dc, and how many they are to have; and in which racks, where these are
listed.

At rest each tablet has what its keyspace asks for. While a change of that is asked for
(``topology.operations.tablet_rf_change``) it may have any number from the one to the other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stele.domain.image import Image
from stele.domain.requests.facts import Request
from stele.domain.ring.numbers import Numbers
from stele.domain.schema.facts import Keyspace, Replication, Table
from stele.domain.tablets.racks import room

Copies = Mapping[str, int]
"""Replicas by dc; who is not named has none."""
Counts = npt.NDArray[np.int64]
"""Of shape (tablets,)."""


class HasNodes(Protocol):
    """A move of a replica, or a request for one: who is to lose it, and who is to get it."""

    @property
    def from_node(self) -> str: ...
    @property
    def to_node(self) -> str: ...


class Between(NamedTuple):
    """The fewest and the most replicas that a tablet may have now, by dc; and the fewest in all dcs."""

    low: Copies
    high: Copies
    fewest: int


def change_of(image: Image, keyspace: Keyspace) -> Request | None:
    """The request that is changing, or changing back, how many replicas a keyspace's tablets have."""
    request_id = image.requests.changes.get(keyspace.keyspace_id)
    return None if request_id is None else image.requests.open[request_id]


def is_required(image: Image, table: Table, move: HasNodes) -> bool:
    """Whether it gives a tablet one replica more; or takes one, or brings one to another rack, while somebody's
    change asks for that.
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
    """What its tablets are to come to."""
    change = change_of(image, keyspace)
    return keyspace.wanted if change is None or change.cancelled else change.wanted


def between(image: Image, keyspace: Keyspace) -> Between:
    one, change = keyspace.replication, change_of(image, keyspace)
    two = one if change is None else change.replication
    dcs = sorted({*one, *two})
    low = {dc: min(one.get(dc, 0), two.get(dc, 0)) for dc in dcs}
    high = {dc: max(one.get(dc, 0), two.get(dc, 0)) for dc in dcs}
    return Between(low, high, min(sum(one.values()), sum(two.values())))


class Place(NamedTuple):
    """Where a node stands; that of one that has left is empty."""

    dc: str
    rack: str


class Amiss(NamedTuple):
    """Of each tablet in one dc: replicas that it lacks, and that it has beside what it is to have. Where it has
    both, in a dc with a rack list, some have to go to another rack.
    """

    lacks: Counts
    beside: Counts

    @property
    def more(self) -> Counts:
        """How many are to be made."""
        found: Counts = np.maximum(self.lacks - self.beside, 0)
        return found

    @property
    def fewer(self) -> Counts:
        """How many are to be deleted."""
        found: Counts = np.maximum(self.beside - self.lacks, 0)
        return found

    @property
    def to_move(self) -> Counts:
        """How many are to go to another rack."""
        found: Counts = np.minimum(self.lacks, self.beside)
        return found


def amiss(
    wanted: Replication, places: Sequence[Place], replicas: npt.NDArray[np.integer]
) -> dict[str, Amiss]:
    """By dc. ``replicas`` are of shape (tablets, width), positions in ``places``, the nodes'; -1: there is
    none.
    """
    found = dict[str, Amiss]()
    for dc in sorted({*wanted.copies, *(place.dc for place in places)}):
        there = _count_of([place.dc == dc for place in places], replicas)
        lacks = np.maximum(wanted.copies.get(dc, 0) - there, 0)
        if dc in wanted.racks:
            racks = [Place(dc, rack) for rack in wanted.racks[dc]]
            filled = [_count_of([at == rack for at in places], replicas) > 0 for rack in racks]
            lacks = len(racks) - np.sum(filled, axis=0)
        beside = there - wanted.copies.get(dc, 0) + lacks
        found[dc] = Amiss(lacks, beside)
    return found


class Unlike(NamedTuple):
    """A table with ``tablets`` of ``of`` that lack ``more`` replicas together, and have ``fewer`` too many, and
    ``to_move`` in other racks than they are to be in.
    """

    table: str
    tablets: int
    of: int
    more: int
    fewer: int
    to_move: int = 0

    def left(self) -> int:
        return self.more + self.fewer + self.to_move


def unlike(image: Image, keyspace: Keyspace) -> Iterator[Unlike]:
    """The keyspace's tables with tablets that are not read from what it is to come to.

    On the way back those are left out for which nothing can be done before somebody removes dead nodes or adds
    others: with a replica on a dead one, or with one on all that there are.
    """
    wanted, change = goal(image, keyspace), change_of(image, keyspace)
    for table in image.schema.tables_of(keyspace):
        placement = image.ring.placements.get(table.placement)
        if placement is None or table.base_table_id:
            continue
        names, reads = placement.nodes.names, placement.reads()
        found = amiss(wanted, _places(image, names), reads)
        counted = np.any([each.lacks + each.beside for each in found.values()], axis=0)
        if change is not None and change.cancelled:
            counted &= _count_of(_are(names, image.membership.excluded()), reads) == 0
            for dc, each in found.items():
                counted &= (each.lacks == 0) | _has_room(image, wanted, dc, names, reads)
        if counted.any():
            yield Unlike(
                table=image.schema.full_name(table),
                tablets=int(counted.sum()),
                of=len(placement),
                more=sum(int(each.more[counted].sum()) for each in found.values()),
                fewer=sum(int(each.fewer[counted].sum()) for each in found.values()),
                to_move=sum(int(each.to_move[counted].sum()) for each in found.values()),
            )


def recounting(image: Image, off: Set[str]) -> list[str]:
    """In words, which tables have tablets that are not read from what they are to come to. Those that are
    ``off`` keep what they have too many while no change asks for it.
    """
    keyspaces = sorted(image.schema.by_id.values(), key=lambda keyspace: keyspace.name)
    return [
        f"{each.tablets} of {each.of} tablets of {each.table} are to have"
        f" {goal(image, keyspace).words()}"
        for keyspace in keyspaces
        if keyspace.tablets
        for each in unlike(image, keyspace)
        if each.more or each.table not in off or change_of(image, keyspace) is not None
    ]


def _has_room(
    image: Image, wanted: Replication, dc: str, names: Sequence[str], reads: Numbers
) -> npt.NDArray[np.bool_]:
    """Of each tablet, whether there is a member for one replica more: in each rack that lacks one, or anywhere
    in the dc.
    """
    members = room(image, dc)
    racks = wanted.racks.get(dc)
    if racks is None:
        free = {node.node_id for node in members}
        return _count_of(_are(names, free), reads) < len(free)
    found = np.ones(len(reads), np.bool_)
    places = _places(image, names)
    for rack in {*racks} - {node.rack for node in members}:
        found &= _count_of([place == Place(dc, rack) for place in places], reads) > 0
    return found


def _are(names: Sequence[str], nodes: Set[str]) -> list[bool]:
    return [name in nodes for name in names]


def _count_of(which: Sequence[bool], replicas: npt.NDArray[np.integer]) -> Counts:
    """How many replicas of each tablet are on one of these nodes."""
    found: Counts = np.array([*which, False])[replicas].sum(axis=1)
    return found


def _places(image: Image, names: Sequence[str]) -> list[Place]:
    nodes = image.membership.nodes
    return [
        Place(nodes[name].dc, nodes[name].rack) if name in nodes else Place("", "")
        for name in names
    ]


def moves_of(image: Image, keyspace: Keyspace) -> Iterable[Request]:
    """Unfinished requests that give tablets of its tables one replica more, or one fewer, or bring one to
    another rack where these are listed.
    """
    tables = {table.table_id: table for table in image.schema.tables_of(keyspace)}
    mine = (r for r in image.requests.open.values() if r.moves_replica and r.table_id in tables)
    return (r for r in mine if r.recounts or is_required(image, tables[r.table_id], r))
