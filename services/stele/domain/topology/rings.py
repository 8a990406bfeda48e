"""The ring as tokens and places: how it is, and how it will be once open transitions are done."""

from collections.abc import Mapping

import msgspec

from stele.domain.image import Image
from stele.domain.ring.placement import Placement
from stele.domain.ring.strategy import NodeLocation, placement_of

Replication = tuple[tuple[str, int], ...]


class Ring(msgspec.Struct, frozen=True):
    """Token -> owner, and dc and rack of every owner. Its placements are computed once."""

    tokens: dict[int, str]
    locations: dict[str, NodeLocation]
    known: dict[Replication, Placement] = msgspec.field(default_factory=dict)

    def placement(self, replication: Mapping[str, int]) -> Placement:
        """The natural replicas of a ring at rest."""
        key = tuple(sorted(replication.items()))
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
    """The ring of the nodes that own tokens, as if nothing that is open were done."""
    return Ring(image.membership.ring_tokens(), image.membership.locations())


def tokens_of_streams(image: Image) -> set[int]:
    """The tokens that a CDC generation must have: of the ring as it is, to which what is undone goes back, and
    those that come with what is open. Streams of smaller ranges than need be do no harm.
    """
    subjects = (subject for each in image.topology.open() for subject in each.subjects)
    return {*image.membership.ring_tokens(), *(token for each in subjects for token in each.tokens)}
