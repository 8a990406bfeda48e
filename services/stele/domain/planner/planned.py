"""The content of plans and verdicts, as responses carry it. This module computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

Place = tuple[str, int]
"""A node's id and one of its shards."""


class Kind(StrEnum):
    """The kind of work that a move needs."""

    MIGRATION = "migration"
    INTRANODE_MIGRATION = "intranode_migration"
    REBUILD = "rebuild"
    """The old replica is dead: the new one is copied from the others."""


class NodeLoad(msgspec.Struct, frozen=True):
    """The load of a node; ``of_share`` is 1 when that is its share, none when it takes no part."""

    id: str
    replicas: int
    size_bytes: int
    of_share: float | None
    rate: float


class TableSpread(msgspec.Struct, frozen=True):
    """The fewest and the most replicas of a table on nodes with a share, where they differ most."""

    table: str
    fewest: int
    most: int


class Evenness(msgspec.Struct, frozen=True):
    """The loads of nodes.

    ``max_over_mean`` is the largest load of a node as a fraction of its share, over all scopes.
    """

    max_over_mean: float
    nodes: tuple[NodeLoad, ...]
    tables: tuple[TableSpread, ...]


class PlannedMove(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A move of one replica of one tablet from a place to another."""

    keyspace: str
    table: str
    tablet: int | str
    source: Place
    target: Place
    kind: Kind
    reason: str


class Unmovable(msgspec.Struct, frozen=True):
    """A tablet with a replica that should leave ``node`` and cannot."""

    keyspace: str
    table: str
    tablet: int | str
    node: str
    reason: str


class OfflinePlan(msgspec.Struct, frozen=True):
    """A plan with ``moves`` in the order in which they can be made.

    ``moved_bytes`` go from node to node, ``moved_within_nodes_bytes`` from shard to shard. No plan
    that ends as even as this one moves fewer bytes between nodes than ``lower_bound_bytes``.
    """

    moves: tuple[PlannedMove, ...]
    converged: bool
    unmovable: tuple[Unmovable, ...]
    before: Evenness
    after: Evenness
    moved_bytes: int
    moved_within_nodes_bytes: int
    lower_bound_bytes: int


class Rule(StrEnum):
    """The rule that decides a verdict."""

    HOLDS_ONE = "holds_one"
    NODE_STATE = "node_state"
    OTHER_DC = "other_dc"
    RACK = "rack"
    STATISTICS = "statistics"
    IN_TRANSITION = "in_transition"
    SHUT = "shut"
    """The node gets nothing now."""
    LOST = "lost"
    """The replica cannot be rebuilt elsewhere."""
    STANDS_STILL = "stands_still"
    """The table gives only replicas that have to leave."""
    LEAVES = "leaves"
    """Accepts: the source must become empty."""
    NOT_EVENER = "not_evener"
    EVENER = "evener"
    """Accepts: the move makes the cluster more even."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The verdict on a move of the replica on ``source`` to ``target``; both are node ids."""

    source: str
    target: str
    accepted: bool
    rule: Rule
    reason: str


# The reported sizes and rates of tablets.


class TabletSize(msgspec.Struct, frozen=True):
    """The mean bytes of one replica of a tablet, its replicas, and the rates of each.

    A rate of None is unknown.
    """

    tablet: int
    size_bytes: int
    replicas: tuple[str, ...]
    reads_per_s: int | None = None
    writes_per_s: int | None = None


class TableSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The largest or the hottest tablets of a table, in descending order.

    The size of ``known`` tablets is known, in total ``size_bytes``. The rate of ``counted`` tablets
    is known, in total ``rate`` operations per second of one replica of each. ``wanted`` is the next
    number of tablets, and ``why`` its reason.
    """

    table: str
    tablets: int
    known: int
    size_bytes: int
    target_bytes: int
    largest: tuple[TabletSize, ...]
    counted: int = 0
    rate: int = 0
    target_rate: int = 0
    wanted: int = 0
    why: str = ""
