"""CDC generations as facts: written in pieces, committed with a time, published, forgotten (seed 000)."""

from stele.domain.base import Fact


class CdcGenerationWritten(Fact, frozen=True):
    """The stream ids of a generation, or more of them, to be put behind those that came before.

    ``streams`` are ids of 16 bytes each, in the order of their tokens (``streams.py``). ``epoch`` wrote them
    for ``transition_id``; nobody uses them before they are committed.
    """

    generation_id: str
    transition_id: str
    epoch: int
    streams: bytes


class CdcGenerationCommitted(Fact, frozen=True):
    """It holds for writes of ``since_ms`` (milliseconds since 1970) and later, until the next one does."""

    generation_id: str
    since_ms: int
    epoch: int


class CdcGenerationPublished(Fact, frozen=True):
    """Whoever answered the barrier of its version knows it: readers may look for its streams."""

    generation_id: str


class CdcGenerationForgotten(Fact, frozen=True):
    """It leaves the image: it was never committed, or nobody reads its streams any more."""

    generation_id: str


CdcFact = (
    CdcGenerationWritten | CdcGenerationCommitted | CdcGenerationPublished | CdcGenerationForgotten
)
