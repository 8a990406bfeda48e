"""What a plan of balancing and its verdicts say, as answers carry them. Nothing is computed here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

Place = tuple[str, int]
"""A node's id and a shard of it."""


class Kind(StrEnum):
    """What has to be done for a move."""

    MIGRATION = "migration"
    INTRANODE_MIGRATION = "intranode_migration"
    REBUILD = "rebuild"
    """The old replica is dead: the new one is made from the others."""


class NodeLoad(msgspec.Struct, frozen=True):
    """What a node holds, and serves a second; ``of_share`` is 1 when that is its share, none when it takes no
    part.
    """

    id: str
    replicas: int
    size_bytes: int
    of_share: float | None
    rate: float


class TableSpread(msgspec.Struct, frozen=True):
    """The fewest and the most replicas of a table on a node that has a share of it, where they differ most."""

    table: str
    fewest: int
    most: int


class Evenness(msgspec.Struct, frozen=True):
    """``max_over_mean`` is of what nodes hold in parts of their shares, the largest of all scopes."""

    max_over_mean: float
    nodes: tuple[NodeLoad, ...]
    tables: tuple[TableSpread, ...]


class PlannedMove(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One replica of one tablet goes from a place to another."""

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
    """``moves`` in the order in which they can be made.

    ``moved_bytes`` go from node to node, ``moved_within_nodes_bytes`` from shard to shard. No plan that
    ends as even as this one moves fewer bytes between nodes than ``lower_bound_bytes``.
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
    """Which rule decides."""

    HOLDS_ONE = "holds_one"
    NODE_STATE = "node_state"
    OTHER_DC = "other_dc"
    RACK = "rack"
    STATISTICS = "statistics"
    IN_TRANSITION = "in_transition"
    SHUT = "shut"
    """The node gets nothing now."""
    LOST = "lost"
    """The replica cannot be made anew elsewhere."""
    STANDS_STILL = "stands_still"
    """The table gives nothing but what has to leave."""
    LEAVES = "leaves"
    """Accepts: the source must become empty."""
    NOT_EVENER = "not_evener"
    EVENER = "evener"
    """Accepts: the move makes the cluster more even."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the replica on ``source`` may go to ``target``, by their ids."""

    source: str
    target: str
    accepted: bool
    rule: Rule
    reason: str
