"""The closed sets of names of states, kinds and orders.

The names are those of ScyllaDB's topology-over-raft.md and of CEP-21, where these have one.
"""

from enum import StrEnum
from typing import Final

BALANCER: Final = "tablet-balancer"
"""Actor of the balancer's own requests."""
COORDINATOR: Final = "coordinator"
"""Actor of all commands that the coordinator of a term sends."""


class NodeState(StrEnum):
    """State of a node in the topology (ScyllaDB, topology-over-raft.md, "Topology state
    machine").
    """

    NONE = "none"
    BOOTSTRAPPING = "bootstrapping"
    DECOMMISSIONING = "decommissioning"
    REMOVING = "removing"
    REPLACING = "replacing"
    MOVING = "moving"
    """Its tokens change while it serves (Cassandra's word)."""
    REBUILDING = "rebuilding"
    NORMAL = "normal"
    LEFT = "left"


class TransitionState(StrEnum):
    """State of a transition.

    Source: ScyllaDB, topology-over-raft.md, "Topology state machine" and "Tablet transitions".
    """

    JOIN_GROUP0 = "join_group0"
    COMMIT_CDC_GENERATION = "commit_cdc_generation"
    """A new CDC generation was written. It is committed when every member can see it."""
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP = "write_both_read_old_fallback_cleanup"
    """On the way back after the reads had moved: reads no longer use the new replica."""
    FINISHING = "finishing"
    """Only the new replicas serve. The transition and its locks stay until that version's fence is
    known.
    """
    LEFT_TOKEN_RING = "left_token_ring"  # noqa: S105 - a state, not a secret
    ROLLBACK_TO_NORMAL = "rollback_to_normal"
    REBUILDING = "rebuilding"
    """A node streams its own data again. Routing does not change."""
    DROP_KEYSPACE = "drop_keyspace"
    DROP_TABLE = "drop_table"
    TRUNCATE = "truncate"
    ALLOW_WRITE_BOTH_READ_OLD = "allow_write_both_read_old"
    """First stage of a tablet's migration: replicas learn of it."""
    STREAMING = "streaming"
    USE_NEW = "use_new"
    CLEANUP = "cleanup"
    """The replica that lost the tablet deletes its data."""
    END_MIGRATION = "end_migration"
    """Late cleanup orders become ineffective before the tablet can move again."""
    CLEANUP_TARGET = "cleanup_target"
    """On the way back: the replica that was to come deletes the data that it has received."""
    REVERT_MIGRATION = "revert_migration"
    REPAIR = "repair"
    """Each replica of a tablet receives the rows that it lacks from the others. Routing does not
    change.
    """
    END_REPAIR = "end_repair"
    """Late repair orders become ineffective before the tablet can move."""
    SNAPSHOT = "snapshot"
    """Every node writes its rows of a table into its backup folder. No tablet of the table moves
    meanwhile.
    """
    END_SNAPSHOT = "end_snapshot"
    """On the way back: the written files are deleted."""
    RESTORE = "restore"
    """Each replica of a tablet reads the rows of a snapshot. Routing does not change."""
    END_RESTORE = "end_restore"
    """Late restore orders become ineffective before the tablet can move."""
    TABLET_RESIZE_FINALIZATION = "tablet_resize_finalization"
    """No tablet of the table moves any more. Its new tablet map comes next."""


class RequestKind(StrEnum):
    """Kinds of topology requests; ``topology/operations`` has a row object for each.

    Source: ScyllaDB, topology-over-raft.md, "Topology state machine".
    """

    REPLACE = "replace"
    JOIN = "join"
    REMOVE = "remove"
    LEAVE = "leave"
    MOVE = "move"
    REBUILD = "rebuild"
    EXCLUDE = "exclude"
    DROP_KEYSPACE = "drop_keyspace"
    DROP_TABLE = "drop_table"
    TABLET_MIGRATION = "tablet_migration"
    INTRANODE_MIGRATION = "intranode_migration"
    TABLET_RESIZE = "tablet_resize"
    TABLET_REPAIR = "tablet_repair"
    TABLE_REPAIR = "table_repair"
    TABLE_SNAPSHOT = "table_snapshot"
    TABLE_RESTORE = "table_restore"
    TABLET_RESTORE = "tablet_restore"
    NOOP_REQUEST = "noop_request"
    QUIESCE = "quiesce"
    CLEANUP = "cleanup"
    TRUNCATE = "truncate"
    KEYSPACE_RF_CHANGE = "keyspace_rf_change"
    TABLET_RF_CHANGE = "tablet_rf_change"
    ENABLE_FEATURES = "enable_features"
    NEW_CDC_GENERATION = "new_cdc_generation"
    RECONFIGURE_CATCH_UP = "reconfigure_catch_up"


