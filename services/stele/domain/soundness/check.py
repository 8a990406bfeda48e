"""All that is unsound in an image: one loop over what each room of this folder looks for."""

from collections.abc import Callable, Iterator
from typing import Final

from stele.domain.image import Image
from stele.domain.soundness.flaw import Flaw
from stele.domain.soundness.members import member_flaws
from stele.domain.soundness.placements import placement_flaws, reader_flaws
from stele.domain.soundness.ring import ring_flaws
from stele.domain.soundness.schema import schema_flaws
from stele.domain.soundness.transitions import transition_flaws, version_flaws

_CHECKS: Final[tuple[Callable[[Image], Iterator[Flaw]], ...]] = (
    version_flaws,
    member_flaws,
    schema_flaws,
    placement_flaws,
    reader_flaws,
    transition_flaws,
)


def flaws_of(image: Image) -> Iterator[Flaw]:
    """In the order topology, nodes, schema, placements, what is under way, and if there are none the ring. A
    state that the log has made has none.
    """
    sound = True
    for check in _CHECKS:
        for flaw in check(image):
            sound = False
            yield flaw
    if sound:
        yield from ring_flaws(image)
