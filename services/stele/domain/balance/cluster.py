"""The cluster as a file describes it; the JSON schema of that file is made from these types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

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
