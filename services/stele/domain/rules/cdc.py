"""The rules of CDC: captured tables, the streams of their changes, and the generations.

Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (``commit_cdc_generation``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import shake_256
from itertools import pairwise
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.hashing import MODULUS, row_hash
from stele.domain.image import Image
from stele.domain.model.cdc import (
    CDC_MARGIN_S,
    CDC_RETENTION_S,
    GENERATION_LEEWAY_MS,
    STREAM_BYTES,
    CdcFact,
    CdcGenerationCommitted,
    CdcGenerationForgotten,
    CdcGenerationPublished,
    CdcGenerationWritten,
    ForgetCdcGeneration,
    PublishCdcGeneration,
)
from stele.domain.model.cdc_streams import (
    INDEX_BITS,
    RANDOM_BITS,
    TOKEN_BYTES,
    VERSION,
    VERSION_BITS,
    CdcImage,
    Generation,
    check_not_ahead,
    count_of,
    end_at,
    pieces_of,
    place_of,
    stream_at,
    stream_ids,
    stream_of,
    summary_of,
)
from stele.domain.model.schema import SchemaImage, owner_of
from stele.domain.registry_entry import Domain
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, upper_bound
from stele.domain.rules.requests import check_term, overtaken
from stele.domain.rules.table_parameters import CDC, map_entries
from stele.domain.tables import Json, sorted_values
from stele.domain.tablets.maps import MAX_TABLETS, TOKEN_BITS, range_of

# Capture of the changes of a table: its options, its streams, and the times that writes may have.
#
# A change log has the changes of a table by token and time. A stream is a range of tokens for a
# time: a range of a CDC generation, or a tablet. So a change is in the stream that its token and
# its time select, and nothing is rewritten when a generation, a split or a merge begins new
# streams.


# Options.


class CdcOptions(msgspec.Struct, frozen=True):
    """The parameter ``cdc`` of a table. Changes are kept for ``ttl_s`` seconds; 0 means for ever.

    A table with ``enabled`` False keeps its log until the changes in it are old.
    """

    enabled: bool = False
    preimage: bool = False
    ttl_s: int = CDC_RETENTION_S.default


def cdc_of(schema: SchemaImage, data_id: str) -> CdcOptions | None:
    """Return the options of the table that has this data, or None if it has no change log."""
    table = schema.tables.get(owner_of(data_id))
    if table is None:
        return None
    columns = schema.schemas.get(table.table_id)
    literal = table.options.cdc if columns is None else columns.parameters.get(CDC, "")
    return _parsed(literal) if literal else None


def is_captured(schema: SchemaImage, data_id: str) -> bool:
    """Return True if the changes of the table that has this data are captured now."""
    options = cdc_of(schema, data_id)
    return options is not None and options.enabled


@lru_cache(maxsize=1024)
def _parsed(literal: str) -> CdcOptions:
    entries = map_entries(literal) or {}
    return CdcOptions(
        enabled=entries.get("enabled", "true") == "true",
        preimage=entries.get("preimage", "false") != "false",
        ttl_s=int(entries.get("ttl", CDC_RETENTION_S.default)),
    )


# Times.


def confidence_ms(request_timeout_s: float) -> int:
    """Return the age after which no more changes of a time are acknowledged, in milliseconds.

    A write gets its time after its request began, and is acknowledged within the time limit of
    requests. Clocks differ by at most the leeway. ScyllaDB's consumers use 30 s.
    """
    return int(1000 * request_timeout_s) + GENERATION_LEEWAY_MS


def check_time(
    image: Image, data_id: str, token: int, write_ms: int, now_ms: int, window_ms: int
) -> Rejection | None:
    """Return why a write of a captured table is refused: it is too late or too early.

    ``window_ms`` is that of ``confidence_ms``. Readers may be past the times before it.
    """
    if write_ms <= now_ms - window_ms:
        return Rejection(
            "cdc_write_too_old",
            f"The write is {now_ms - write_ms} ms behind the clock. Readers of the changes may be past it,"
            f" since only {window_ms} ms are allowed.",
            "Synchronize the clocks, and write again.",
        )
    if _has_tablets(image, data_id):  # tablets have no generations
        return check_not_ahead(write_ms, now_ms)
    found = stream_of(image.cdc.committed(), token, write_ms, now_ms)
    return found if isinstance(found, Rejection) else None


def _has_tablets(image: Image, data_id: str) -> bool:
    table = image.schema.tables.get(owner_of(data_id))
    return table is not None and bool(table.placement)


# Streams.


class ChangeStream(msgspec.Struct, frozen=True):
    """A stream: the changes of some tokens with times in [``since_ms``, ``until_ms``).

    ``until_ms`` is 0 while no later stream has these tokens.
    """

    stream_id: bytes
    ranges: tuple[Range, ...]
    since_ms: int = 0
    until_ms: int = 0


class StreamSet(msgspec.Struct, frozen=True):
    """Streams that cover the ring for a time: a CDC generation, or the tablets at present.

    ``generation_id`` is empty for tablets.
    """

    generation_id: str
    since_ms: int
    until_ms: int
    streams: tuple[ChangeStream, ...]


WHOLE_RING: Final = (Range(MIN_TOKEN, MIN_TOKEN),)


def stream_sets(image: Image, data_id: str) -> Iterator[StreamSet]:
    """Yield the streams of a table by time, the oldest first."""
    if _has_tablets(image, data_id):
        table_id = owner_of(data_id)
        count = len(image.ring.placements[image.schema.tables[table_id].placement])
        tablets = (_of_tablet(table_id, count, tablet) for tablet in range(count))
        yield StreamSet("", 0, 0, tuple(tablets))
        return
    for generation, until_ms in _with_ends(image):
        places = range(count_of(generation.streams))
        streams = tuple(_of_generation(generation, until_ms, place) for place in places)
        yield StreamSet(generation.generation_id, generation.since_ms, until_ms, streams)


def find_stream(image: Image, data_id: str, stream_id: bytes) -> ChangeStream | None:
    """Return a stream by its id. A tablet's stream is found after its tablet was split or merged."""
    if len(stream_id) != STREAM_BYTES:
        return None
    end = int.from_bytes(stream_id[:TOKEN_BYTES], "big", signed=True)
    if _has_tablets(image, data_id):
        return _found_tablet(owner_of(data_id), stream_id, end)
    for generation, until_ms in _with_ends(image):
        place = place_of(generation.streams, end) if generation.streams else 0
        if stream_at(generation.streams, place) == stream_id:
            return _of_generation(generation, until_ms, place)
    return None


