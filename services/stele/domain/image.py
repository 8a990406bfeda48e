"""The image: everything the log says, at one epoch. Immutable; images share structure.

There is one image for each domain, and one that holds them together with its place in the log.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from immutables import Map

from stele.domain.entities import Coordinator, Keyspace, Node, Operation, Request, Topology
from stele.domain.names import OWNS_TOKENS, TAKES_PART, UNFINISHED, NodeState
from stele.domain.requests.memory import RequestMemory
from stele.domain.ring.ranges import Placement
from stele.domain.ring.strategy import NodeLocation

V = TypeVar("V")

ZERO_STATE: Final = bytes(16)
"""State id before the first epoch."""

FINISHED_REQUESTS: Final = 1000
"""Finished topology requests kept in the image; older ones remain readable in the log."""


class MembershipImage(msgspec.Struct, frozen=True):
    nodes: Map[str, Node] = Map()

    def taking_part(self) -> dict[str, Node]:
        """Nodes that route requests and so must acknowledge each step, by id, sorted."""
        return {n: self.nodes[n] for n in sorted(self.nodes) if self.nodes[n].state in TAKES_PART}

    def normal(self) -> dict[str, Node]:
        """Nodes in state normal by id, sorted."""
        found = (n for n in sorted(self.nodes) if self.nodes[n].state is NodeState.NORMAL)
        return {n: self.nodes[n] for n in found}

    def ring_tokens(self) -> dict[int, str]:
        """Token -> owner, of the nodes whose tokens are part of the ring."""
        owners = (node for node in self.nodes.values() if node.state in OWNS_TOKENS)
        return {token: node.node_id for node in owners for token in node.tokens}

    def locations(self) -> dict[str, NodeLocation]:
        """dc and rack of the nodes that have tokens in the ring."""
        owners = (n for n in self.nodes.values() if n.state in OWNS_TOKENS and n.tokens)
        return {node.node_id: NodeLocation(dc=node.dc, rack=node.rack) for node in owners}


class RingImage(msgspec.Struct, frozen=True):
    """Placements by name; see ``entities.placement_name``."""

    placements: Map[str, Placement] = Map()


class SchemaImage(msgspec.Struct, frozen=True):
    keyspaces: Map[str, Keyspace] = Map()

    def replications(self) -> dict[str, dict[str, int]]:
        """Placement name -> dc -> replication factor, for all placements in use, sorted."""
        found = {k.placement: k.replication for k in self.keyspaces.values()}
        return dict(sorted(found.items()))


class TopologyImage(msgspec.Struct, frozen=True):
    topology: Topology = Topology()
    operation: Operation | None = None
    coordinator: Coordinator = Coordinator()


class RequestsImage(msgspec.Struct, frozen=True):
    requests: Map[str, Request] = Map()

    def unfinished(self) -> list[Request]:
        """Pending and running requests, first come first."""
        found = (r for r in self.requests.values() if r.status in UNFINISHED)
        return sorted(found, key=lambda r: (r.submitted_epoch, r.request_id))


class FeaturesImage(msgspec.Struct, frozen=True):
    enabled: tuple[str, ...] = ()
    settings: Map[str, str] = Map()


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """All of the metadata at ``epoch``, whose state id is ``state_id`` (16 bytes)."""

    epoch: int = 0
    state_id: bytes = ZERO_STATE
    cluster: str = ""
    cluster_id: str = ""
    partitioner: str = ""
    membership: MembershipImage = MembershipImage()
    ring: RingImage = RingImage()
    schema: SchemaImage = SchemaImage()
    topology: TopologyImage = TopologyImage()
    requests: RequestsImage = RequestsImage()
    features: FeaturesImage = FeaturesImage()
    decided: RequestMemory | None = RequestMemory()
    """Which requests were decided. None in a process that never decides and does not keep it."""

    def node(self, node_id: str) -> Node | None:
        return self.membership.nodes.get(node_id)

    def request(self, request_id: str) -> Request | None:
        return self.requests.requests.get(request_id)

    def placement_of(self, keyspace: str) -> Placement | None:
        """The placement of a keyspace; None when there is no such keyspace."""
        found = self.schema.keyspaces.get(keyspace)
        return None if found is None else self.ring.placements.get(found.placement)


EMPTY: Final = Image()
EMPTY_FOR_FOLLOWERS: Final = Image(decided=None)
"""For a process that never decides a command: it does not remember who was told what."""


def sorted_values(mapping: Mapping[str, V]) -> Iterable[V]:
    """Values by sorted key: a map's own order is no part of any result."""
    return (mapping[key] for key in sorted(mapping))
