"""Values of CQL types: from JSON to CQL's binary encoding, and back.

The binary encodings are those of the CQL native protocol (version 5, section 6), written and read
by the driver's codecs. The JSON forms are those of Cassandra ("JSON support", table "JSON encoding
of Cassandra data types"): numbers, texts, objects and arrays. Each native type also accepts a text.

A collection is one value, also if it is not frozen.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from ipaddress import ip_address
from itertools import zip_longest
from math import isfinite, isinf
from typing import Any, Final

import msgspec
from cassandra import cqltypes, util

from stele.domain.model.schema_objects import (
    TUPLE,
    VECTOR,
    CqlType,
    TypeField,
    expanded,
    parse_type,
)

PROTOCOL: Final = 5
"""Version of the native protocol whose encodings are stored."""
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MAX_TEXT_CHARS: Final = 80
"""Characters of a value that an error shows."""

FieldsOf = Callable[[str], Sequence[TypeField]]
"""A function from the name of a user-defined type to its fields."""

encode_json: Final = msgspec.json.Encoder(decimal_format="number").encode

_DRIVER_TYPES: Final[Mapping[str, Any]] = {
    "ascii": cqltypes.AsciiType,
    "bigint": cqltypes.LongType,
    "blob": cqltypes.BytesType,
    "boolean": cqltypes.BooleanType,
    "date": cqltypes.SimpleDateType,
    "decimal": cqltypes.DecimalType,
    "double": cqltypes.DoubleType,
    "duration": cqltypes.DurationType,
    "float": cqltypes.FloatType,
    "inet": cqltypes.InetAddressType,
    "int": cqltypes.Int32Type,
    "smallint": cqltypes.ShortType,
    "text": cqltypes.UTF8Type,
    "time": cqltypes.TimeType,
    # The driver's type is of floating-point seconds. A timestamp is a bigint of milliseconds.
    "timestamp": cqltypes.LongType,
    "timeuuid": cqltypes.TimeUUIDType,
    "tinyint": cqltypes.ByteType,
    "uuid": cqltypes.UUIDType,
    "varint": cqltypes.IntegerType,
}
_PARAMETERIZED: Final[Mapping[str, Any]] = {
    "list": cqltypes.ListType,
    "map": cqltypes.MapType,
    "set": cqltypes.SetType,
    TUPLE: cqltypes.TupleType,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DURATION: Final = re.compile(
    r"(-?)(?=.)(?:(\d+)y)?(?:(\d+)mo)?(?:(\d+)w)?(?:(\d+)d)?"
    r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?(?:(\d+)us)?(?:(\d+)ns)?"
)
_INTEGER: Final = re.compile(r"-?\d{1,1000}")
_TIME: Final = re.compile(r"[0-9]{1,2}:[0-9]{1,2}:[0-5]?[0-9](\.[0-9]{1,9})?")
_NOT_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_CODEC_ERRORS: Final = (
    *(ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError),
    *(msgspec.DecodeError, RecursionError, struct.error),
)


class ValueMismatch(ValueError):
    """The JSON value is no value of the type. The text says which part of it is not."""


_decode_json: Final = msgspec.json.Decoder(float_hook=Decimal).decode


def decode_json(body: bytes | str) -> object:
    """Decode JSON without a loss: numbers with a fraction are decimals. Raises msgspec.DecodeError."""
    try:
        return _decode_json(body)
    except (ArithmeticError, UnicodeDecodeError) as error:
        # The decoder passes these on: texts that are not valid UTF-8, and exponents of 19 digits.
        why = (
            "it is not valid UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else "a number is too large"
        )
        raise msgspec.DecodeError(why) from error


def encode_value(type_: CqlType, value: object, fields_of: FieldsOf) -> bytes:
    """Return the binary encoding of a JSON value, which is not null. Raises ValueMismatch."""
    try:
        driver_type = _driver_type(_plain(type_, fields_of))
        return bytes(driver_type.to_binary(_given(type_, value, fields_of), PROTOCOL))
    except ValueMismatch:
        raise
    except _CODEC_ERRORS as error:
        raise _mismatch(type_, value) from error


def decode_value(type_: CqlType, content: bytes, fields_of: FieldsOf) -> object:
    """Return the JSON value of a binary encoding."""
    driver_type = _driver_type(_plain(type_, fields_of))
    return _shown(type_, driver_type.from_binary(content, PROTOCOL), fields_of)


def value_of_text(type_: CqlType, text: str) -> object:
    """Return the JSON value that a text stands for in a path or as the key of a map.

    Native types accept their texts. Other types are JSON. Raises ValueMismatch.
    """
    if type_.name in _DRIVER_TYPES and not type_.user:
        return text
    try:
        return decode_json(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _mismatch(type_, text) from error


def _mismatch(type_: CqlType, value: object) -> ValueMismatch:
    text = value if isinstance(value, str) else encode_json(value).decode()
    return ValueMismatch(f"{text[:MAX_TEXT_CHARS]!r} is not of type {type_.text()}")


def _plain(type_: CqlType, fields_of: FieldsOf) -> CqlType:
    """Return the type with tuples instead of user-defined types, which have the same encoding."""
    return expanded(type_, lambda name: tuple(field.type for field in fields_of(name)))


@lru_cache(maxsize=4096)
def _driver_type(type_: CqlType) -> Any:
    if type_.name == VECTOR:
        return cqltypes.VectorType.apply_parameters(
            [_driver_type(type_.arguments[0]), type_.dimension], None
        )
    if type_.name in _PARAMETERIZED:
        inner = tuple(map(_driver_type, type_.arguments))
        return _PARAMETERIZED[type_.name].apply_parameters(inner)
    return _DRIVER_TYPES[type_.name]


# From JSON to the values that the driver's codecs take.


class _Entries(list[tuple[Any, Any]]):
    """Entries of a map whose keys may be values that Python cannot hash."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self


