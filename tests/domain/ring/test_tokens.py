import pytest
from hypothesis import given

from stele.domain.ring import partitioner
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, RING_SIZE, distance, wrapped
from tests.domain.ring.rings import some_token


@pytest.mark.parametrize(
    ("key", "token"),
    [
        (b"123", -7468325962851647638),
        (b"foo", -2129773440516405919),
        (b"\x00\xff\x10\xfa\x99" * 10, 5837342703291459765),
        (b"\xfe" * 8, -8927430733708461935),
        (b"\x10" * 8, 1446172840243228796),
        (b"9223372036854775807", 7162290910810015547),
    ],
)
def test_token_equals_that_of_the_cassandra_murmur3_partitioner(key: bytes, token: int) -> None:
    assert token_of(key) == token


def test_lowest_hash_becomes_the_highest_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "_hash", lambda _: MIN_TOKEN)
    assert token_of(b"any") == MAX_TOKEN


def test_empty_key_has_the_lowest_token() -> None:
    assert token_of(b"") == MIN_TOKEN


@given(start=some_token, end=some_token)
def test_start_plus_distance_equals_end(start: int, end: int) -> None:
    assert 1 <= distance(start, end) <= RING_SIZE
    assert wrapped(start + distance(start, end)) == end
