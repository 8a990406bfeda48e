"""The cluster as a file describes it; the JSON schema of that file is made from these types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from stele.domain.json_documents import JsonDocumentError, decode_document
from stele.domain.names import MAX_SHARDS

NOT_NEGATIVE = Meta(ge=0)
FROM_ONE = Meta(ge=1)
SIZE_THRESHOLD: Final = 0.01
"""Loads by size are even if they differ by less than this fraction of the greatest."""
MOST_WEIGHT: Final = 100
RATE_WEIGHT: Final = 50
"""In percent. With this value no node gets more than twice its share, in bytes or in operations."""
MINIMAL_RATE: Final = 25
"""Operations per second: a hundredth of a tablet's target, as with bytes."""


class NodeRole(StrEnum):
    """The role of a node for the balancer."""

    NORMAL = "normal"
    DRAINING = "draining"
    """Gives all its replicas away and gets none."""
    DOWN = "down"
    """Gives none. Gets some only while another node drains, rather than have the others
    overloaded.
    """
    EXCLUDED = "excluded"
    """Declared dead: its replicas are rebuilt elsewhere, from the others."""


class BalanceBy(StrEnum):
    SIZE = "size"
    """Bytes in proportion to the nodes' capacity."""
    COUNT = "count"
    """Replicas in proportion to the nodes' shards."""


class ClusterNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node; without ``capacity_bytes`` its capacity is unknown."""

    id: Annotated[str, Meta(min_length=1)]
    dc: str
    rack: str
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    capacity_bytes: Annotated[int, FROM_ONE] | None = None
    state: NodeRole = NodeRole.NORMAL


Replica = tuple[str, Annotated[int, NOT_NEGATIVE]]
"""A node's id and the number of one of its shards."""


class Tablet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tablet. Without ``size_bytes`` its size is unknown, and without ``rate`` it counts as idle.

    ``rate`` is the rate of one replica in operations per second.
    """

    id: int | str
    replicas: tuple[Replica, ...]
    size_bytes: Annotated[int, NOT_NEGATIVE] | None = None
    in_transition: bool = False
    """The tablet already moves: ``replicas`` are those after the move, and nothing else is planned
    for it.
    """
    rate: Annotated[float, NOT_NEGATIVE] | None = None


class ClusterTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table. ``replication_factor`` counts replicas in each dc."""

    keyspace: str
    name: str
    replication_factor: Annotated[int, FROM_ONE]
    tablets: tuple[Tablet, ...]
    colocated_with: str | None = None
    """``keyspace.name`` of the table whose tablets share places with these, one with one."""
    racks: dict[str, tuple[str, ...]] = {}
    """By dc the listed racks. Each has one replica of each tablet, and no other rack of the dc has
    any. In dcs that are not named, racks stay as even as they are.
    """

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"


class BalanceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measure of balance and its limits."""

    balance_by: BalanceBy = BalanceBy.SIZE
    size_threshold: Annotated[float, Meta(ge=0, lt=1)] = SIZE_THRESHOLD
    minimal_tablet_size_bytes: Annotated[int, NOT_NEGATIVE] | None = None
    """Smaller tablets count as this large, so that empty ones are spread too. The default is 1/100
    of the mean.
    """
    rate_weight: Annotated[int, Meta(ge=0, le=MOST_WEIGHT)] = RATE_WEIGHT
    """By size, the percentage of a tablet's load that is its rate divided by the mean. The rest is
    its bytes.
    """
    minimal_tablet_rate: Annotated[int, FROM_ONE] = MINIMAL_RATE
    """If the mean rate of tablets is below this, rates are divided by this instead."""


DEFAULT_OPTIONS: Final = BalanceOptions()


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete input of a plan."""

    nodes: tuple[ClusterNode, ...]
    tables: tuple[ClusterTable, ...] = ()
    options: BalanceOptions = DEFAULT_OPTIONS


# Check that the description of a cluster is consistent. An error names the field of the file.


def read_cluster(raw: bytes) -> Cluster:
    """Decode and check a description of a cluster. Raises JsonDocumentError."""
    cluster = decode_document(raw, Cluster)
    check(cluster)
    return cluster


def check(cluster: Cluster) -> None:
    """Check references and counts. Raises JsonDocumentError for the first field that is wrong."""
    nodes = dict[str, ClusterNode]()
    for at, node in enumerate(cluster.nodes):
        if node.id in nodes:
            raise JsonDocumentError(f"nodes[{at}].id", f"there is another node '{node.id}'")
        nodes[node.id] = node
    tables = dict[str, ClusterTable]()
    for at, table in enumerate(cluster.tables):
        if table.full_name in tables:
            raise JsonDocumentError(
                f"tables[{at}].name", f"there is another table {table.full_name}"
            )
        tables[table.full_name] = table
        _check_racks(f"tables[{at}].racks", table, nodes)
        _check_tablets(f"tables[{at}]", table, nodes)
    for at, table in enumerate(cluster.tables):
        _check_colocation(f"tables[{at}].colocated_with", table, tables)