def _given(type_: CqlType, value: object, fields_of: FieldsOf) -> Any:
    """Return the driver's value of a JSON value. Raises ValueMismatch and errors of Python."""
    if value is None:
        raise ValueMismatch(f"null is not of type {type_.text()}")
    if type_.user:
        return _fields_given(type_, _as(dict, type_, value), fields_of)
    if type_.name == "map":
        return _entries_given(type_, _as(dict, type_, value), fields_of)
    if not type_.arguments:
        try:
            return _FROM_JSON[type_.name](value)
        except _CODEC_ERRORS as error:
            raise _mismatch(type_, value) from error
    items: list[object] = _as(list, type_, value)
    if type_.name == TUPLE:
        if len(items) > len(type_.arguments):
            raise _mismatch(type_, value)
        # All elements are written, so that (1) and (1, null) are one value of a key.
        inner = zip_longest(type_.arguments, items)
        return tuple(None if each is None else _given(of, each, fields_of) for of, each in inner)
    (element,) = type_.arguments
    found = [_given(element, each, fields_of) for each in items]
    return _distinct(element, found, fields_of) if type_.name == "set" else found


def _as(kind: type[Any], type_: CqlType, value: object) -> Any:
    if not isinstance(value, kind):
        raise _mismatch(type_, value)
    return value


def _fields_given(type_: CqlType, value: dict[str, object], fields_of: FieldsOf) -> tuple[Any, ...]:
    fields = fields_of(type_.name)
    unknown = sorted(value.keys() - {field.name for field in fields})
    if unknown:
        text = unknown[0][:MAX_TEXT_CHARS]
        raise ValueMismatch(f"type {type_.name} has no field {text!r}")
    given = ((parse_type(field.type), value.get(field.name)) for field in fields)
    return tuple(None if each is None else _given(of, each, fields_of) for of, each in given)


def _entries_given(type_: CqlType, value: dict[str, object], fields_of: FieldsOf) -> _Entries:
    key_type, value_type = type_.arguments
    found = [
        (
            _given(key_type, value_of_text(key_type, key), fields_of),
            _given(value_type, each, fields_of),
        )
        for key, each in value.items()
    ]
    return _Entries(_distinct(key_type, found, fields_of, lambda entry: entry[0]))


