"""Members, former members, and nodes that asked to become members."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Final

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact
from stele.domain.names import OWNS_TOKENS, STAYS, TAKES_PART, NodeState


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node by its id, which is never used again.

    ``address`` is empty while it is unknown, because another node announced the last one.
    ``tokens`` are signed 64-bit Murmur3 tokens, sorted. They are part of the ring only in the
    states ``OWNS_TOKENS``. A zero-token node (``num_tokens`` 0) coordinates requests and holds no
    data. ``request_id`` is the node's current topology request, or its last. ``host_id`` names the
    data directory that it was admitted with. No other directory can take its place.
    ``excluded_since`` is the epoch in which an operator declared it dead, or 0. Barriers do not
    count an excluded node, and other nodes do not serve it. ``shards`` is the number of places
    within it for replicas of tablets. It never changes. ``cleanup_since`` is the epoch since which
    the node may hold data of ranges that it no longer owns; 0 when it is clean.
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
        """Return True if it routes requests and must therefore acknowledge every step."""
        return self.state in TAKES_PART and not self.excluded

    def gone(self) -> Node:
        """Return its row after it has left."""
        return msgspec.structs.replace(
            self, state=NodeState.LEFT, tokens=(), excluded_since=0, cleanup_since=0
        )

    def cleanup_session(self) -> str:
        """Return the session of its cleanup orders; empty if it has nothing to clean up."""
        # The epoch is part of the key, so that a report on an earlier cleanup does not end a later
        # one.
        return f"cleanup-{self.node_id}-{self.cleanup_since}" if self.cleanup_since else ""


class NodeChanged(Fact, frozen=True):
    node: Node


MembershipFact = NodeChanged


# Commands that announce a node's address, release and features.
#
# Source: ScyllaDB, pull request #15196, "Cluster features on raft".


class AnnounceNode(Command, frozen=True, tag="announce_node", kw_only=True):
    """A member that restarted announces its address, release and features.

    The address is taken from a node that had it, which has no known address until it announces one.
    """

    of_services: ClassVar = True

    node_id: str
    address: str
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    host_id: str = ""
    claims_host_id: str = ""
    """Host id of the data directory whose place the node takes, if that place is unclaimed
    (``hosts``).
    """


MembershipCommand = AnnounceNode


# Host ids of unclaimed places.
#
# A cluster that begins with a dump has rows for its nodes before they start.
#
# Source: docs/decisions/031, "A cluster that begins with a dump".


_UNCLAIMED: Final = "unclaimed:"


def unclaimed(host_id: str) -> str:
    """Return the host id of a place that waits for the data directory of ``host_id``."""
    return host_id if is_unclaimed(host_id) else f"{_UNCLAIMED}{host_id}"


def is_unclaimed(host_id: str) -> bool:
    return host_id.startswith(_UNCLAIMED)


def may_take(place: str, host_id: str, claims: str = "") -> bool:
    """Return True if the directory of ``host_id`` has this place, or may take it.

    It may take an unclaimed place that waits for it. An operator lets another directory take that
    place with ``claims``, the host id that the place waits for.
    """
    if not is_unclaimed(place):
        return place == host_id
    # The marker without an id is the place of no directory, so no directory may take it.
    waits_for = place.removeprefix(_UNCLAIMED)
    return bool(waits_for) and waits_for in (host_id, claims)


class MembershipImage(msgspec.Struct, frozen=True, dict=True):
    """Nodes by id. The sets that every step and decision uses are computed once for an image."""

    nodes: Map[str, Node] = Map()

    def taking_part(self) -> Mapping[str, Node]:
        """Return the nodes that route requests and so must acknowledge each step, by id, sorted."""
        return self._taking_part

    @cached_property
    def _taking_part(self) -> dict[str, Node]:
        return {n: self.nodes[n] for n in sorted(self.nodes) if self.nodes[n].takes_part()}

    def normal(self) -> dict[str, Node]:
        """Return the nodes in state normal that are not excluded, by id, sorted."""
        taking_part = self.taking_part().items()
        return {n: node for n, node in taking_part if node.state is NodeState.NORMAL}

    def holding(self) -> Mapping[str, Node]:
        """Return the nodes that can hold replicas, by id, sorted.

        They have tokens, and are neither about to leave nor excluded.
        """
        return self._holding

    @cached_property
    def _holding(self) -> dict[str, Node]:
        taking_part = self.taking_part().items()
        return {n: node for n, node in taking_part if node.state in STAYS and node.tokens}

    def excluded(self) -> frozenset[str]:
        """Return the nodes that an operator has declared dead."""
        return self._excluded

    @cached_property
    def _excluded(self) -> frozenset[str]:
        return frozenset(n for n, node in self.nodes.items() if node.excluded)

    def uncleaned(self) -> frozenset[str]:
        """Return the members that may hold rows of ranges that they no longer own.

        They get no tablets until these rows are deleted. A tablet that returned before would bring
        its old rows back (INV-TABL-1).
        """
        return frozenset(n for n, node in self.taking_part().items() if node.cleanup_since)

    def last_exclusion(self) -> int:
        """Return the epoch of the newest exclusion; 0 if no node is excluded."""
        return max((node.excluded_since for node in self.nodes.values()), default=0)

    def ring_tokens(self) -> dict[int, str]:
        """Return token -> owner for the nodes whose tokens are part of the ring."""
        owners = (node for node in self.nodes.values() if node.state in OWNS_TOKENS)
        return {token: node.node_id for node in owners for token in node.tokens}