class RequestStatus(StrEnum):
    """Life of a request: pending -> running -> done | failed | cancelled."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ReplicaState(StrEnum):
    """State of a catch-up replica in the archive of the log."""

    CANDIDATE = "candidate"
    """It could become a member."""
    JOINING = "joining"
    """It is to become a member and receives the data of the members."""
    MEMBER = "member"
    """It counts for the majority that must have all data deleted from the log (a CMS member in
    CEP-21).
    """


class OrderKind(StrEnum):
    """Kinds of work that a coordinator may order from a node."""

    STREAM = "stream"
    CLEANUP = "cleanup"
    TRUNCATE = "truncate"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"


class ReportStatus(StrEnum):
    """State of an order at the node that carries it out."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


class CommitMode(StrEnum):
    """The actors whose commands the log takes."""

    OPEN = "open"
    FROZEN = "frozen"
    """No actor."""
    SINGLE_USER = "single_user"
    """One actor."""


class OverrideKind(StrEnum):
    """How a state replaced another."""

    FOUND = "found"
    """A cluster began with it."""
    REVERT = "revert"
    """It was the log's own state, at an older epoch."""
    LOAD = "load"
    """It came from a file."""


class BarrierLevel(StrEnum):
    """Levels of a barrier, the highest first (docs/design.md, rule 26)."""

    ALL = "ALL"
    EACH_QUORUM = "EACH_QUORUM"
    QUORUM = "QUORUM"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    ONE = "ONE"
    NODE_LOCAL = "NODE_LOCAL"


PARTITIONER: Final = "Murmur3Partitioner"
TABLET_MAP: Final = "tablets:"
"""Prefix of the names of placements that are tablet maps."""
MAX_SHARDS: Final = 4096
"""Largest number of shards of a node."""

STAYS: Final = frozenset({NodeState.NORMAL, NodeState.MOVING, NodeState.REBUILDING})
"""States of members that are neither coming nor going."""

OWNS_TOKENS: Final = STAYS | {NodeState.DECOMMISSIONING, NodeState.REMOVING}
"""States in which a node's tokens are part of the ring."""

TAKES_PART: Final = STAYS | {
    NodeState.DECOMMISSIONING,
    NodeState.BOOTSTRAPPING,
    NodeState.REPLACING,
}
"""States in which a node that is not excluded routes requests, and must acknowledge every step."""

JOINING: Final = frozenset({NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING})
"""States of a node that asked to become a member and is not one yet."""

UNFINISHED: Final = frozenset({RequestStatus.PENDING, RequestStatus.RUNNING})


# Kinds of waits of the coordinator: what a request, a transition or a round waits for.


SILENCE: Final = "STELE_SILENCE_S"
"""The setting that ends waits without progress."""


class WaitKind(StrEnum):
    """The kind of a wait."""

    LOG = "log"
    """A command of the coordinator whose effect the log does not show yet."""
    RESTRICTED = "restricted"
    """The log takes no commands of the coordinator: it is frozen, or reserved for one actor."""
    STANDBY = "standby"
    """This coordinator does not act."""
    COMPANY = "company"
    """Other requests of the same kind, which may open together with it."""
    MEMBERS = "members"
    """Nodes without which it does not start."""
    SILENCE = "silence"
    """The silence of nodes that are declared dead; they must not answer."""
    LIVES = "lives"
    """Nodes that are declared dead, and still answer."""
    PREPARED = "prepared"
    """Nodes that must prepare their storage for it; their other work continues."""
    ROOM = "room"
    """Ranges that another request is moving."""
    APPLIED = "applied"
    """Nodes that must have applied a version."""
    FENCED = "fenced"
    """Nodes that must know that the older versions are fenced."""
    RECEIVERS = "receivers"
    """Nodes to which reads are about to move."""
    STREAM = "stream"
    """Nodes that must receive data."""
    WORK = "work"
    """Nodes each of which must do a piece of work and report it."""
    REST = "rest"
    """Other work that ends soon without help."""
    CLEANUP = "cleanup"
    """Deletion of data, which blocks no request."""
    ARCHIVE = "archive"
    """Catch-up replicas that are down or missing, which block nothing else."""


ASIDE: Final = (WaitKind.CLEANUP, WaitKind.ARCHIVE)
"""Waits that block no request but their own."""
