"""How many replicas tablets have in each dc, and how many they are to have.

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
from stele.domain.schema.facts import Keyspace, Table, copies_text
from stele.domain.tablets.racks import room

Copies = Mapping[str, int]
"""Replicas by dc; who is not named has none."""


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
    mine = (r for r in image.requests.open.values() if r.keyspace_id == keyspace.keyspace_id)
    return next((request for request in mine if request.replication), None)


def is_owed(image: Image, table: Table, move: HasNodes) -> bool:
    """Whether it gives a tablet one replica more, or takes one while somebody's change asks for that."""
    if bool(move.from_node) == bool(move.to_node):
        return False
    keyspace = image.schema.by_id[table.keyspace_id]
    return bool(move.to_node) or change_of(image, keyspace) is not None


def goal(image: Image, keyspace: Keyspace) -> Copies:
    """What its tablets are to come to."""
    change = change_of(image, keyspace)
    return keyspace.replication if change is None or change.cancelled else change.replication


def between(image: Image, keyspace: Keyspace) -> Between:
    one, change = keyspace.replication, change_of(image, keyspace)
    two = one if change is None else change.replication
    dcs = sorted({*one, *two})
    low = {dc: min(one.get(dc, 0), two.get(dc, 0)) for dc in dcs}
    high = {dc: max(one.get(dc, 0), two.get(dc, 0)) for dc in dcs}
    return Between(low, high, min(sum(one.values()), sum(two.values())))


def surplus(
    wanted: Copies, dc_of: Sequence[str], replicas: npt.NDArray[np.integer]
) -> dict[str, npt.NDArray[np.int64]]:
    """By dc how many replicas each tablet has too many; below 0: how many it lacks.

    ``replicas`` are of shape (tablets, width), positions in ``dc_of``, the nodes' dcs; -1 where there is none.
    """
    dcs = sorted({*wanted, *dc_of})
    number = {dc: at for at, dc in enumerate(dcs)}
    of_node = np.array([*(number[dc] for dc in dc_of), -1])
    there = of_node[replicas]
    return {
        dc: (there == at).sum(axis=1).astype(np.int64) - wanted.get(dc, 0)
        for dc, at in number.items()
    }


class Unlike(NamedTuple):
    """A table with ``tablets`` of ``of`` that lack ``more`` replicas together, and have ``fewer`` too many."""

    table: str
    tablets: int
    of: int
    more: int
    fewer: int


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
        found = surplus(wanted, _dcs(image, names), reads)
        amiss = np.any([each != 0 for each in found.values()], axis=0)
        if change is not None and change.cancelled:
            amiss &= _count_of(image.membership.excluded(), names, reads) == 0
            for dc, each in found.items():
                free = {node.node_id for node in room(image, dc)}
                amiss &= (each >= 0) | (_count_of(free, names, reads) < len(free))
        if amiss.any():
            counts = np.stack([each[amiss] for each in found.values()])
            yield Unlike(
                table=image.schema.full_name(table),
                tablets=int(amiss.sum()),
                of=len(placement),
                more=-int(counts[counts < 0].sum()),
                fewer=int(counts[counts > 0].sum()),
            )


def recounting(image: Image, off: Set[str]) -> list[str]:
    """In words, which tables have tablets that are not read from what they are to come to. Those that are
    ``off`` keep what they have too many while no change asks for it.
    """
    keyspaces = sorted(image.schema.by_id.values(), key=lambda keyspace: keyspace.name)
    return [
        f"{each.tablets} of {each.of} tablets of {each.table} are to have"
        f" {copies_text(goal(image, keyspace))}"
        for keyspace in keyspaces
        if keyspace.tablets
        for each in unlike(image, keyspace)
        if each.more or each.table not in off or change_of(image, keyspace) is not None
    ]


def _count_of(nodes: Set[str], names: Sequence[str], reads: Numbers) -> npt.NDArray[np.int64]:
    """How many replicas of each tablet are on one of these."""
    here = np.array([*(name in nodes for name in names), False])
    found: npt.NDArray[np.int64] = here[reads].sum(axis=1)
    return found


def _dcs(image: Image, names: Sequence[str]) -> list[str]:
    nodes = image.membership.nodes
    return [nodes[name].dc if name in nodes else "" for name in names]


def moves_of(image: Image, keyspace: Keyspace) -> Iterable[Request]:
    """Unfinished requests that give tablets of its tables one replica more, or one fewer."""
    tables = {table.table_id for table in image.schema.tables_of(keyspace)}
    return (r for r in image.requests.open.values() if r.recounts and r.table_id in tables)
