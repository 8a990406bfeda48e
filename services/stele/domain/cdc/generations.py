"""The life of a CDC generation as facts: what a topology operation writes on its way (seed 000).

A generation is written with the tokens of the ring as it is and those that come with what is open, and
committed when everybody can see it. One that was written before another that is committed already is forgotten
instead: the other counts its tokens too, and must stay the last. One that is committed stays, even if the nodes
that it was made for do not join after all: it then has streams of smaller ranges than need be.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from stele.domain.cdc.facts import (
    CdcFact,
    CdcGenerationCommitted,
    CdcGenerationForgotten,
    CdcGenerationWritten,
)
from stele.domain.cdc.image import Generation
from stele.domain.cdc.limits import CDC_MARGIN_S
from stele.domain.cdc.streams import pieces_of, stream_ids
from stele.domain.context import Context
from stele.domain.image import Image

_CLOCKS_MS: Final = 3_600_000
"""Clocks of writers that differ by more are broken: requests of such times are refused, too."""
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
    """The transition's generation holds from a time on that is ahead of the epoch's, and behind all others.

    One that got its time from a clock that was ahead does not hold yet, and goes: this one counts its tokens.
    """
    mine = image.cdc.of_transition(transition_id)
    if mine is None:
        return
    others = image.cdc.committed()
    if any(other.epoch >= mine.epoch for other in others):
        yield CdcGenerationForgotten(mine.generation_id)
        return
    latest_ms = _latest_ms(context, image)
    ahead = [other for other in others if is_ahead(context, image, other)]
    yield from (CdcGenerationForgotten(other.generation_id) for other in ahead)
    before = (other.since_ms + 1 for other in others if other not in ahead)
    yield CdcGenerationCommitted(mine.generation_id, max([latest_ms, *before]), context.epoch)


def is_ahead(context: Context, image: Image, generation: Generation) -> bool:
    """It got its time from a clock that was ahead by more than clocks may differ: it will not hold for long."""
    return generation.since_ms > _latest_ms(context, image) + _CLOCKS_MS


def _latest_ms(context: Context, image: Image) -> int:
    """From when one would hold that is committed now: by the log's time, which never goes back; if a clock that
    was far ahead has taken that along, by the writer's.
    """
    is_credible = context.log_ms - context.at_ms <= _CLOCKS_MS
    now_ms = context.log_ms if is_credible else context.at_ms
    return now_ms + 1000 * CDC_MARGIN_S.of(image.features.settings)


def abandoned(image: Image, transition_id: str) -> Iterator[CdcGenerationForgotten]:
    """What was written for a transition that goes back before it was committed."""
    mine = image.cdc.of_transition(transition_id)
    if mine is not None:
        yield CdcGenerationForgotten(mine.generation_id)
