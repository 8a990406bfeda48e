"""Answers of the tablet-balancer."""

from enum import StrEnum

import msgspec

from stele.domain.model.schema import Balancing
from stele.domain.planner.planned import NodeVerdict, OfflinePlan, TableSizes, TableSpread


class BalanceState(StrEnum):
    """State of the balance."""

    NO_TABLETS = "no_tablets"
    BALANCED = "balanced"
    BALANCING = "balancing"
    STALLED = "stalled"
    """Moves are needed, and none is possible."""
    WAITING = "waiting"
    """Some nodes receive nothing now: they are down or full, have rows to delete, or moves to them failed."""
    OFF = "off"
    """Balancing is off for the cluster, and no node leaves."""


class PlannedTabletMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of the last plan, with its reason."""

    table: str
    tablet: int
    from_node: str
    to_node: str
    to_shard: int = -1
    """The shard in ``to_node``; below 0: a replica is deleted."""
    kind: str
    why: str


class SwitchedOff(msgspec.Struct, frozen=True):
    """An object whose balancing is off: a keyspace or table by name, or the cluster without one.

    ``expired``: its time limit has passed, and balancing is on.
    """

    name: str
    balancing: Balancing
    expired: bool


class BalancedShard(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a shard of a node; see ``BalancedNode``."""

    tablets: int
    size_bytes: int | None


class BalancedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The load and the capacity of a node. ``tablets`` is the number of replicas after all open moves.

    ``size_bytes`` is their size, None without reports. ``of_share`` is the load divided by the node's
    share in the measure in use, None if the node takes no part. ``rate`` is in operations per second.
    ``report_age_s`` is the age of the node's load report. Without a report the capacity is None too.
    """

    tablets: int
    size_bytes: int | None
    capacity_bytes: int | None
    of_share: float | None
    report_age_s: float | None
    rate: float | None = None
    shards: tuple[BalancedShard, ...] = ()
    """Shards of a node that takes part. Tablets that move count at their destination."""


class TabletWhy(msgspec.Struct, frozen=True, kw_only=True):
    """The balancer's verdict on the move of each replica of a tablet to each node."""

    epoch: int
    state_id: str
    table: str
    tablet: int
    verdicts: tuple[NodeVerdict, ...]
    shards: dict[str, int] = {}
    """The shard in each node that serves reads of it."""


class BalancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All moves from an epoch on until the cluster is balanced. None is executed."""

    epoch: int
    state_id: str
    plan: OfflinePlan


class BalanceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The balance of the tablets at an epoch.

    ``under_way`` are open moves, ``resizing`` tables whose number of tablets changes, ``recounting``
    tables whose number of replicas changes, ``repairing`` repairs of tablets, ``planned`` the next
    moves, and ``stuck`` requests that cannot continue, with reasons.

    ``balanced_by`` is size or count, for the reason ``why``. By size, operations make ``rate_weight``
    percent of a tablet's load. ``down`` are members without heartbeats, ``avoided`` those with failed
    moves, ``full`` those without free disk space. ``off`` are the objects whose balancing is off, the
    cluster first.
    """

    epoch: int
    state_id: str
    state: BalanceState
    under_way: tuple[str, ...]
    resizing: tuple[str, ...] = ()
    recounting: tuple[str, ...] = ()
    repairing: tuple[str, ...] = ()
    planned: tuple[PlannedTabletMove, ...]
    stuck: dict[str, str]
    balanced_by: str
    why: str
    nodes: dict[str, BalancedNode]
    tables: tuple[TableSpread, ...] = ()
    down: tuple[str, ...]
    avoided: tuple[str, ...]
    full: tuple[str, ...]
    off: tuple[SwitchedOff, ...] = ()
    rate_weight: int = 0
    restricted: str = ""
    """The restriction of the log to some callers, as text. No move starts during it."""


class LoadSample(msgspec.Struct, frozen=True, kw_only=True):
    """The load of each node at one time: operations per second, bytes, and tablets that it serves.

    Nodes that do not count operations have no rate.
    """

    at_ms: int
    rates: dict[str, int]
    sizes: dict[str, int]
    tablets: dict[str, int]


class LoadHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The known load by node over ``span_ms``, oldest sample first."""

    span_ms: int
    every_ms: int
    samples: tuple[LoadSample, ...]


class SizesAnswer(msgspec.Struct, frozen=True):
    """The known sizes of a table's tablets at an epoch."""

    epoch: int
    state_id: str
    sizes: TableSizes
