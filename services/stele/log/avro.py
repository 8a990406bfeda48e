"""Read Avro's binary encoding: compile a schema into a function once, which then reads records.

fastavro walks the schema for every field of every record and reads each one from a file. That was
half of the time of a replay. This module supports only the types of Stele's schemas, and tests
compare it with fastavro (docs/decisions/012-records-are-read-by-compiled-readers.md).

A reader takes bytes and a position, and returns a value and the position behind it. It may read
past the end without an error, so the caller must check that the last position is the end. Records
and maps become dicts, arrays become lists. A record in a union of records has its name under
``type``, as in msgspec's tagged structs.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from stele.log.schemas import Schema, records_of

Reader = Callable[[bytes, int], tuple[Any, int]]
"""A function from bytes and position to value and position. Raises IndexError or ValueError for
truncated or broken bytes."""

_LONGEST: Final = 10
"""Most bytes of a 64-bit number."""
_LAST_SHIFT: Final = 63
"""Shift of the tenth byte of a number, which holds only the last bit."""
_NOT_SHORT: Final = 0x81
"""Bits of a size's first byte that mean: more bytes follow, or the size is negative."""
_MANY: Final = 128
"""Length from which numpy reads a list of numbers faster."""
_UNSIGNED: Final = np.uint64


def reader_of(writer: Schema, newest: Schema) -> Reader:
    """Return a reader of records of schema ``writer`` that returns them in the form of ``newest``.

    Both are record schemas. Fields that only ``newest`` has get their defaults. Fields that it
    lacks are omitted.
    """
    return _ReaderCompiler(newest).record(writer, {})


