"""Maps that can be drawn, by name: placements, and the ring of tokens, which is there before any keyspace."""

from functools import lru_cache
from itertools import pairwise
from typing import Final

from stele.domain.image import Image
from stele.domain.membership.image import MembershipImage
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.tokens import MIN_TOKEN

TOKENS: Final = "*tokens"
"""No placement has such a name."""


def map_of(image: Image, name: str) -> Placement | None:
    """None where there is none of this name."""
    if name == TOKENS:
        return _tokens(image.membership)
    found = image.ring.placements.get(name)
    return None if found is None else found.renumbered(image.ring.nodes)


class _Same:
    """An image by its identity: it never changes."""

    __slots__ = ("image",)

    def __init__(self, image: MembershipImage) -> None:
        self.image = image

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.image is self.image

    def __hash__(self) -> int:
        return id(self.image)


def _tokens(membership: MembershipImage) -> Placement | None:
    return _owners(_Same(membership))


@lru_cache(maxsize=8)
def _owners(of: _Same) -> Placement | None:
    """Each range with the node whose token ends it; the last one's goes around to the first token."""
    owners = of.image.ring_tokens()
    tokens = sorted(owners)
    if not tokens:
        return None
    ends = [token for token in tokens if token != MIN_TOKEN]
    rows = [
        RangeReplicas(start, end, (owners[end],), (owners[end],))
        for start, end in pairwise((MIN_TOKEN, *ends))
    ]
    first = (owners[tokens[0]],)
    return Placement.of(
        (*rows, RangeReplicas(ends[-1] if ends else MIN_TOKEN, MIN_TOKEN, first, first))
    )
