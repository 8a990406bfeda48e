"""Stream ids of CDC: one for each range of the ring, and the stream of a write.

The form is that of ScyllaDB's source (cdc/generation.cc, ``stream_id``) and manual ("CDC Stream
Generations"): 128 bits, big-endian. The upper 64 bits are a token of the stream's range, here its
last one. A stream's rows are therefore on the same nodes as the rows that they describe. The lower
64 bits are 38 random bits, 22 bits of the range's index in ring order, and 4 bits of the form's
version, 1. A range has one stream, since nodes have no shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import shake_256
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from immutables import Map

from stele.domain.base import Rejection
from stele.domain.model.cdc import (
    GENERATION_LEEWAY_MS,
    STREAM_BYTES,
    GenerationHead,
    GenerationSummary,
)

TOKEN_BYTES: Final = 8
RANDOM_BITS: Final = 38
INDEX_BITS: Final = 22
VERSION_BITS: Final = 4
VERSION: Final = 1


def stream_ids(tokens: Iterable[int], seed: str) -> bytes:
    """Return the ids of a ring with these tokens, concatenated in ring order.

    ``seed`` gives the random bits.
    """
    ends = np.sort(np.fromiter(tokens, np.int64))
    # The core draws no random numbers: the bits follow from the generation's id.
    noise = np.frombuffer(shake_256(seed.encode()).digest(8 * len(ends)), "<u8")
    # The index wraps in rings of more ranges than 22 bits can count. The upper half still differs.
    index = np.arange(len(ends), dtype=np.uint64) & np.uint64((1 << INDEX_BITS) - 1)
    found = np.empty((len(ends), 2), ">u8")
    found[:, 0] = ends.view(np.uint64)
    found[:, 1] = (
        noise >> np.uint64(64 - RANDOM_BITS) << np.uint64(INDEX_BITS + VERSION_BITS)
        | index << np.uint64(VERSION_BITS)
        | np.uint64(VERSION)
    )
    return found.tobytes()


def count_of(streams: bytes) -> int:
    return len(streams) // STREAM_BYTES


def stream_at(streams: bytes, place: int) -> bytes:
    return streams[STREAM_BYTES * place : STREAM_BYTES * (place + 1)]


def end_at(streams: bytes, place: int) -> int:
    """Return the last token of the range at a place."""
    begin = STREAM_BYTES * place
    return int.from_bytes(streams[begin : begin + TOKEN_BYTES], "big", signed=True)


def ends_of(streams: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the last token of every range, ascending."""
    return np.frombuffer(streams, ">i8")[::2].astype(np.int64)


def place_of(streams: bytes, token: int) -> int:
    """Return the place of the range that holds a token.

    Tokens after the last end are in the first range.
    """
    low, high = 0, count_of(streams)
    while low < high:
        middle = (low + high) // 2
        if end_at(streams, middle) < token:
            low = middle + 1
        else:
            high = middle
    return low % count_of(streams)


def pieces_of(streams: bytes, most: int) -> Iterator[bytes]:
    """Yield the ids in pieces of at most ``most`` ids. No ids are one empty piece."""
    size = STREAM_BYTES * most
    for begin in range(0, max(1, len(streams)), size):
        yield streams[begin : begin + size]


# The CDC generations at one epoch, by id.


class Generation(GenerationHead, frozen=True, kw_only=True):
    """A generation with its streams: ids of 16 bytes, concatenated (``stream_ids``)."""

    streams: bytes = b""

    def fits(self, tokens: set[int]) -> bool:
        """Return True if it has exactly the ranges of a ring with these tokens."""
        return tokens == {*ends_of(self.streams).tolist()}


class CdcImage(msgspec.Struct, frozen=True):
    generations: Map[str, Generation] = Map()

    def committed(self) -> list[Generation]:
        """Return the committed generations, by the time from which they hold."""
        found = [g for g in self.generations.values() if g.committed_epoch]
        return sorted(found, key=lambda generation: generation.since_ms)

    def unpublished(self) -> list[Generation]:
        """Return the committed but unpublished generations, by the time from which they hold."""
        return [generation for generation in self.committed() if not generation.published]

    def newest(self) -> Generation | None:
        """Return the committed generation that holds last, or None."""
        return next(reversed(self.committed()), None)

    def of_transition(self, transition_id: str) -> Generation | None:
        """Return the uncommitted generation of a transition, or None."""
        for generation in self.generations.values():
            if generation.transition_id == transition_id and not generation.committed_epoch:
                return generation
        return None

    def obsolete(self, now_ms: int, retention_s: int) -> list[Generation]:
        """Return generations whose published successor has held for longer than the retention.

        ``now_ms`` is the time at which that is so, ``retention_s`` the retention in seconds.
        """
        committed = self.committed()
        latest_ms = now_ms - 1000 * retention_s
        return [
            before
            for before, after in pairwise(committed)
            if after.published and after.since_ms < latest_ms
        ]


def summary_of(generation: Generation) -> GenerationSummary:
    head = {name: getattr(generation, name) for name in GenerationHead.__struct_fields__}
    return GenerationSummary(**head, streams=count_of(generation.streams))


# The CDC stream of a write, by its time and its token.


def check_not_ahead(write_ms: int, now_ms: int) -> Rejection | None:
    """Reject a write whose time is further ahead of the clock than the leeway."""
    if write_ms <= now_ms + GENERATION_LEEWAY_MS:
        return None
    return Rejection(
        "cdc_write_from_the_future",
        f"The write is {write_ms - now_ms} ms ahead of the clock; no more than {GENERATION_LEEWAY_MS} ms"
        " are taken, since it is not known which CDC generation will hold then.",
        "Synchronize the clocks, or let the store give the write its time.",
    )


def stream_of(
    generations: Sequence[Generation], token: int, write_ms: int, now_ms: int
) -> bytes | Rejection:
    """Return the id of the stream, 16 bytes, by ScyllaDB's rule (cdc/metadata.cc, ``get_stream``).

    ``generations`` are the committed ones by their times. ``write_ms`` is the write's own time and
    ``now_ms`` the clock of the node that takes it. A write goes to the generation that holds at its
    time.

    Two writes are rejected:
    - The time is further ahead than the leeway. A generation that is still unknown may hold then.
    - The time is further behind than the leeway, in a generation that no longer holds. Readers may
      be past its end.
    """
    ahead = check_not_ahead(write_ms, now_ms)
    if ahead is not None:
        return ahead
    held = [generation for generation in generations if generation.since_ms <= write_ms]
    if not held:
        return Rejection(
            "cdc_no_generation",
            "No CDC generation that is kept holds at the write's time.",
            "`stele cdc generations` shows from when the oldest holds: wait for that, or let the store give the"
            " write its time.",
        )
    used = held[-1]
    # A write that is late by less than the leeway is taken: clocks differ by as much.
    following = next((g for g in generations if used.since_ms < g.since_ms <= now_ms), None)
    if following is not None and write_ms <= now_ms - GENERATION_LEEWAY_MS:
        return Rejection(
            "cdc_write_too_old",
            f"The write is of {write_ms}; since {following.since_ms} another CDC generation holds, and readers"
            " may be past the end of the one before.",
            "Synchronize the clocks, or let the store give the write its time.",
        )
    return stream_at(used.streams, place_of(used.streams, token))
