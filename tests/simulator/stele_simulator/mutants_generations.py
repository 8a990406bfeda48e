"""Planted bugs of CDC generations: what they count, when they are committed, and what is left behind."""

from collections.abc import Iterable, Iterator

from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.model.cdc import CdcFact, CdcGenerationCommitted
from stele.domain.rules import cdc
from stele.domain.rules.ring import ring_now
from stele.domain.topology import steps
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted


@planted(STORY)
def generation_forgets_who_joins(patch: Patch) -> None:
    """A CDC generation counts only the tokens of the ring before the join that it is made for."""
    patch.attribute(steps, "tokens_of_streams", lambda image: {*ring_now(image).tokens})


@planted(STORY)
def generation_is_committed_unseen(patch: Patch) -> None:
    """A CDC generation is committed by the epoch that writes it: no barrier comes between."""
    plain = cdc.written

    def at_once(context: Context, transition_id: str, tokens: Iterable[int]) -> Iterator[CdcFact]:
        facts = [*plain(context, transition_id, tokens)]
        yield from facts
        yield CdcGenerationCommitted(facts[0].generation_id, context.at_ms, context.epoch)

    patch.attribute(steps, "written", at_once)


@planted(STORY)
def undone_generation_is_left(patch: Patch) -> None:
    """The generation of an undone operation stays."""

    def nothing(image: Image, transition_id: str) -> tuple[CdcFact, ...]:
        return ()

    patch.attribute(steps, "abandoned", nothing)
