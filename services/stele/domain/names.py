"""The closed sets of names that states, kinds and orders take; the words are the seeds' own."""

from enum import StrEnum
from typing import Final

BALANCER: Final = "tablet-balancer"
"""As an actor: the balancer's own requests."""
COORDINATOR: Final = "coordinator"
"""As an actor: all that the coordinator of a term asks the log for."""


class NodeState(StrEnum):
    """State of a node in the topology (seed 000, "Node state can be one of those")."""

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
    """Where one transition stands (seed 000, transition states of the topology)."""

    JOIN_GROUP0 = "join_group0"
    COMMIT_CDC_GENERATION = "commit_cdc_generation"
    """A new CDC generation was written, and is committed once everybody can see it."""
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP = "write_both_read_old_fallback_cleanup"
    """On the way back after the reads had moved: nobody reads from the new replica any more."""
    FINISHING = "finishing"
    """The new replicas alone serve; the transition and its locks stay until that version's fence is known."""
    LEFT_TOKEN_RING = "left_token_ring"  # noqa: S105 - a state, not a secret
    ROLLBACK_TO_NORMAL = "rollback_to_normal"
    REBUILDING = "rebuilding"
    """A node streams again what it has; nobody's routing changes."""
    DROP_KEYSPACE = "drop_keyspace"
    DROP_TABLE = "drop_table"
    TRUNCATE = "truncate"
    ALLOW_WRITE_BOTH_READ_OLD = "allow_write_both_read_old"
    """First stage of a tablet's migration: replicas learn that it comes."""
    STREAMING = "streaming"
    USE_NEW = "use_new"
    CLEANUP = "cleanup"
    """The replica that was left deletes its data."""
    END_MIGRATION = "end_migration"
    """Late orders to clean up are cut off before the tablet can move again."""
    CLEANUP_TARGET = "cleanup_target"
    """On the way back: the replica that was to come deletes what it has got."""
    REVERT_MIGRATION = "revert_migration"
    REPAIR = "repair"
    """Each replica of a tablet gets what it lacks from the others; nobody's routing changes."""
    END_REPAIR = "end_repair"
    """Late orders to repair are cut off before the tablet can move."""
    SNAPSHOT = "snapshot"
    """Every node writes its rows of a table into its backup folder; nothing of the table moves meanwhile."""
    END_SNAPSHOT = "end_snapshot"
    """On the way back: whatever was written is deleted."""
    RESTORE = "restore"
    """Each replica of a tablet reads the rows of a snapshot; nobody's routing changes."""
    END_RESTORE = "end_restore"
    """Late orders to restore are cut off before the tablet can move."""
    TABLET_RESIZE_FINALIZATION = "tablet_resize_finalization"
    """Nothing of the table moves any more: its new tablet map comes next."""


class RequestKind(StrEnum):
    """Topology requests (seed 000). What each means stands in its file under ``topology/operations``."""

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
    """What a catch-up replica is to the archive of the log."""

    CANDIDATE = "candidate"
    """It could become a member."""
    JOINING = "joining"
    """It is to become one, and gets what the members have."""
    MEMBER = "member"
    """It counts for the majority that must have what is deleted from the log (CEP-21, a member of the CMS)."""


class OrderKind(StrEnum):
    """What a coordinator may order a node to do."""

    STREAM = "stream"
    CLEANUP = "cleanup"
    TRUNCATE = "truncate"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"


class ReportStatus(StrEnum):
    """How an order stands at the node that carries it out."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


class CommitMode(StrEnum):
    """Whose commands the log takes."""

    OPEN = "open"
    FROZEN = "frozen"
    """Nobody's."""
    SINGLE_USER = "single_user"
    """Those of one actor."""


class OverrideKind(StrEnum):
    """How a state took the place of another."""

    FOUND = "found"
    """A cluster began with it."""
    REVERT = "revert"
    """It was the log's own, at an older epoch."""
    LOAD = "load"
    """It came from a file."""


class BarrierLevel(StrEnum):
    """Whose answers a barrier asks for (seed 001), the highest level first."""

    ALL = "ALL"
    EACH_QUORUM = "EACH_QUORUM"
    QUORUM = "QUORUM"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    ONE = "ONE"
    NODE_LOCAL = "NODE_LOCAL"


PARTITIONER: Final = "Murmur3Partitioner"

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
"""States of a node that asked to become a member and is none yet."""

UNFINISHED: Final = frozenset({RequestStatus.PENDING, RequestStatus.RUNNING})
