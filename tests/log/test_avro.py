"""The compiled readers and writers against fastavro, on any value, and on broken bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stele.domain.commands import Envelope
from stele.domain.model.features import SettingChanged
from stele.log import codec
from stele.log.avro import Reader, reader_of
from stele.log.avro_writer import writer_of
from stele.log.codec import DecodeError
from stele.log.schemas import HEADER_BYTES, load_schemas
from tests.domain.history import three_nodes
from tests.log.test_codec import epoch_of, samples

LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=200)
INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "number", "type": "long"}, {"name": "text", "type": "string"}],
}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "flag", "type": "boolean"}]}
OUTER = {
    "type": "record",
    "name": "Outer",
    "namespace": "test",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "bytes", "type": "bytes"},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 4}},
        {"name": "again", "type": "Digest"},
        {"name": "longs", "type": {"type": "array", "items": "long"}},
        {"name": "map", "type": {"type": "map", "values": "long"}},
        {"name": "inner", "type": INNER},
        {"name": "maybe", "type": ["null", "Inner"]},
        {"name": "either", "type": {"type": "array", "items": ["Inner", OTHER]}},
        {"name": "long", "type": "long"},
    ],
}
LONGS_ALONE = {
    "type": "record",
    "name": "Longs",
    "fields": [{"name": "longs", "type": {"type": "array", "items": "long"}}],
}
INNERS = st.fixed_dictionaries({"number": LONGS, "text": TEXTS})
OTHERS = st.fixed_dictionaries({"flag": st.booleans()})
OUTERS = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "bytes": st.binary(max_size=200),
        "digest": st.binary(min_size=4, max_size=4),
        "again": st.binary(min_size=4, max_size=4),
        "longs": st.lists(LONGS, max_size=100),
        "map": st.dictionaries(TEXTS, LONGS, max_size=5),
        "inner": INNERS,
        "maybe": st.none() | INNERS,
        "either": st.lists(
            st.tuples(st.just("test.Inner"), INNERS) | st.tuples(st.just("test.Other"), OTHERS),
            max_size=5,
        ),
        "long": LONGS,
    }
)


def written(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def reader(writer: Any, newest: Any = None) -> Reader:
    writer = fastavro.parse_schema(writer)
    return reader_of(writer, fastavro.parse_schema(newest) if newest else writer)


@given(OUTERS)
def test_values_written_by_fastavro_are_read(value: dict[str, Any]) -> None:
    encoded = written(OUTER, value)
    either = [{"type": name.removeprefix("test."), **body} for name, body in value["either"]]
    assert reader(OUTER)(b"before" + encoded, 6) == ({**value, "either": either}, 6 + len(encoded))


def ours(schema: Any, value: Any) -> bytes:
    out = bytearray(b"before")
    writer_of(fastavro.parse_schema(schema))(out, value)
    assert out.startswith(b"before")
    return bytes(out[6:])


@given(OUTERS)
def test_encoding_equals_that_of_fastavro(value: dict[str, Any]) -> None:
    assert ours(OUTER, value) == written(OUTER, value)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 500])
@pytest.mark.parametrize(
    ("items", "values"),
    [
        ("long", [0, -1, 63, -64, 64, -65, 2**31, 2**63 - 1, -(2**63)]),
        ("int", [0, 1, -1]),
        ("string", ["", "a", "\u00fc" * 40, "b" * 64, "c" * 63]),
        ("bytes", [b"", b"x" * 63, b"x" * 64, b"x" * 10_000]),
        ("boolean", [True, False]),
        (INNER, [{"number": 1, "text": "one"}]),
    ],
)
def test_short_and_long_arrays_are_encoded_as_by_fastavro(
    count: int, items: Any, values: list[Any]
) -> None:
    fields = [{"name": "some", "type": {"type": "array", "items": items}}]
    schema = {"type": "record", "name": "Some", "fields": fields}
    some = [values[at % len(values)] for at in range(count)]
    for given_as in (some, tuple(some)):
        assert ours(schema, {"some": given_as}) == written(schema, {"some": some})


def test_fastavro_reads_every_epoch_and_command_completely() -> None:
    schemas = load_schemas().by_header
    values = [codec.encode_epoch(epoch) for epoch in three_nodes()[0].epochs]
    values += [codec.encode_envelope(Envelope(request_id="r", command=one)) for one in samples()]
    for value in values:
        body = BytesIO(value[HEADER_BYTES:])
        fastavro.schemaless_reader(body, schemas[value[:HEADER_BYTES]][1], None)
        assert body.tell() == len(value) - HEADER_BYTES


def test_missing_field_is_written_with_its_default() -> None:
    fields = [
        {"name": "why", "type": "string", "default": "-"},
        {"name": "digest", "type": "bytes", "default": "\u00ff"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "longs", "type": {"type": "array", "items": "long"}, "default": []},
        {"name": "map", "type": {"type": "map", "values": "long"}, "default": {}},
    ]
    schema = {"type": "record", "name": "Defaults", "fields": fields}
    given_all: dict[str, Any] = {
        "why": "-",
        "digest": b"\xff",
        "maybe": None,
        "longs": [],
        "map": {},
    }
    assert ours(schema, {}) == ours(schema, given_all) == written(schema, given_all)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("long", 2**63),
        ("long", -(2**63) - 1),
        ("long", "1"),
        ("long", 1.5),
        ("text", b"x"),
        ("text", None),
        ("digest", b"four!"),
        ("either", [("test.Nobody", {})]),
        ("either", [{"flag": True}]),
        ("inner", {"number": 1}),
        ("longs", [2**64] * 40),
    ],
)
def test_values_outside_the_schema_are_refused(field: str, value: Any) -> None:
    zero: dict[str, Any] = {"number": 0, "text": ""}
    good: dict[str, Any] = {
        "text": "",
        "bytes": b"",
        "digest": b"four",
        "again": b"four",
        "longs": [],
        "map": {},
    }
    good |= {"inner": zero, "maybe": None, "either": [], "long": 0}
    assert ours(OUTER, good) == written(OUTER, good)
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError, OverflowError)):
        ours(OUTER, good | {field: value})


@given(st.lists(st.sampled_from([0, -1, 63, -64, 64, 2**31, 2**63 - 1, -(2**63)]) | LONGS))
@example([-(2**63), 2**63 - 1] * 50)
def test_arrays_of_numbers_are_read_at_any_length(numbers: list[int]) -> None:
    encoded = written(LONGS_ALONE, {"longs": numbers})
    assert reader(LONGS_ALONE)(encoded, 0) == ({"longs": numbers}, len(encoded))


def test_blocks_with_a_size_in_bytes_are_read() -> None:
    """Other writers split an array into blocks. Behind a negative count stands the size in bytes."""
    encoded = bytes([3, 4, 2, 4, 2, 6, 0])
    assert reader(LONGS_ALONE)(encoded, 0) == ({"longs": [1, 2, 3]}, len(encoded))


def test_older_record_gets_defaults_and_loses_removed_fields() -> None:
    old_inner = {**INNER, "fields": [*INNER["fields"], {"name": "gone", "type": "string"}]}
    old = {"type": "record", "name": "R", "fields": [{"name": "inner", "type": old_inner}]}
    more = [
        {"name": "why", "type": "string", "default": "-"},
        {"name": "digest", "type": "bytes", "default": "\u00ff"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
    ]
    new_inner = {**INNER, "fields": [*INNER["fields"][:1], *more, *INNER["fields"][1:]]}
    new = {"type": "record", "name": "R", "fields": [{"name": "inner", "type": new_inner}]}
    encoded = written(old, {"inner": {"number": 7, "text": "seven", "gone": "x"}})
    found = {"number": 7, "text": "seven", "why": "-", "digest": b"\xff", "maybe": None}
    assert reader(old, new)(encoded, 0) == ({"inner": found}, len(encoded))


@pytest.mark.parametrize(
    ("value", "decode"),
    [
        (codec.encode_epoch(epoch_of(SettingChanged("a", "b" * 100))), codec.decode_epoch),
        *(
            (
                codec.encode_envelope(Envelope(request_id="r", command=command)),
                codec.decode_envelope,
            )
            for command in samples()[:5]
        ),
    ],
)
def test_broken_bytes_raise_a_decode_error(value: bytes, decode: Callable[[bytes], object]) -> None:
    for cut in range(len(value)):
        with pytest.raises(DecodeError):
            decode(value[:cut])
    for place in range(10, len(value)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            broken = value[:place] + bytes([byte]) + value[place + 1 :]
            with contextlib.suppress(DecodeError):
                decode(broken)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("number", [b"\x80" * 500, b"\xff" * 500, b"\xff" * 9 + b"\x02"])
def test_a_number_of_more_than_64_bits_is_refused(count: int, number: bytes) -> None:
    encoded = written(LONGS_ALONE, {"longs": [1] * count})
    encoded = encoded[: -1 - count] + number + encoded[-count:]
    with pytest.raises((ValueError, IndexError)):
        reader(LONGS_ALONE)(encoded, 0)


@pytest.mark.parametrize("kind", ["array", "map"])
@pytest.mark.parametrize("end", [b"\x00", b"\x80\x00", b"\x80\x80\x00", b"\x02\x00\x80\x00"])
def test_zero_count_of_any_length_ends_the_items(kind: str, end: bytes) -> None:
    """Otherwise the reader takes the following bytes for items."""
    if kind == "map" and end[0] == 2:
        end = b"\x02\x00" + end[1:]
    items = {"type": kind, "items" if kind == "array" else "values": "long"}
    fields = [{"name": "some", "type": items}, {"name": "after", "type": "string"}]
    schema = {"type": "record", "name": "Ended", "fields": fields}
    value = end + b"\x04hi"
    expected = fastavro.schemaless_reader(BytesIO(value), schema, None)
    found, at = reader_of(schema, schema)(value, 0)
    assert (found, at) == (expected, len(value))
