"""The life of a CDC generation as facts: what a topology operation writes on its way (seed 000).

A generation is written with the tokens of the ring after all that is open, and committed when everybody can see
it. One that was written before another that is committed already is forgotten instead: the other counts its
tokens too, and must stay the last. One that is committed stays, even if the nodes that it was made for do not
join after all: it then has streams of smaller ranges than need be.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from stele.domain.cdc.facts import (
    CdcFact,
    CdcGenerationCommitted,
    CdcGenerationForgotten,
    CdcGenerationWritten,
)
from stele.domain.cdc.limits import CDC_MARGIN_S
from stele.domain.cdc.streams import pieces_of, stream_ids
from stele.domain.context import Context
from stele.domain.image import Image

STREAMS_PER_FACT: Final = 65_536
"""1 MiB, so that a large generation can go in parts."""


def written(
    context: Context, transition_id: str, tokens: Iterable[int]
) -> Iterator[CdcGenerationWritten]:
    """The generation of a ring with these tokens."""
    generation_id = context.unique(f"cdc/{transition_id}")
    for piece in pieces_of(stream_ids(tokens, generation_id), STREAMS_PER_FACT):
        yield CdcGenerationWritten(generation_id, transition_id, context.epoch, piece)


def committed(context: Context, image: Image, transition_id: str) -> Iterator[CdcFact]:
    """The transition's generation holds from a time on that is ahead of the epoch's, and behind all others."""
    mine = image.cdc.of_transition(transition_id)
    if mine is None:
        return
    others = image.cdc.committed()
    if any(other.epoch >= mine.epoch for other in others):
        yield CdcGenerationForgotten(mine.generation_id)
        return
    since_ms = context.at_ms + 1000 * CDC_MARGIN_S.of(image.features.settings)
    since_ms = max([since_ms, *(other.since_ms + 1 for other in others)])
    yield CdcGenerationCommitted(mine.generation_id, since_ms, context.epoch)


def abandoned(image: Image, transition_id: str) -> Iterator[CdcGenerationForgotten]:
    """What was written for a transition that goes back before it was committed."""
    mine = image.cdc.of_transition(transition_id)
    if mine is not None:
        yield CdcGenerationForgotten(mine.generation_id)
