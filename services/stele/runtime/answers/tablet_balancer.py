"""Answers of the tablet-balancer."""

from enum import StrEnum

import msgspec

from stele.domain.balance.planned import NodeVerdict, OfflinePlan, TableSpread
from stele.domain.schema.model import Balancing


class BalanceState(StrEnum):
    """How the tablets stand."""

    NO_TABLETS = "no_tablets"
    BALANCED = "balanced"
    BALANCING = "balancing"
    STALLED = "stalled"
    """Something has to move, and nothing can."""
    WAITING = "waiting"
    """Some nodes get nothing now: they are not heard, full, have rows to delete, or moves there have failed."""
    OFF = "off"
    """It is switched off for the cluster, and no node leaves."""


class PlannedTabletMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move that was planned at the last look, with its reason."""

    table: str
    tablet: int
    from_node: str
    to_node: str
    to_shard: int = -1
    """Below 0: a replica goes away."""
    kind: str
    why: str


class SwitchedOff(msgspec.Struct, frozen=True):
    """Where balancing is off: a keyspace or table by name, or, without one, the cluster. Once the time limit
    has passed it is ``expired``, and counts as on.
    """

    name: str
    balancing: Balancing
    expired: bool


class BalancedShard(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard of a node has, as ``BalancedNode`` says it."""

    tablets: int
    size_bytes: int | None


class BalancedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has, and may have. ``tablets`` are replicas, those on their way counted too.

    ``size_bytes`` are those of the tablets that it has once all have arrived, none while nobody reports any;
    ``of_share`` is 1 when it has its share by the measure in use, none when it takes no part. ``rate`` is what
    it serves of these, operations a second. The report is as old as ``report_age_s``; without one there is no
    capacity either.
    """

    tablets: int
    size_bytes: int | None
    capacity_bytes: int | None
    of_share: float | None
    report_age_s: float | None
    rate: float | None = None
    shards: tuple[BalancedShard, ...] = ()
    """Of a node that takes part, tablets where they are going to; bytes by the map and what nodes report."""


class TabletWhy(msgspec.Struct, frozen=True, kw_only=True):
    """For each replica of a tablet and each node, whether the balancer would move it there."""

    epoch: int
    state_id: str
    table: str
    tablet: int
    verdicts: tuple[NodeVerdict, ...]
    shards: dict[str, int] = {}
    """Of each node that it is read from."""


class BalancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All moves from an epoch on until everything is even; nothing is done."""

    epoch: int
    state_id: str
    plan: OfflinePlan


class BalanceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How the tablets stand at an epoch: moves under way, tables that get another number of tablets, or whose
    tablets get other numbers of replicas (``recounting``, in words), repairs of tablets (``repairing``), what
    comes next, and requests that cannot go on.

    ``balanced_by`` is size or count, with the reason ``why``; by size, operations are ``rate_weight`` percent
    of a tablet's load. ``down`` are members that are not heard,
    ``avoided`` those to or from which moves have failed just now, ``full`` those whose disks have no room left.
    ``off`` is what balancing is switched off for, the cluster first.
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
    """Whose the log is, in words: nothing begins meanwhile."""


class LoadSample(msgspec.Struct, frozen=True, kw_only=True):
    """What each node had and served at a moment: operations a second, where it counts them, bytes, and
    tablets that are read from it.
    """

    at_ms: int
    rates: dict[str, int]
    sizes: dict[str, int]
    tablets: dict[str, int]


class LoadHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The load by node over so long, as far as it is known; the oldest sample first."""

    span_ms: int
    every_ms: int
    samples: tuple[LoadSample, ...]