def read_long(value: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag-encoded number of at most 64 bits."""
    byte = value[at]
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        at += 1
        byte = value[at]
        if shift == _LAST_SHIFT and byte > 1:
            raise ValueError(f"the number at byte {at} has more than 64 bits")
        number |= (byte & 0x7F) << shift
        shift += 7
    return number >> 1 ^ -(number & 1), at + 1


def read_bytes(value: bytes, at: int) -> tuple[bytes, int]:
    size, begin = read_long(value, at)
    if size < 0:
        raise ValueError(f"{size} bytes at byte {begin}")
    end = begin + size
    return value[begin:end], end


def read_string(value: bytes, at: int) -> tuple[str, int]:
    size, begin = read_long(value, at)
    if size < 0:
        raise ValueError(f"a string of {size} bytes at byte {begin}")
    end = begin + size
    return value[begin:end].decode(), end


def read_boolean(value: bytes, at: int) -> tuple[bool, int]:
    return value[at] != 0, at + 1


def read_null(value: bytes, at: int) -> tuple[None, int]:
    return None, at


_PLAIN: Final[dict[str, Reader]] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": read_long,
    "long": read_long,
    "bytes": read_bytes,
    "string": read_string,
}


class _ReaderCompiler:
    """Compiles one writer's schema, and remembers its named types for later references."""

    def __init__(self, newest: Schema) -> None:
        self._newest = dict(records_of(newest))
        self._named: dict[str, Schema] = {}

    def reader(self, schema: Schema) -> Reader:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self.reader(self._named[schema])
        match schema["type"]:
            case "record":
                return self.record(schema, {})
            case "array":
                return _array(self.reader(schema["items"]))
            case "map":
                return _map(self.reader(schema["values"]))
            case "fixed":
                self._named[schema["name"]] = schema
                return _fixed(schema["size"])
        raise ValueError(f"no reader for {schema}")

    def record(self, schema: Schema, first: dict[str, Any]) -> Reader:
        """Return the reader of a record. ``first`` holds entries to add to the fields."""
        name = schema["name"]
        self._named[name] = schema
        fields = [(field["name"], self.reader(field["type"])) for field in schema["fields"]]
        written = {field for field, _ in fields}
        newest = self._newest.get(name, schema["fields"])
        missing = {f["name"]: default_of(f) for f in newest if f["name"] not in written}
        read = _record(fields, {**first, **missing})
        gone = written - {field["name"] for field in newest}
        return _without(read, gone) if gone else read

    def _union(self, branches: list[Schema]) -> Reader:
        resolved = [self._named.get(b, b) if isinstance(b, str) else b for b in branches]
        records = [isinstance(branch, dict) and branch["type"] == "record" for branch in resolved]
        if sum(records) < 2:
            return _union([self.reader(branch) for branch in branches])
        return _union(
            [
                self.record(branch, {"type": branch["name"].rpartition(".")[2]})
                if is_record
                else self.reader(branch)
                for branch, is_record in zip(resolved, records, strict=True)
            ]
        )


def _record(fields: list[tuple[str, Reader]], first: dict[str, Any]) -> Reader:
    plan = [(name, None if read is read_string else read) for name, read in fields]

    def read_record(value: bytes, at: int) -> tuple[dict[str, Any], int]:
        record = first.copy()
        for name, read in plan:
            if read is not None:
                record[name], at = read(value, at)
            elif (size := value[at]) & _NOT_SHORT:
                record[name], at = read_string(value, at)
            else:  # most fields are short strings: read here, since a call takes as long
                begin = at + 1
                at = begin + (size >> 1)
                record[name] = value[begin:at].decode()
        return record, at

    return read_record


def _without(read: Reader, names: set[str]) -> Reader:
    def read_known(value: bytes, at: int) -> tuple[dict[str, Any], int]:
        record, at = read(value, at)
        return {name: field for name, field in record.items() if name not in names}, at

    return read_known


def _union(branches: list[Reader]) -> Reader:
    def read_union(value: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(value, at)
        if index < 0:
            raise ValueError(f"a union has no branch {index}")
        return branches[index](value, at)

    return read_union


def _array(item: Reader) -> Reader:
    """Return the reader of an array: blocks of items after their count, and a final count of 0."""

    def read_array(value: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        count, at = read_long(value, at)
        while count:
            if count < 0:  # the block's size in bytes follows
                count, (_, at) = -count, read_long(value, at)
            if item is read_long and count >= _MANY:
                numbers, at = _read_longs(value, at, count)
                found += numbers
            else:
                for _ in range(count):
                    each, at = item(value, at)
                    found.append(each)
            count, at = read_long(value, at)
        return found, at

    return read_array


def _map(item: Reader) -> Reader:
    """Return the reader of a map, which is encoded as an array of keys with values."""

    def read_entry(value: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = read_string(value, at)
        held, at = item(value, at)
        return (key, held), at

    read_entries = _array(read_entry)

    def read_map(value: bytes, at: int) -> tuple[dict[str, Any], int]:
        entries, at = read_entries(value, at)
        return dict(entries), at

    return read_map


def _fixed(size: int) -> Reader:
    def read_fixed(value: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        return value[at:end], end

    return read_fixed


def _read_longs(value: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Read ``count`` consecutive numbers at once, with numpy."""
    size = min(len(value) - at, count * _LONGEST)
    raw = np.frombuffer(value, np.uint8, size, at)
    # The last byte of each number has its high bit clear.
    ends = np.flatnonzero(raw < 0x80)[:count] + 1
    sizes = np.diff(ends, prepend=0)
    if len(ends) < count:
        raise ValueError(f"the {count} numbers from byte {at} on have no end")
    if sizes.max() > _LONGEST or (raw[ends[sizes == _LONGEST] - 1] > 1).any():
        raise ValueError(f"one of the {count} numbers from byte {at} on has more than 64 bits")
    begins, numbers = ends - sizes, np.zeros(count, _UNSIGNED)
    for place in range(sizes.max()):
        longer = sizes > place
        part = raw[begins[longer] + place] & 0x7F
        numbers[longer] |= part.astype(_UNSIGNED) << _UNSIGNED(7 * place)
    signs = (numbers & _UNSIGNED(1)).astype(np.int64)
    found: list[int] = ((numbers >> _UNSIGNED(1)).astype(np.int64) ^ -signs).tolist()
    return found, at + int(ends[-1])


def default_of(field: Schema) -> Any:
    """Return a field's default by Avro's rules.

    Bytes are written as text in a schema. The default of a union belongs to its first branch.
    """
    kind, default = field["type"], field["default"]
    kind = kind[0] if isinstance(kind, list) else kind
    is_bytes = isinstance(default, str) and kind != "string"
    return default.encode("latin-1") if is_bytes else default
