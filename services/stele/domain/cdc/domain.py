"""The domain of CDC generations, entered in the registry."""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.cdc.commands import ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.cdc.decide import forget_cdc_generation, publish_cdc_generation
from stele.domain.cdc.facts import (
    CdcFact,
    CdcGenerationCommitted,
    CdcGenerationForgotten,
    CdcGenerationPublished,
    CdcGenerationWritten,
)
from stele.domain.cdc.generations import STREAMS_PER_FACT
from stele.domain.cdc.heads import GenerationSummary
from stele.domain.cdc.image import CdcImage, Generation, summary_of
from stele.domain.cdc.streams import pieces_of
from stele.domain.hashing import MODULUS, row_hash
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_rows, sorted_values

replace = msgspec.structs.replace
_SORTED_JSON: Final = msgspec.json.Encoder(order="deterministic")


def generation_written(image: CdcImage, fact: CdcGenerationWritten) -> CdcImage:
    before = image.generations.get(fact.generation_id)
    generation = Generation(
        generation_id=fact.generation_id,
        transition_id=fact.transition_id,
        epoch=fact.epoch,
        streams=fact.streams if before is None else before.streams + fact.streams,
    )
    return CdcImage(image.generations.set(fact.generation_id, generation))


def generation_committed(image: CdcImage, fact: CdcGenerationCommitted) -> CdcImage:
    return _changed(image, fact.generation_id, since_ms=fact.since_ms, committed_epoch=fact.epoch)


def generation_published(image: CdcImage, fact: CdcGenerationPublished) -> CdcImage:
    return _changed(image, fact.generation_id, published=True)


def generation_forgotten(image: CdcImage, fact: CdcGenerationForgotten) -> CdcImage:
    return CdcImage(image.generations.delete(fact.generation_id))


def _changed(image: CdcImage, generation_id: str, **fields: object) -> CdcImage:
    changed = replace(image.generations[generation_id], **fields)
    return CdcImage(image.generations.set(generation_id, changed))


def to_facts(image: CdcImage) -> Iterable[CdcFact]:
    for each in sorted_values(image.generations):
        for piece in pieces_of(each.streams, STREAMS_PER_FACT):
            yield CdcGenerationWritten(each.generation_id, each.transition_id, each.epoch, piece)
        if each.committed_epoch:
            yield CdcGenerationCommitted(each.generation_id, each.since_ms, each.committed_epoch)
        if each.published:
            yield CdcGenerationPublished(each.generation_id)


def hash_of(image: CdcImage) -> int:
    """Of each generation's head as canonical JSON, and its streams as they are."""
    rows = (_SORTED_JSON.encode(summary_of(g)) + g.streams for g in image.generations.values())
    return sum(map(row_hash, rows)) % MODULUS


def view(image: CdcImage) -> Json:
    """Without the streams, which are as many as the ranges of the ring, in every generation."""
    found = sorted(image.generations.values(), key=lambda g: (g.epoch, g.generation_id))
    return {"cdc_generations": tuple(summary_of(generation) for generation in found)}


def diff(before: CdcImage, after: CdcImage) -> Json:
    return {"cdc_generations": changed_rows("generation_id", _rows(before), _rows(after))}


def _rows(image: CdcImage) -> dict[str, GenerationSummary]:
    return {name: summary_of(generation) for name, generation in image.generations.items()}


DOMAIN = Domain(
    name="cdc",
    empty=CdcImage(),
    decide={
        PublishCdcGeneration: publish_cdc_generation,
        ForgetCdcGeneration: forget_cdc_generation,
    },
    apply={
        CdcGenerationWritten: generation_written,
        CdcGenerationCommitted: generation_committed,
        CdcGenerationPublished: generation_published,
        CdcGenerationForgotten: generation_forgotten,
    },
    to_facts=to_facts,
    view=view,
    diff=diff,
    hash=hash_of,
)
