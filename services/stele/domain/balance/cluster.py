"""The cluster as a file describes it; the JSON schema of that file is made from these types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from stele.domain.ring.shards import MAX_SHARDS

NOT_NEGATIVE = Meta(ge=0)
FROM_ONE = Meta(ge=1)
SIZE_THRESHOLD: Final = 0.01
"""Loads by size that differ by less than this part of the greatest are even."""
MOST_WEIGHT: Final = 100
RATE_WEIGHT: Final = 50
"""Percent: then no node gets more than twice its share, be it of bytes or of operations."""
MINIMAL_RATE: Final = 25
"""Operations a second: a hundredth of what a tablet should have, as with bytes."""


class NodeState(StrEnum):
    """What the balancer may do with a node."""

    NORMAL = "normal"
    DRAINING = "draining"
    """Gives all its replicas away and gets none."""
    DOWN = "down"
    """Gives none. Gets some only while another node drains, rather than have the others overloaded."""
    EXCLUDED = "excluded"
    """Dead for good: its replicas are rebuilt elsewhere, from the others."""


class BalanceBy(StrEnum):
    SIZE = "size"
    """Bytes in proportion to the nodes' capacity."""
    COUNT = "count"
    """Replicas in proportion to the nodes' shards."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node; without ``capacity_bytes`` its capacity is unknown."""

    id: Annotated[str, Meta(min_length=1)]
    dc: str
    rack: str
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    capacity_bytes: Annotated[int, FROM_ONE] | None = None
    state: NodeState = NodeState.NORMAL


Replica = tuple[str, Annotated[int, NOT_NEGATIVE]]
"""A node's id and the number of a shard of it."""


class Tablet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tablet; without ``size_bytes`` its size is unknown. ``rate`` is what one replica serves, in operations
    a second; without it the tablet counts as idle.
    """

    id: int | str
    replicas: tuple[Replica, ...]
    size_bytes: Annotated[int, NOT_NEGATIVE] | None = None
    in_transition: bool = False
    """It moves already: ``replicas`` are those of afterwards, and nothing else is planned for it."""
    rate: Annotated[float, NOT_NEGATIVE] | None = None


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table. ``replication_factor`` counts replicas in each dc."""

    keyspace: str
    name: str
    replication_factor: Annotated[int, FROM_ONE]
    tablets: tuple[Tablet, ...]
    colocated_with: str | None = None
    """``keyspace.name`` of the table whose tablets these go together with, one with one."""
    racks: dict[str, tuple[str, ...]] = {}
    """By dc the racks that have one replica of each tablet each, and no other of the dc has any; in dcs that
    are not named racks are kept as even as they are.
    """

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to balance."""

    balance_by: BalanceBy = BalanceBy.SIZE
    size_threshold: Annotated[float, Meta(ge=0, lt=1)] = SIZE_THRESHOLD
    minimal_tablet_size_bytes: Annotated[int, NOT_NEGATIVE] | None = None
    """Smaller tablets count as this large, so that empty ones are spread too; else 1/100 of the mean."""
    rate_weight: Annotated[int, Meta(ge=0, le=MOST_WEIGHT)] = RATE_WEIGHT
    """By size, percent of a tablet's load that are its rate in parts of the mean; the rest are its bytes."""
    minimal_tablet_rate: Annotated[int, FROM_ONE] = MINIMAL_RATE
    """Where tablets serve less than this on average, rates count in parts of this."""


DEFAULT_OPTIONS: Final = Options()


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a plan rests on."""

    nodes: tuple[Node, ...]
    tables: tuple[Table, ...] = ()
    options: Options = DEFAULT_OPTIONS
