"""The members at one epoch."""

import msgspec
from immutables import Map

from stele.domain.membership.facts import Node
from stele.domain.names import OWNS_TOKENS, STAYS, NodeState
from stele.domain.ring.strategy import NodeLocation


class MembershipImage(msgspec.Struct, frozen=True):
    nodes: Map[str, Node] = Map()

    def taking_part(self) -> dict[str, Node]:
        """Nodes that route requests and so must acknowledge each step, by id, sorted."""
        return {n: self.nodes[n] for n in sorted(self.nodes) if self.nodes[n].takes_part()}

    def normal(self) -> dict[str, Node]:
        """Nodes in state normal, but for those that are excluded, by id, sorted."""
        taking_part = self.taking_part().items()
        return {n: node for n, node in taking_part if node.state is NodeState.NORMAL}

    def holding(self) -> dict[str, Node]:
        """Room for replicas: nodes with tokens that are not about to go, nor excluded, by id, sorted."""
        taking_part = self.taking_part().items()
        return {n: node for n, node in taking_part if node.state in STAYS and node.tokens}

    def excluded(self) -> frozenset[str]:
        """Nodes that an operator has declared dead for good."""
        return frozenset(n for n, node in self.nodes.items() if node.excluded)

    def last_exclusion(self) -> int:
        """The epoch that excluded one of its nodes last; 0 when none is excluded."""
        return max((node.excluded_since for node in self.nodes.values()), default=0)

    def ring_tokens(self) -> dict[int, str]:
        """Token -> owner, of the nodes whose tokens are part of the ring."""
        owners = (node for node in self.nodes.values() if node.state in OWNS_TOKENS)
        return {token: node.node_id for node in owners for token in node.tokens}

    def locations(self) -> dict[str, NodeLocation]:
        """dc and rack of the nodes that have tokens in the ring."""
        owners = (n for n in self.nodes.values() if n.state in OWNS_TOKENS and n.tokens)
        return {node.node_id: NodeLocation(dc=node.dc, rack=node.rack) for node in owners}
