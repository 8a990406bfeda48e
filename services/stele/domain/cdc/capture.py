"""Capture of the changes of a table: its options, its streams, and the times that writes may have.

A change log has the changes of a table by token and time. A stream is a range of tokens for a time:
a range of a CDC generation, or a tablet. So a change is in the stream that its token and its time
select, and nothing is rewritten when a generation, a split or a merge begins new streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import shake_256
from itertools import pairwise
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.cdc.image import (
    INDEX_BITS,
    RANDOM_BITS,
    TOKEN_BYTES,
    VERSION,
    VERSION_BITS,
    Generation,
    check_not_ahead,
    count_of,
    end_at,
    place_of,
    stream_at,
    stream_of,
)
from stele.domain.cdc.model import CDC_RETENTION_S, GENERATION_LEEWAY_MS, STREAM_BYTES
from stele.domain.image import Image
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, upper_bound
from stele.domain.schema.model import SchemaImage, owner_of
from stele.domain.schema.parameters import CDC, map_entries
from stele.domain.tablets.maps import MAX_TABLETS, TOKEN_BITS, range_of

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
