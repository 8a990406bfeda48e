"""Stream ids: their form and order, and the stream of a write by token and time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.base import Rejection
from stele.domain.model.cdc import GENERATION_LEEWAY_MS, STREAM_BYTES
from stele.domain.model.cdc_streams import (
    Generation,
    count_of,
    end_at,
    ends_of,
    pieces_of,
    place_of,
    stream_at,
    stream_ids,
    stream_of,
)
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN

TOKENS = st.integers(MIN_TOKEN + 1, MAX_TOKEN)
RINGS = st.sets(TOKENS, min_size=1, max_size=40)


def generation(name: str, since_ms: int, tokens: set[int]) -> Generation:
    return Generation(
        generation_id=name,
        transition_id="t",
        epoch=1,
        since_ms=since_ms,
        committed_epoch=2,
        streams=stream_ids(tokens, name),
    )


@given(RINGS)
def test_stream_id_has_token_random_bits_index_and_version(tokens: set[int]) -> None:
    """The bits are read one by one, as the documented form describes them."""
    streams = stream_ids(tokens, "seed")
    assert count_of(streams) == len(tokens)
    for place, token in enumerate(sorted(tokens)):
        bits = "".join(f"{byte:08b}" for byte in stream_at(streams, place))
        assert len(bits) == 128
        assert int(bits[:64], 2) == token % 2**64
        assert int(bits[64 + 38 : 64 + 38 + 22], 2) == place
        assert int(bits[64 + 38 + 22 :], 2) == 1
    assert ends_of(streams).tolist() == sorted(tokens)


def test_equal_rings_of_two_generations_share_no_stream() -> None:
    tokens = range(0, 10**6, 10)
    one, two = stream_ids(tokens, "one"), stream_ids(tokens, "two")
    assert one == stream_ids(tokens, "one")
    mine, theirs = ({stream_at(s, at) for at in range(count_of(s))} for s in (one, two))
    assert len(mine) == len(tokens) and len(mine & theirs) <= 1


@given(RINGS, TOKENS)
def test_token_belongs_to_the_range_that_ends_at_or_after_it(tokens: set[int], token: int) -> None:
    streams = stream_ids(tokens, "seed")
    wanted = min((t for t in tokens if t >= token), default=min(tokens))
    assert end_at(streams, place_of(streams, token)) == wanted


@given(RINGS, st.integers(1, 7))
def test_joined_pieces_equal_the_whole(tokens: set[int], most: int) -> None:
    streams = stream_ids(tokens, "seed")
    pieces = [*pieces_of(streams, most)]
    assert b"".join(pieces) == streams
    assert all(0 < len(piece) <= most * STREAM_BYTES for piece in pieces)


def test_generation_fits_only_the_ring_of_its_tokens() -> None:
    found = generation("g", 0, {1, 2, 3})
    assert found.fits({3, 2, 1})
    assert not found.fits({1, 2}) and not found.fits({1, 2, 3, 4})


# Time.

OLD, NEW = generation("old", 1_000_000, {10, 20}), generation("new", 2_000_000, {10, 15, 20})


def stream(write_ms: int, now_ms: int) -> bytes | str:
    """Return the stream id, or the code of the rejection."""
    found = stream_of((OLD, NEW), 12, write_ms, now_ms)
    return found.code if isinstance(found, Rejection) else found


@pytest.mark.parametrize(
    ("write_ms", "now_ms", "expected"),
    [
        (1_000_000, 1_000_000, stream_at(OLD.streams, 1)),
        (1_999_999, 2_000_000, stream_at(OLD.streams, 1)),
        (2_000_000, 2_000_000, stream_at(NEW.streams, 1)),
        (2_000_000, 2_000_000 - GENERATION_LEEWAY_MS, stream_at(NEW.streams, 1)),
        (2_000_001, 2_000_000 - GENERATION_LEEWAY_MS, "cdc_write_from_the_future"),
        (1_999_999, 1_999_998 + GENERATION_LEEWAY_MS, stream_at(OLD.streams, 1)),
        (1_999_999, 1_999_999 + GENERATION_LEEWAY_MS, "cdc_write_too_old"),
        (1_990_000, 2_000_000, "cdc_write_too_old"),
        (1_990_000, 1_999_999, stream_at(OLD.streams, 1)),
        (999_999, 1_000_000, "cdc_no_generation"),
        (2_500_000, 9_000_000, stream_at(NEW.streams, 1)),
    ],
)
def test_write_goes_to_the_generation_of_its_time(
    write_ms: int, now_ms: int, expected: bytes | str
) -> None:
    assert stream(write_ms, now_ms) == expected


@given(st.integers(900_000, 3_000_000), st.integers(-6_000, 6_000))
def test_closed_generation_takes_no_writes(write_ms: int, ahead_ms: int) -> None:
    """Readers of a closed generation miss nothing: later writes are rejected whatever the clocks."""
    now_ms = write_ms - ahead_ms
    found = stream(write_ms, now_ms)
    if now_ms >= NEW.since_ms + GENERATION_LEEWAY_MS:
        assert found not in [stream_at(OLD.streams, at) for at in (0, 1)]


def test_write_without_a_generation_is_rejected() -> None:
    found = stream_of((), 1, 5, 5)
    assert isinstance(found, Rejection) and found.code == "cdc_no_generation"
