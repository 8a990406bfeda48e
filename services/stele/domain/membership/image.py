"""The members at one epoch."""

from collections.abc import Mapping
from functools import cached_property

import msgspec
from immutables import Map

from stele.domain.membership.model import Node
from stele.domain.names import OWNS_TOKENS, STAYS, NodeState


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
