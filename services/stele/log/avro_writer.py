"""Write Avro's binary encoding: compile a schema into a function once, which then writes records.

fastavro copies the names of all types for every record, and then walks the schema. That was most of
the time to encode an epoch. This module supports only the types of Stele's schemas, and tests
compare its bytes with fastavro's. It passes long lists of plain values to fastavro, which writes
them faster than Python.

Values have the form that fastavro accepts. Records and maps are dicts. A record in a union of
several records is a pair of its name and its fields. A missing field gets its default.
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer

from stele.log.avro import default_of
from stele.log.schemas import Schema

Writer = Callable[[bytearray, Any], None]
"""Appends a value to a buffer. Raises TypeError, ValueError, KeyError or AttributeError for a value
that the schema cannot express."""

_LONGEST_BITS: Final = 64
_SHORT: Final = 64
"""Sizes below this are encoded in one byte."""
_MANY: Final = 32
"""Length from which fastavro writes a list of plain values faster."""
_NO_DEFAULT: Final = object()


def writer_of(schema: Schema) -> Writer:
    """Return a writer of records of ``schema``, which fastavro has parsed."""
    return _WriterCompiler().writer(schema)


def write_long(out: bytearray, value: int) -> None:
    """Append a number of at most 64 bits in zigzag encoding."""
    number = value << 1 if value >= 0 else ~(value << 1)
    if number >> _LONGEST_BITS:
        raise ValueError(f"{value} has more than 64 bits")
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _long(value: int) -> bytes:
    out = bytearray()
    write_long(out, value)
    return bytes(out)


def write_bytes(out: bytearray, value: bytes) -> None:
    size = len(value)
    if size < _SHORT:
        out.append(size << 1)
    else:
        write_long(out, size)
    out += value


def write_string(out: bytearray, value: str) -> None:
    write_bytes(out, value.encode())


def write_boolean(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def write_null(out: bytearray, value: None) -> None:
    if value is not None:
        raise TypeError(f"{value!r} is not null")


_PLAIN: Final[dict[str, Writer]] = {
    "null": write_null,
    "boolean": write_boolean,
    "int": write_long,
    "long": write_long,
    "bytes": write_bytes,
    "string": write_string,
}


class _WriterCompiler:
    """Compiles one schema, and remembers its named types for later references."""

    def __init__(self) -> None:
        self._named: dict[str, Writer] = {}

    def writer(self, schema: Schema) -> Writer:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._named[schema]
        match schema["type"]:
            case "record":
                return self._keep(schema, self._record(schema))
            case "array":
                return _array(self.writer(schema["items"]), schema["items"])
            case "map":
                return _map(self.writer(schema["values"]))
            case "fixed":
                return self._keep(schema, _fixed(schema["size"]))
        raise ValueError(f"no writer for {schema}")

    def _keep(self, schema: Schema, write: Writer) -> Writer:
        self._named[schema["name"]] = write
        return write

    def _record(self, schema: Schema) -> Writer:
        return _record(
            [
                (
                    field["name"],
                    self.writer(field["type"]),
                    default_of(field) if "default" in field else _NO_DEFAULT,
                )
                for field in schema["fields"]
            ]
        )

    def _union(self, branches: list[Schema]) -> Writer:
        writers = [self.writer(branch) for branch in branches]
        if len(branches) == 2 and branches[0] == "null":
            return _optional(writers[1])
        names = [branch if isinstance(branch, str) else branch["name"] for branch in branches]
        return _named_union(dict(zip(names, enumerate(writers), strict=True)))


def _record(fields: list[tuple[str, Writer, Any]]) -> Writer:
    """Return the writer of a record.

    Most fields are short strings or small numbers. They are written inline, because a call would
    take as long again.
    """
    plan = [
        (name, write is write_string, write is write_long, write, default)
        for name, write, default in fields
    ]
    short = _SHORT

    def write_record(out: bytearray, value: dict[str, Any]) -> None:
        get, append = value.get, out.append
        for name, is_string, is_long, write, default in plan:
            field = get(name, default)
            if is_string:
                text = field.encode()
                size = len(text)
                if size < short:
                    append(size << 1)
                else:
                    write_long(out, size)
                out += text
            elif is_long and 0 <= field < short:
                append(field << 1)
            else:
                write(out, field)

    return write_record


def _optional(write: Writer) -> Writer:
    def write_optional(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            write(out, value)

    return write_optional


def _named_union(branches: dict[str, tuple[int, Writer]]) -> Writer:
    known = {name: (_long(index), write) for name, (index, write) in branches.items()}

    def write_union(out: bytearray, value: tuple[str, Any]) -> None:
        name, body = value
        index, write = known[name]
        out += index
        write(out, body)

    return write_union


def _array(write: Writer, items: Schema) -> Writer:
    """Return the writer of an array: one block of items after their count, and a count of 0."""
    is_plain = isinstance(items, str) and items in _PLAIN
    plain = parse_schema({"type": "array", "items": items}) if is_plain else None

    def write_array(out: bytearray, value: Any) -> None:
        count = len(value)
        if not count:
            out.append(0)
            return
        if plain is not None and count >= _MANY:
            file = BytesIO()
            schemaless_writer(file, plain, value)
            out += file.getbuffer()
            return
        if count < _SHORT:
            out.append(count << 1)
        else:
            write_long(out, count)
        for each in value:
            write(out, each)
        out.append(0)

    return write_array


def _map(write: Writer) -> Writer:
    """Return the writer of a map, which is encoded as an array of keys with values."""

    def write_map(out: bytearray, value: dict[str, Any]) -> None:
        if value:
            write_long(out, len(value))
            for key, held in value.items():
                write_string(out, key)
                write(out, held)
        out.append(0)

    return write_map


def _fixed(size: int) -> Writer:
    def write_fixed(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes where {size} are wanted")
        out += value

    return write_fixed
