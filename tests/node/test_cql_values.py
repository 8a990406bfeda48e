"""Values of columns: JSON to CQL's binary encoding and back, for each type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.model.schema_objects import NATIVE, TypeField, parse_type
from stele.node.cql_values import (
    ValueMismatch,
    decode_json,
    decode_value,
    encode_json,
    encode_value,
    value_of_text,
)

TIME_UUID = "f3b1c0de-6cb1-11ee-b962-0242ac120002"


def fields_of(name: str) -> tuple[TypeField, ...]:
    assert name == "person"
    return TypeField("name", "text"), TypeField("born", "date"), TypeField("tags", "set<text>")


ENCODED = [
    # Encodings of the native protocol, version 5, section 6, computed by hand.
    ("ascii", '"ab"', "6162"),
    ("bigint", "-2", "fffffffffffffffe"),
    ("blob", '"0x00ff"', "00ff"),
    ("boolean", "true", "01"),
    ("date", '"1970-01-02"', "80000001"),
    ("decimal", "1.50", "000000020096"),
    ("double", "1.5", "3ff8000000000000"),
    ("double", '"-Infinity"', "fff0000000000000"),
    ("duration", '"1mo2d3ns"', "020406"),
    ("float", "-0.5", "bf000000"),
    ("inet", '"127.0.0.1"', "7f000001"),
    ("inet", '"::1"', "0" * 31 + "1"),
    ("int", "258", "00000102"),
    ("smallint", "-1", "ffff"),
    ("text", '"ü"', "c3bc"),
    ("text", '""', ""),
    ("time", '"00:00:01.000000002"', "000000003b9aca02"),
    ("timestamp", '"1970-01-01 00:00:01.500Z"', "00000000000005dc"),
    ("timestamp", '"1969-12-31 23:59:59.999Z"', "ffffffffffffffff"),
    ("timeuuid", f'"{TIME_UUID}"', TIME_UUID.replace("-", "")),
    ("tinyint", "127", "7f"),
    ("uuid", f'"{TIME_UUID}"', TIME_UUID.replace("-", "")),
    ("varint", "18446744073709551616", "010000000000000000"),
    ("list<int>", "[1,1]", "00000002" + "0000000400000001" * 2),
    ("set<int>", "[]", "00000000"),
    ("map<text, int>", '{"a":1}', "00000001" + "0000000161" + "0000000400000001"),
    ("map<int, text>", '{"1":"a"}', "00000001" + "0000000400000001" + "0000000161"),
    ("tuple<int, text>", '[1,"a"]', "0000000400000001" + "0000000161"),
    ("tuple<int, text>", '[null,"a"]', "ffffffff" + "0000000161"),
    ("vector<float, 2>", "[0.0,-0.5]", "00000000bf000000"),
    ("vector<text, 2>", '["a","bc"]', "0161026263"),
    (
        "frozen<person>",
        '{"name":"Ada","born":null,"tags":["x"]}',
        "00000003416461" + "ffffffff" + "00000009" + "00000001" + "0000000178",
    ),
    (
        "map<frozen<list<int>>, frozen<set<text>>>",
        '{"[1]":["a"]}',
        "00000001" + "0000000c000000010000000400000001" + "00000009000000010000000161",
    ),
]


@pytest.mark.parametrize(("type_", "json", "encoded"), ENCODED)
def test_values_round_trip_in_the_encoding_of_the_cql_protocol(
    type_: str, json: str, encoded: str
) -> None:
    parsed = parse_type(type_)
    found = encode_value(parsed, decode_json(json), fields_of)
    assert found.hex() == encoded
    assert encode_json(decode_value(parsed, found, fields_of)).decode() == json


def test_each_native_type_except_counter_has_an_encoding() -> None:
    assert {type_ for type_, _, _ in ENCODED} & NATIVE == NATIVE - {"counter"}


@pytest.mark.parametrize(
    ("type_", "json", "said"),
    [
        ("ascii", '"ü"', "'ü' is not of type ascii"),
        ("bigint", "9223372036854775808", "'9223372036854775808' is not of type bigint"),
        ("blob", '"00"', "is not of type blob"),
        ("boolean", "1", "is not of type boolean"),
        ("date", '"2026-02-30"', "is not of type date"),
        ("decimal", '"NaN"', "is not of type decimal"),
        ("double", "1e400", "is not of type double"),
        ("double", '"x"', "is not of type double"),
        ("duration", '"soon"', "is not of type duration"),
        ("duration", '""', "is not of type duration"),
        ("duration", '"99999999999y"', "is not of type duration"),
        ("float", "1e39", "is not of type float"),
        ("inet", '"1"', "is not of type inet"),
        ("int", "true", "'true' is not of type int"),
        ("int", "1.5", "'1.5' is not of type int"),
        ("int", '"x"', "'x' is not of type int"),
        ("int", "null", "null is not of type int"),
        ("smallint", "32768", "is not of type smallint"),
        ("text", "1", "'1' is not of type text"),
        ("time", '"25:00"', "is not of type time"),
        ("time", '"12:00:60"', "is not of type time"),
        ("time", '"12:00:00.1234567890"', "is not of type time"),
        ("timestamp", '"yesterday"', "is not of type timestamp"),
        ("timestamp", "9223372036854775808", "is not of type timestamp"),
        ("timeuuid", '"00000000-0000-4000-8000-000000000000"', "is not of type timeuuid"),
        ("tinyint", "128", "is not of type tinyint"),
        ("uuid", '"x"', "is not of type uuid"),
        ("list<int>", '"[1]"', "is not of type list<int>"),
        ("list<int>", "[1, null]", "null is not of type int"),
        ("set<int>", '[1, "x"]', "'x' is not of type int"),
        ("map<int, int>", '{"x": 1}', "'x' is not of type int"),
        ("map<int, int>", "[1]", "is not of type map<int, int>"),
        ("tuple<int, int>", "[1, 2, 3]", "is not of type frozen<tuple<int, int>>"),
        ("vector<int, 2>", "[1]", "is not of type vector<int, 2>"),
        ("frozen<person>", '{"nam": "Ada"}', "type person has no field 'nam'"),
        ("frozen<person>", '["Ada"]', "is not of type frozen<person>"),
    ],
)
def test_mismatch_error_has_the_value_and_the_expected_type(
    type_: str, json: str, said: str
) -> None:
    with pytest.raises(ValueMismatch) as refused:
        encode_value(parse_type(type_), decode_json(json), fields_of)
    assert said in str(refused.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([type_ for type_, _, _ in ENCODED]), json_values)
def test_any_json_value_round_trips_or_is_refused(type_: str, value: object) -> None:
    parsed = parse_type(type_)
    try:
        encoded = encode_value(parsed, value, fields_of)
    except ValueMismatch:
        return
    shown = decode_json(encode_json(decode_value(parsed, encoded, fields_of)))
    assert encode_value(parsed, shown, fields_of) == encoded


def test_equal_values_have_equal_encodings() -> None:
    for type_, one, two in (
        ("tuple<int, text>", [1], [1, None]),
        ("tuple<int, text>", [], [None, None]),
        ("set<text>", ["b", "a", "b"], ["a", "b"]),
        ("map<text, int>", {"b": 1, "a": 2}, {"a": 2, "b": 1}),
    ):
        parsed = parse_type(type_)
        assert encode_value(parsed, one, fields_of) == encode_value(parsed, two, fields_of)


def test_value_from_before_a_field_was_added_has_null_for_the_field() -> None:
    before = encode_value(parse_type("tuple<text>"), ["Ada"], fields_of)
    shown = decode_value(parse_type("frozen<person>"), before, fields_of)
    assert shown == {"name": "Ada", "born": None, "tags": None}
    before = encode_value(parse_type("map<frozen<tuple<text>>, int>"), {'["Ada"]': 5}, fields_of)
    shown = decode_value(parse_type("map<frozen<person>, int>"), before, fields_of)
    assert shown == {'{"name":"Ada","born":null,"tags":null}': 5}


def test_keys_of_a_map_may_be_sets_in_another_order_than_the_encoding() -> None:
    parsed = parse_type("map<frozen<set<int>>, int>")
    encoded = encode_value(parsed, {"[1,-1]": 5}, fields_of)
    assert decode_value(parsed, encoded, fields_of) == {"[-1,1]": 5}


def test_a_time_outside_of_the_calendar_is_shown_in_milliseconds() -> None:
    timestamp = parse_type("timestamp")
    encoded = encode_value(timestamp, 2**62, fields_of)
    assert decode_value(timestamp, encoded, fields_of) == 2**62


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("text", "1", "1"),
        ("int", "1", "1"),
        ("frozen<list<int>>", "[1]", [1]),
        ("frozen<person>", "{}", {}),
    ],
)
def test_text_of_a_path_is_parsed_by_the_column_type(type_: str, text: str, value: object) -> None:
    assert value_of_text(parse_type(type_), text) == value
    with pytest.raises(ValueMismatch):
        value_of_text(parse_type("frozen<list<int>>"), "[")
