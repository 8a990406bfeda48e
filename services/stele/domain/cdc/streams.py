"""Stream ids of CDC: one for each range of the ring, and which of them a write gets.

The form is Scylla's, as its source (cdc/generation.cc, ``stream_id``) and its manual ("CDC Stream Generations")
have it: 128 bits, big-endian. The upper 64 are a token of the stream's range, here its last one, so that a
stream's rows live where the rows do that they tell of. The lower 64 are 38 random bits, 22 bits of the
range's index in ring order, and 4 bits of the form's version, 1. A range has one stream, since nodes have no
shards.
"""

from collections.abc import Iterable, Iterator
from hashlib import shake_256
from typing import Final

import numpy as np

from stele.domain.cdc.heads import STREAM_BYTES

TOKEN_BYTES: Final = 8
RANDOM_BITS: Final = 38
INDEX_BITS: Final = 22
VERSION_BITS: Final = 4
VERSION: Final = 1


def stream_ids(tokens: Iterable[int], seed: str) -> bytes:
    """The ids of a ring with these tokens, behind each other in ring order; the random bits are the seed's."""
    ends = np.sort(np.fromiter(tokens, np.int64))
    noise = np.frombuffer(shake_256(seed.encode()).digest(8 * len(ends)), "<u8")
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
    """The last token of the range at a place."""
    begin = STREAM_BYTES * place
    return int.from_bytes(streams[begin : begin + TOKEN_BYTES], "big", signed=True)


def ends_of(streams: bytes) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The last token of every range, ascending."""
    return np.frombuffer(streams, ">i8")[::2].astype(np.int64)


def place_of(streams: bytes, token: int) -> int:
    """The place of the range that holds a token; what is behind the last end is in the first range."""
    low, high = 0, count_of(streams)
    while low < high:
        middle = (low + high) // 2
        if end_at(streams, middle) < token:
            low = middle + 1
        else:
            high = middle
    return low % count_of(streams)


def pieces_of(streams: bytes, most: int) -> Iterator[bytes]:
    """The same ids in pieces of at most so many; no ids are one empty piece."""
    size = STREAM_BYTES * most
    for begin in range(0, max(1, len(streams)), size):
        yield streams[begin : begin + size]