def _check_racks(path: str, table: ClusterTable, nodes: Mapping[str, ClusterNode]) -> None:
    for dc, racks in table.racks.items():
        place, there = f"{path}.{dc}", {node.rack for node in nodes.values() if node.dc == dc}
        if len({*racks}) < len(racks) or not racks:
            raise JsonDocumentError(place, "each rack is named once, and at least one is")
        missing = sorted({*racks} - there)
        if missing:
            raise JsonDocumentError(place, f"there is no node in rack '{missing[0]}' of dc '{dc}'")
        if len(racks) > table.replication_factor:
            wrong = f"{len(racks)} racks, but the replication factor is {table.replication_factor}"
            raise JsonDocumentError(place, wrong)


def _check_tablets(path: str, table: ClusterTable, nodes: Mapping[str, ClusterNode]) -> None:
    ids = set[int | str]()
    for at, tablet in enumerate(table.tablets):
        place = f"{path}.tablets[{at}]"
        if tablet.id in ids:
            raise JsonDocumentError(f"{place}.id", f"there is another tablet {tablet.id}")
        ids.add(tablet.id)
        _check_replicas(place, tablet, nodes, table.replication_factor)


def _check_replicas(
    path: str, tablet: Tablet, nodes: Mapping[str, ClusterNode], factor: int
) -> None:
    if not tablet.replicas:
        raise JsonDocumentError(f"{path}.replicas", "a tablet has at least one replica")
    seen = set[str]()
    for at, (name, shard) in enumerate(tablet.replicas):
        place = f"{path}.replicas[{at}]"
        node = nodes.get(name)
        if node is None:
            raise JsonDocumentError(place, f"there is no node '{name}'")
        if shard >= node.shards:
            raise JsonDocumentError(place, f"'{name}' has no shard {shard}: it has {node.shards}")
        if name in seen:
            raise JsonDocumentError(place, f"'{name}' has a replica of this tablet already")
        seen.add(name)
    for dc, count in Counter(nodes[name].dc for name in seen).items():
        if count > factor:
            wrong = f"{count} replicas in dc '{dc}', but the replication factor is {factor}"
            raise JsonDocumentError(f"{path}.replicas", wrong)


def _check_colocation(path: str, table: ClusterTable, tables: Mapping[str, ClusterTable]) -> None:
    if table.colocated_with is None:
        return
    base = tables.get(table.colocated_with)
    if base is None:
        raise JsonDocumentError(path, f"there is no table {table.colocated_with}")
    if base is table or base.colocated_with is not None:
        raise JsonDocumentError(path, f"{base.full_name} goes together with another table itself")
    if base.racks != table.racks:
        raise JsonDocumentError(path, f"{base.full_name} is to be in other racks")
    if len(base.tablets) != len(table.tablets):
        wrong = f"{base.full_name} has {len(base.tablets)} tablets, this one {len(table.tablets)}"
        raise JsonDocumentError(path, wrong)
    for at, (its, ours) in enumerate(zip(base.tablets, table.tablets, strict=True)):
        if its.replicas != ours.replicas:
            raise JsonDocumentError(path, f"tablet {at} is not where that of {base.full_name} is")


# Rack lists: each listed rack of a dc has one replica of a tablet, and no other rack has any.


Rack = TypeVar("Rack", bound=Hashable)
"""A rack's name, or its number."""


def strays(racks: Collection[Rack], of: Sequence[Rack]) -> list[int]:
    """Return the positions of replicas outside the list ``racks``; ``of`` are the replicas' racks.

    They are in racks that are not listed, or in a listed rack that has several.
    """
    held = Counter(of)
    return [at for at, rack in enumerate(of) if rack not in racks or held[rack] > 1]


def vacant(racks: Collection[Rack], of: Iterable[Rack]) -> frozenset[Rack]:
    """Return the listed racks without a replica; ``of`` are the replicas' racks."""
    return frozenset(racks) - {*of}


def keeps_list(racks: Collection[Rack], of: Sequence[Rack], source: int, target: Rack) -> bool:
    """Return True if the replica at position ``source`` may move to a node of the rack ``target``.

    It stays in its rack, or it is outside the list and goes to a listed rack that has none.
    """
    return target == of[source] or (target in vacant(racks, of) and source in strays(racks, of))