def _distinct(
    type_: CqlType,
    found: Iterable[Any],
    fields_of: FieldsOf,
    key: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
    """Return elements of a set or entries of a map, each once, in the order of their encoding.

    Equal sets then have equal bytes.
    """
    encode = partial(_driver_type(_plain(type_, fields_of)).to_binary, protocol_version=PROTOCOL)
    by_bytes = {bytes(encode(key(each))): each for each in found}
    return [by_bytes[encoded] for encoded in sorted(by_bytes)]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _ascii(value: object) -> str:
    _text(value).encode("ascii")
    return _text(value)


def _integer(value: object) -> int:
    """Return an integer of any size. The codec checks the size."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[_text(value)]


def _blob(value: object) -> bytes:
    text = _text(value)
    if not text.startswith("0x"):
        raise ValueError
    return bytes.fromhex(text[2:])


def _decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise TypeError
    try:
        found = Decimal(value)
    except InvalidOperation as error:
        raise ValueError from error
    if not found.is_finite():
        raise ValueError
    return found


def _float(value: object) -> float:
    if isinstance(value, str) and value in _NOT_NUMBERS:
        return float(value)
    found = float(_decimal(value))
    if isinf(found):
        raise OverflowError
    return found


def _date(value: object) -> util.Date:
    return util.Date(date.fromisoformat(_text(value)))


def _time(value: object) -> util.Time:
    text = _text(value)
    # The codec would add what is above 59 seconds or below a nanosecond.
    if not _TIME.fullmatch(text):
        raise ValueError
    return util.Time(text)


def _timestamp(value: object) -> int:
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return (found - _EPOCH) // _MILLISECOND
    return _integer(value)


def _duration(value: object) -> util.Duration:
    found = _DURATION.fullmatch(_text(value))
    if found is None:
        raise ValueError
    sign = -1 if found[1] else 1
    years, months, weeks, days, hours, minutes, seconds, ms, us, ns = (
        sign * int(number or 0) for number in found.groups()[1:]
    )
    seconds += 60 * (minutes + 60 * hours)
    months, days = 12 * years + months, 7 * weeks + days
    nanoseconds = ns + 1000 * (us + 1000 * (ms + 1000 * seconds))
    # The codec would cut off what is larger.
    if max(abs(months), abs(days)) > MAX_INT or abs(nanoseconds) > MAX_LONG:
        raise OverflowError
    return util.Duration(months, days, nanoseconds)


def _inet(value: object) -> str:
    return str(ip_address(_text(value)))


def _uuid(value: object) -> uuid.UUID:
    return uuid.UUID(_text(value))


def _timeuuid(value: object) -> uuid.UUID:
    found = _uuid(value)
    if found.version != 1:
        raise ValueError
    return found


_FROM_JSON: Final[Mapping[str, Callable[[object], Any]]] = {
    "ascii": _ascii,
    "bigint": _integer,
    "blob": _blob,
    "boolean": _boolean,
    "date": _date,
    "decimal": _decimal,
    "double": _float,
    "duration": _duration,
    "float": _float,
    "inet": _inet,
    "int": _integer,
    "smallint": _integer,
    "text": _text,
    "time": _time,
    "timestamp": _timestamp,
    "timeuuid": _timeuuid,
    "tinyint": _integer,
    "uuid": _uuid,
    "varint": _integer,
}


# From the driver's values to JSON.


def _shown(type_: CqlType, value: Any, fields_of: FieldsOf) -> object:
    """Return the JSON value of a driver's value; None is null."""
    if value is None:
        return None
    if type_.user:
        fields = zip(fields_of(type_.name), value, strict=True)
        return {f.name: _shown(parse_type(f.type), each, fields_of) for f, each in fields}
    if type_.name == "map":
        key_type, value_type = type_.arguments
        return {
            _key_text(_shown(key_type, key, fields_of)): _shown(value_type, each, fields_of)
            for key, each in value._items  # noqa: SLF001 - items() encodes keys again, and misses some
        }
    if type_.name == TUPLE:
        inner = zip(type_.arguments, value, strict=True)
        return [_shown(of, each, fields_of) for of, each in inner]
    if type_.arguments:
        (element,) = type_.arguments
        return [_shown(element, each, fields_of) for each in value]
    show = _TO_JSON.get(type_.name)
    return value if show is None else show(value)


def _key_text(value: object) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()


def _number_shown(value: float) -> object:
    """Return a float as it is, and what JSON has no number for as a text."""
    if isfinite(value):
        return value
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "NaN"


def _timestamp_shown(value: int) -> object:
    """Return the time as a text, or the milliseconds outside of the years 1 to 9999."""
    try:
        found = _EPOCH + value * _MILLISECOND
    except OverflowError:
        return value
    return f"{found.replace(tzinfo=None).isoformat(' ', 'milliseconds')}Z"


_TO_JSON: Final[Mapping[str, Callable[[Any], object]]] = {
    "blob": lambda value: f"0x{value.hex()}",
    "date": str,
    "double": _number_shown,
    "duration": str,
    "float": _number_shown,
    "inet": str,
    "time": str,
    "timestamp": _timestamp_shown,
    "timeuuid": str,
    "uuid": str,
}
