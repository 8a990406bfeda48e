"""The facts that topology operations write about CDC generations.

Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (``commit_cdc_generation``).

An operation writes a generation with the tokens of the ring and of all open operations. It commits
the generation when every member can see it. If a later one is committed first, the earlier one is
forgotten: the later one counts its tokens too, and must stay the last. A committed generation stays
even if its nodes do not join; its streams then have smaller ranges than necessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.cdc.image import CdcImage, Generation, pieces_of, stream_ids, summary_of
from stele.domain.cdc.model import (
    CDC_MARGIN_S,
    CDC_RETENTION_S,
    CdcFact,
    CdcGenerationCommitted,
    CdcGenerationForgotten,
    CdcGenerationPublished,
    CdcGenerationWritten,
    ForgetCdcGeneration,
    GenerationSummary,
    PublishCdcGeneration,
)
from stele.domain.context import Context, Decision
from stele.domain.hashing import MODULUS, row_hash
from stele.domain.image import Image
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_rows, sorted_values
from stele.domain.topology.guards import check_term, overtaken

_CLOCKS_MS: Final = 3_600_000
"""Limit for the difference between writers' clocks, in milliseconds. Requests that far ahead are
rejected.
"""
STREAMS_PER_FACT: Final = 65_536
"""Stream ids in one fact: 1 MiB, so that a large generation can go in parts."""


def written(
    context: Context, transition_id: str, tokens: Iterable[int]
) -> Iterator[CdcGenerationWritten]:
    """Yield the facts of a new generation for a ring with these tokens."""
    generation_id = context.unique(f"cdc/{transition_id}")
    for piece in pieces_of(stream_ids(tokens, generation_id), STREAMS_PER_FACT):
        yield CdcGenerationWritten(generation_id, transition_id, context.epoch, piece)


def committed(context: Context, image: Image, transition_id: str) -> Iterator[CdcFact]:
    """Commit the transition's generation, with a time after the epoch's and after all others.

    A generation whose time came from a clock that was ahead does not hold yet, and is forgotten.
    The new generation includes its tokens.
    """
    mine = image.cdc.of_transition(transition_id)
    if mine is None:
        return
    others = image.cdc.committed()
    # The later generation has this one's tokens too and must stay the last.
    if any(other.epoch >= mine.epoch for other in others):
        yield CdcGenerationForgotten(mine.generation_id)
        return
    latest_ms = _latest_ms(context, image)
    ahead = [other for other in others if is_ahead(context, image, other)]
    yield from (CdcGenerationForgotten(other.generation_id) for other in ahead)
    # Each generation begins after all others, so their order in time is that of their commits.
    before = (other.since_ms + 1 for other in others if other not in ahead)
    yield CdcGenerationCommitted(mine.generation_id, max([latest_ms, *before]), context.epoch)


def is_ahead(context: Context, image: Image, generation: Generation) -> bool:
    """Return True if its time came from a clock that was too far ahead.

    It would not hold for long.
    """
    return generation.since_ms > _latest_ms(context, image) + _CLOCKS_MS


def _latest_ms(context: Context, image: Image) -> int:
    """Return the time from which a generation holds that is committed now, in milliseconds.

    The log's time never goes back and is the base. If a clock that was far ahead has raised it, the
    writer's clock is the base.
    """
    is_credible = context.log_ms - context.at_ms <= _CLOCKS_MS
    now_ms = context.log_ms if is_credible else context.at_ms
    return now_ms + 1000 * CDC_MARGIN_S.of(image.features.settings)


def abandoned(image: Image, transition_id: str) -> Iterator[CdcGenerationForgotten]:
    """Forget the uncommitted generation of a transition that goes back."""
    mine = image.cdc.of_transition(transition_id)
    if mine is not None:
        yield CdcGenerationForgotten(mine.generation_id)


# Decisions on when a CDC generation is published, and when it may be forgotten.
#
# Publishing is only a fact of the log. Every reader of the log has the generation already: over
# HTTP at any epoch, as a stream, in Spark or in a node. A topic of descriptions would be a second
# copy to keep in step.


def publish_cdc_generation(context: Context, command: PublishCdcGeneration) -> Decision:
    """Publish the oldest unpublished generation, so that readers never see a gap."""
    image = context.image
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    due = to_publish(image)
    if due != command.generation_id:
        return overtaken(image, f"Generation {due or 'none'} is the next one to be published.")
    return (CdcGenerationPublished(command.generation_id),)


def forget_cdc_generation(context: Context, command: ForgetCdcGeneration) -> Decision:
    image = context.image
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    if command.generation_id not in to_forget(image, context.at_ms):
        return Rejection(
            "cdc_generation_in_use",
            f"Generation {command.generation_id[:80]} is not there, or not over by the log's clock.",
            f"Nothing is to be done: it goes {CDC_RETENTION_S.name} after the next one has taken effect.",
        )
    return (CdcGenerationForgotten(command.generation_id),)


def to_publish(image: Image) -> str:
    """Return the oldest committed generation that is not published; empty if there is none.

    The version that it came with must be fenced. All nodes that answered its barrier have the
    generation.
    """
    topology = image.topology
    oldest = next(iter(image.cdc.unpublished()), None)
    if oldest is None:
        return ""
    # A version that opened after the commit shows that the commit's version was fenced before
    # (docs/design.md, rule 19).
    fenced = topology.settled() or topology.since_epoch > oldest.committed_epoch
    return oldest.generation_id if fenced else ""


def to_forget(image: Image, now_ms: int) -> list[str]:
    """Return generations whose successor has held for longer than the retention, the
    oldest first.
    """
    retention_s = CDC_RETENTION_S.of(image.features.settings)
    return [generation.generation_id for generation in image.cdc.obsolete(now_ms, retention_s)]


# The entry of CDC generations in the registry.


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
    # A large generation comes in several facts, each with more streams.
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
        # As in the log, a fact holds at most ``STREAMS_PER_FACT`` ids.
        for piece in pieces_of(each.streams, STREAMS_PER_FACT):
            yield CdcGenerationWritten(each.generation_id, each.transition_id, each.epoch, piece)
        if each.committed_epoch:
            yield CdcGenerationCommitted(each.generation_id, each.since_ms, each.committed_epoch)
        if each.published:
            yield CdcGenerationPublished(each.generation_id)


def hash_of(image: CdcImage) -> int:
    """Hash each generation's head as canonical JSON, and its streams as they are."""
    rows = (_SORTED_JSON.encode(summary_of(g)) + g.streams for g in image.generations.values())
    return sum(map(row_hash, rows)) % MODULUS


def view(image: CdcImage) -> Json:
    """Show the generations without their streams, which are as many as the ranges of the ring."""
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
