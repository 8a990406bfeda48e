"""Members, former members, and nodes that asked to become one."""

import msgspec

from stele.domain.base import Fact
from stele.domain.names import TAKES_PART, NodeState


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node by its id, which is never used again.

    ``tokens`` are signed 64-bit Murmur3 tokens, sorted; they count as part of the ring only in the
    states ``OWNS_TOKENS``. A zero-token node (``num_tokens`` 0) coordinates requests and holds no data.
    ``request_id`` is the node's current topology request, or its last.
    ``host_id`` names the data directory that it was admitted with; no other one can take its place.
    ``excluded_since`` is the epoch in which it was declared dead for good, 0 for all others: nobody waits
    for it or serves it any more.
    ``shards`` are the places within it that replicas of tablets have, numbered from 0; they stay as many.
    ``cleanup_since`` is the epoch since which it may hold data that is no longer its own; 0 when it is clean.
    """

    node_id: str
    address: str
    dc: str
    rack: str
    num_tokens: int
    state: NodeState = NodeState.NONE
    tokens: tuple[int, ...] = ()
    initial_tokens: tuple[int, ...] = ()
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    cleanup_since: int = 0
    request_id: str = ""
    host_id: str = ""
    excluded_since: int = 0
    shards: int = 1

    @property
    def excluded(self) -> bool:
        return self.excluded_since > 0

    def takes_part(self) -> bool:
        """Whether it routes requests, and must therefore acknowledge every step."""
        return self.state in TAKES_PART and not self.excluded

    def gone(self) -> "Node":
        """Its row once it has left: nothing is expected of it any more."""
        return msgspec.structs.replace(
            self, state=NodeState.LEFT, tokens=(), excluded_since=0, cleanup_since=0
        )

    def cleanup_session(self) -> str:
        """What orders to clean up are keyed by; empty when there is nothing to clean."""
        return f"cleanup-{self.node_id}-{self.cleanup_since}" if self.cleanup_since else ""


class NodeChanged(Fact, frozen=True):
    node: Node


MembershipFact = NodeChanged
