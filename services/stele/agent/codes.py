"""How a replica answers, in words that other nodes and clients act upon."""

from enum import StrEnum


class Code(StrEnum):
    """How an operation ended at a replica. Only ``OK`` and ``SUPERSEDED`` mean that it was done."""

    OK = "ok"
    SUPERSEDED = "superseded"  # a newer cell stands; ``timestamp`` is the newer one's
    STALE_VERSION = "stale_version"
    BEHIND = "behind"  # this replica could not read up to the sender's version in time
    NOT_A_REPLICA = "not_a_replica"
    SESSION_CLOSED = "session_closed"
    NODE_LEFT = "node_left"
    DISK_FULL = "disk_full"
    FAILED = "failed"
    UNREACHABLE = "unreachable"  # no answer: the caller's own finding; it may have been done
