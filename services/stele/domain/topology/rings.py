"""The ring as tokens and locations, now and after the open transitions."""

from collections.abc import Mapping

import msgspec

from stele.domain.image import Image
from stele.domain.names import OWNS_TOKENS
from stele.domain.ring.placement import Placement
from stele.domain.ring.strategy import NodeLocation, placement_of

Replication = tuple[tuple[str, int], ...]


class Ring(msgspec.Struct, frozen=True):
    """The owner of each token, and dc and rack of every owner. Placements are computed once."""

    tokens: dict[int, str]
    locations: dict[str, NodeLocation]
    known: dict[Replication, Placement] = msgspec.field(default_factory=dict)

    def placement(self, replication: Mapping[str, int]) -> Placement:
        """Return the natural replicas of the ring at rest."""
        key = tuple(sorted(replication.items()))
        # Placements of equal replication are shared: computing one is expensive.
        if key not in self.known:
            self.known[key] = placement_of(self.tokens, self.locations, replication)
        return self.known[key]

    def with_node(self, node_id: str, location: NodeLocation, tokens: tuple[int, ...]) -> "Ring":
        if not tokens:
            return self
        return Ring(
            {**self.tokens, **dict.fromkeys(tokens, node_id)}, {**self.locations, node_id: location}
        )

    def without_node(self, node_id: str) -> "Ring":
        tokens = {token: owner for token, owner in self.tokens.items() if owner != node_id}
        locations = {n: place for n, place in self.locations.items() if n != node_id}
        return Ring(tokens, locations)


def ring_now(image: Image) -> Ring:
    """Return the ring of the nodes that own tokens, without any effect of open transitions."""
    return Ring(image.membership.ring_tokens(), locations_now(image))


def locations_now(image: Image) -> dict[str, NodeLocation]:
    """Return dc and rack of the nodes that have tokens in the ring."""
    nodes = image.membership.nodes.values()
    owners = (n for n in nodes if n.state in OWNS_TOKENS and n.tokens)
    return {node.node_id: NodeLocation(dc=node.dc, rack=node.rack) for node in owners}


def tokens_of_streams(image: Image) -> set[int]:
    """Return the tokens that a CDC generation must have.

    They are those of the present ring, to which an undone transition returns, and those of open
    transitions. Streams for smaller ranges than necessary are harmless.
    """
    subjects = (subject for each in image.topology.open() for subject in each.subjects)
    return {*image.membership.ring_tokens(), *(token for each in subjects for token in each.tokens)}