def _with_ends(image: Image) -> Iterator[tuple[Generation, int]]:
    committed = image.cdc.committed()
    for this, following in pairwise((*committed, None)):
        assert this is not None
        yield this, 0 if following is None else following.since_ms


def _of_generation(generation: Generation, until_ms: int, place: int) -> ChangeStream:
    streams = generation.streams
    end = end_at(streams, place)
    if place:
        ranges = [Range(end_at(streams, place - 1), end)]
    else:  # tokens after the last end are in the first range
        last = end_at(streams, count_of(streams) - 1)
        ranges = [Range(MIN_TOKEN, end), Range(last, MIN_TOKEN)]
    nonempty = (each for each in ranges if each.start < upper_bound(each.end))
    return ChangeStream(stream_at(streams, place), tuple(nonempty), generation.since_ms, until_ms)


def _of_tablet(table_id: str, count: int, tablet: int) -> ChangeStream:
    """Return a tablet's stream. Its id has the form of a generation's, and determines the range."""
    range_ = range_of(count, tablet)
    end = MAX_TOKEN if range_.end == MIN_TOKEN else range_.end
    noise = int.from_bytes(shake_256(f"{table_id}/{count}".encode()).digest(TOKEN_BYTES), "big")
    low = noise >> (TOKEN_BITS - RANDOM_BITS) << (INDEX_BITS + VERSION_BITS)
    low |= tablet << VERSION_BITS | VERSION
    upper, lower = end.to_bytes(TOKEN_BYTES, "big", signed=True), low.to_bytes(TOKEN_BYTES, "big")
    return ChangeStream(upper + lower, (range_,))


def _found_tablet(table_id: str, stream_id: bytes, end: int) -> ChangeStream | None:
    low = int.from_bytes(stream_id[TOKEN_BYTES:], "big")
    tablet = (low >> VERSION_BITS) & ((1 << INDEX_BITS) - 1)
    # The tablets up to this one have equal widths, and end at this token.
    width = max(1, (end - MIN_TOKEN + 1) // (tablet + 1))
    count = (1 << TOKEN_BITS) // width
    if not tablet < count <= MAX_TABLETS or count & (count - 1):
        return None
    found = _of_tablet(table_id, count, tablet)
    return found if found.stream_id == stream_id else None


# The facts that topology operations write about CDC generations.
#
# An operation writes a generation with the tokens of the ring and of all open operations. It
# commits the generation when every member can see it. If a later one is committed first, the
# earlier one is forgotten: the later one counts its tokens too, and must stay the last. A
# committed generation stays even if its nodes do not join; its streams then have smaller ranges
# than necessary.


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
    required(check_term(image, command.term))
    due = to_publish(image)
    if not due or due != command.generation_id:
        return overtaken(image, f"Generation {due or 'none'} is the next one to be published.")
    return (CdcGenerationPublished(command.generation_id),)


def forget_cdc_generation(context: Context, command: ForgetCdcGeneration) -> Decision:
    image = context.image
    required(check_term(image, command.term))
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


def rows(image: CdcImage) -> Json:
    """Return the generations without their streams, which are as many as the ranges of the ring."""
    return {"cdc_generations": {id_: summary_of(each) for id_, each in image.generations.items()}}


def view(image: CdcImage) -> Json:
    """Return the generations in the order of their epochs."""
    found = rows(image)["cdc_generations"].values()
    return {"cdc_generations": tuple(sorted(found, key=lambda g: (g.epoch, g.generation_id)))}


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
    rows=rows,
    view=view,
    hash=hash_of,
)
