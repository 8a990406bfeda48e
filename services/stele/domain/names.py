"""The closed sets of names that states, kinds and orders take; the words are the seeds' own."""

from enum import StrEnum
from typing import Final


class NodeState(StrEnum):
    """State of a node in the topology (seed 000, "Node state can be one of those")."""

    NONE = "none"
    BOOTSTRAPPING = "bootstrapping"
    DECOMMISSIONING = "decommissioning"
    REMOVING = "removing"
    REPLACING = "replacing"
    NORMAL = "normal"
    LEFT = "left"


class TransitionState(StrEnum):
    """Where one transition stands (seed 000, transition states of the topology)."""

    JOIN_GROUP0 = "join_group0"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    FINISHING = "finishing"
    """The new replicas alone serve; the transition and its locks stay until that version's fence is known."""
    LEFT_TOKEN_RING = "left_token_ring"  # noqa: S105 - a state, not a secret
    ROLLBACK_TO_NORMAL = "rollback_to_normal"
    DROP_KEYSPACE = "drop_keyspace"


class RequestKind(StrEnum):
    """Topology requests (seed 000). What each means stands in its file under ``topology/operations``."""

    REPLACE = "replace"
    JOIN = "join"
    REMOVE = "remove"
    LEAVE = "leave"
    EXCLUDE = "exclude"
    DROP_KEYSPACE = "drop_keyspace"
    ENABLE_FEATURES = "enable_features"


class RequestStatus(StrEnum):
    """Life of a request: pending -> running -> done | failed | cancelled."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OrderKind(StrEnum):
    """What a coordinator may order a node to do."""

    STREAM = "stream"
    CLEANUP = "cleanup"


class ReportStatus(StrEnum):
    """How an order stands at the node that carries it out."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


PARTITIONER: Final = "Murmur3Partitioner"

OWNS_TOKENS: Final = frozenset({NodeState.NORMAL, NodeState.DECOMMISSIONING, NodeState.REMOVING})
"""States in which a node's tokens are part of the ring."""

TAKES_PART: Final = frozenset(
    {NodeState.NORMAL, NodeState.DECOMMISSIONING, NodeState.BOOTSTRAPPING, NodeState.REPLACING}
)
"""States in which a node that is not excluded routes requests, and must acknowledge every step."""

JOINING: Final = frozenset({NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING})
"""States of a node that asked to become a member and is none yet."""

UNFINISHED: Final = frozenset({RequestStatus.PENDING, RequestStatus.RUNNING})
