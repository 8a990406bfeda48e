"""Rows of tables with columns: their place in the store, and their JSON documents.

A row has one entry of the store. Its key begins with the partition key, as CQL encodes it, and ends
with the clustering columns. The token is that of the partition key. Static columns of a partition
have an entry without clustering columns.

Values are stored by column id. A renamed column keeps its values, and a column that is added again
under a dropped name has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from stele.domain.image import Image
from stele.domain.model.schema import Table
from stele.domain.model.schema_objects import Column, ColumnKind, TableSchema, TypeField
from stele.domain.ring.partitioner import token_of
from stele.domain.rules.table_parameters import DEFAULT_TTL
from stele.node.cells import (
    ROW,
    TOMBSTONE,
    VALUE,
    Cell,
    ColumnValue,
    RowContent,
    content_of,
    row_cell,
)
from stele.node.coordinate import CellWrite, Found, KeyPlace, RequestRefused
from stele.node.cql_values import (
    ValueMismatch,
    decode_json,
    decode_value,
    encode_json,
    encode_value,
    value_of_text,
)
from stele.node.settings import MAX_COLUMN_BYTES, MAX_KEY_BYTES

ROW_MARKER: Final = 0
"""Column id of the mark that a row exists, as CQL's INSERT sets it. Ids of columns begin at 1."""
LENGTH_BYTES: Final = 2


class DataPath(NamedTuple):
    """The path of a data request: the keyspace or table, and the key.

    ``key`` is the rest of the path as a text; ``raw_key`` is the same with its escapes.
    """

    name: str
    key: str
    raw_key: bytes


def place_of(image: Image, path: DataPath) -> KeyPlace:
    """Return the place of the path's key. Raises RequestRefused."""
    rows = rows_of(image, path.name)
    return _opaque(path) if rows is None else rows.place(path).key


def write_of(image: Image, path: DataPath, body: bytes | None) -> CellWrite:
    """Return the write of a request's body, or the deletion if it is None. Raises RequestRefused."""
    rows = rows_of(image, path.name)
    if rows is not None:
        return rows.change(path, body)
    kind = TOMBSTONE if body is None else VALUE
    return CellWrite(_opaque(path), lambda timestamp: Cell(timestamp, kind, body or b""))


def content_found(found: Found, path: DataPath) -> bytes | None:
    """Return what a read found: a value, or a row as JSON. None if there is none."""
    rows = rows_of(found.image, path.name)
    if rows is not None:
        return rows.document(path, found.cell)
    return None if found.cell is None or found.cell.kind == TOMBSTONE else found.cell.value


def rows_of(image: Image, name: str) -> TableRows | None:
    """Return the rows of a table with columns; None for opaque data."""
    table = image.schema.table_named(name)
    schema = None if table is None else image.schema.schemas.get(table.table_id)
    return None if table is None or schema is None else TableRows(image, table, schema)


def _opaque(path: DataPath) -> KeyPlace:
    key = path.key.encode()
    _check_key(key)
    return KeyPlace(token_of(key), key)


def _check_key(key: bytes) -> None:
    if not 1 <= len(key) <= MAX_KEY_BYTES:
        raise RequestRefused(
            400,
            "bad_key",
            f"A key has 1 to {MAX_KEY_BYTES} bytes; this one has {len(key)}.",
            "Choose a shorter key, for example a hash of it.",
            {"size_bytes": len(key), "limit_bytes": MAX_KEY_BYTES},
        )


class RowPlace(NamedTuple):
    """The place of a row: its key columns with their encoded values, and the columns it has."""

    key: KeyPlace
    keys: list[tuple[Column, bytes]]
    columns: list[Column]


class TableRows:
    """The rows of one table, by its columns in one image. Methods raise RequestRefused."""

    def __init__(self, image: Image, table: Table, schema: TableSchema) -> None:
        self._image = image
        self._keyspace = image.schema.by_id[table.keyspace_id].name
        self._name = image.schema.full_name(table)
        self._schema = schema

    @property
    def version(self) -> int:
        return self._schema.version

    def place(self, path: DataPath) -> RowPlace:
        """Return the place of the row whose key columns are the segments of the path."""
        self._check_supported()
        partition, clustering, statics, columns = map(self._columns, ColumnKind)
        keys = [*partition, *clustering]
        texts = [path.key] if len(keys) == 1 else _segments(path)
        if statics and len(texts) == len(partition):
            keys, columns = partition, statics
        if len(texts) != len(keys):
            raise self._bad_key(len(texts))
        values = [self._key_value(*each) for each in zip(keys, texts, strict=True)]
        partition_key = _composite(values[: len(partition)])
        key = partition_key
        if clustering:
            # With its length, so that no key of a partition is the key of another one's row.
            key = b"".join(map(_with_length, (partition_key, *values[len(partition) :])))
        for each in (partition_key, key):
            _check_key(each)
        where = KeyPlace(token_of(partition_key), key, self._schema.version)
        return RowPlace(where, [*zip(keys, values, strict=True)], columns)

    def change(self, path: DataPath, body: bytes | None) -> CellWrite:
        """Return the write of the columns in a JSON object; null deletes a column.

        Columns that the object does not name keep their values. No body deletes the row.
        """
        place = self.place(path)
        if body is None:
            return CellWrite(place.key, lambda timestamp: row_cell(timestamp, ()))
        values = self._values(place, body)
        return CellWrite(
            place.key,
            lambda timestamp: row_cell(
                0, (ColumnValue(column_id, timestamp, each) for column_id, each in values)
            ),
        )

    def document(self, path: DataPath, cell: Cell | None) -> bytes | None:
        """Return the row as a JSON object, with null for columns that have no value."""
        place = self.place(path)
        if cell is None or cell.kind != ROW:
            return None
        stored = {each.column_id: each.value for each in content_of(cell.value).columns}
        if ROW_MARKER not in stored:
            return None
        found = {column.name: self._shown(column, value) for column, value in place.keys}
        for column in place.columns:
            value = stored.get(column.column_id)
            found[column.name] = None if value is None else self._shown(column, value)
        return encode_json(found)

    def key_of(self, key: bytes) -> dict[str, object]:
        """Return the key columns of an entry's key, as JSON values."""
        partition, clustering = (
            self._columns(kind) for kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
        )
        parts = _parts(key) if clustering else [key]
        first = [parts[0]] if len(partition) == 1 else _parts(parts[0], ends=True)
        values = zip((*partition, *clustering), (*first, *parts[1:]), strict=False)
        return {column.name: self._shown(column, value) for column, value in values}

    def values_of(self, content: RowContent) -> dict[str, object]:
        """Return the columns of an entry as JSON values, with null for deleted ones.

        Values of dropped columns are left out.
        """
        known = {column.column_id: column for column in self._schema.columns}
        return {
            known[each.column_id].name: (
                None if each.value is None else self._shown(known[each.column_id], each.value)
            )
            for each in content.columns
            if each.column_id in known
        }

    def _values(self, place: RowPlace, body: bytes) -> list[tuple[int, bytes | None]]:
        values: list[tuple[int, bytes | None]] = [(ROW_MARKER, b"")]
        keys = {column.name: value for column, value in place.keys}
        for name, given in self._object(body).items():
            column = self._column(name)
            value = None if given is None else self._encoded(column, given)
            if name in keys:
                # A row that was read may be written back with its key.
                if value != keys[name]:
                    raise self._not_the_key(column)
            elif column in place.columns:
                values.append((column.column_id, value))
            else:
                raise self._elsewhere(column)
        return values

    def _object(self, body: bytes) -> dict[str, object]:
        try:
            found: object = decode_json(body)
        except (msgspec.DecodeError, RecursionError) as error:
            found = error
        if isinstance(found, dict):
            return found
        why = f": {found}" if isinstance(found, Exception) else ""
        raise self._refused(
            "malformed_json",
            f"Table {self._name} has columns, and the body is not a JSON object{why}.",
            'Send the columns to write, such as {"name": "Ada"}; null deletes a value.',
        )

    def _column(self, name: str) -> Column:
        column = self._schema.column(name)
        if column is not None:
            return column
        shown = name[:128]
        dropped = [each for each in self._schema.dropped_columns if each.name == name]
        if dropped:
            raise self._refused(
                "dropped_column",
                f"Column {shown} of table {self._name} was dropped at epoch"
                f" {dropped[-1].dropped_epoch}.",
                f"Read the table's version {self._schema.version}: `stele schema show {self._name}`.",
                column=shown,
                type=dropped[-1].type,
            )
        raise self._refused(
            "unknown_column",
            f"Table {self._name} has no column {shown!r} in version {self._schema.version}.",
            f"`stele schema show {self._name}` lists the columns.",
            column=shown,
        )

    def _encoded(self, column: Column, value: object) -> bytes:
        try:
            encoded = encode_value(column.parsed, value, self._fields_of)
        except ValueMismatch as error:
            raise self._refused(
                "wrong_type",
                f"Column {column.name} of table {self._name} has the type {column.type}: {error}.",
                f"Send a value of that type; version {self._schema.version} of the table has it.",
                column=column.name,
                type=column.type,
            ) from error
        if len(encoded) > MAX_COLUMN_BYTES:
            raise self._refused(
                "value_too_large",
                f"The value of column {column.name} has {len(encoded)} bytes; the limit is"
                f" {MAX_COLUMN_BYTES}.",
                "Split it over several rows.",
                column=column.name,
            )
        return encoded

    def _key_value(self, column: Column, text: str) -> bytes:
        try:
            value = value_of_text(column.parsed, text)
        except ValueMismatch:
            value = text  # refused with the column and its type
        return self._encoded(column, value)

    def _shown(self, column: Column, value: bytes) -> object:
        return decode_value(column.parsed, value, self._fields_of)

    def _fields_of(self, name: str) -> Sequence[TypeField]:
        found = self._image.schema.type_named(f"{self._keyspace}.{name}")
        assert found is not None  # a type that a column uses cannot be dropped
        return found.fields

    def _columns(self, kind: ColumnKind) -> list[Column]:
        return [*self._schema.of_kind(kind)]

    def _check_supported(self) -> None:
        what = ""
        if self._schema.is_counter:
            what = "has counters"
        elif self._schema.view is not None:
            what = "is a materialized view"
        elif self._schema.parameters.get(DEFAULT_TTL, "0") != "0":
            what = f"has {DEFAULT_TTL}, and rows do not expire here"
        if what:
            raise self._refused(
                "not_supported",
                f"The store for trials cannot keep rows of table {self._name}: it {what}.",
                "Use another table, or a store of your own.",
            )

    def _bad_key(self, count: int) -> RequestRefused:
        names = [column.name for column in self._schema.columns if column.in_primary_key]
        return self._refused(
            "bad_primary_key",
            f"The primary key of table {self._name} has the columns {', '.join(names)}; the number of values"
            f" in the path is {count}.",
            f"Send the path /v1/data/{self._name}/{'/'.join(names).upper()}. Static columns are at the"
            " partition key alone.",
        )

    def _not_the_key(self, column: Column) -> RequestRefused:
        return self._refused(
            "bad_primary_key",
            f"The row has another value of the key column {column.name} than the path.",
            "Leave key columns out of the row, or send those of the path.",
            column=column.name,
        )

    def _elsewhere(self, column: Column) -> RequestRefused:
        is_static = column.kind is ColumnKind.STATIC
        return self._refused(
            "bad_primary_key",
            f"Column {column.name} of table {self._name} is {column.kind}, and the path names a"
            f" {'row' if is_static else 'partition'}.",
            "Static columns are at the partition key alone, and other columns at the whole key.",
            column=column.name,
        )

    def _refused(self, code: str, message: str, hint: str, **details: str) -> RequestRefused:
        """Return an error, with the version of the table to read in its details."""
        version = self._schema.version
        return RequestRefused(400, code, message, hint, {**details, "table_version": version})


def _segments(path: DataPath) -> list[str]:
    """Return the segments of the key. A slash in a value is written as %2F."""
    return [unquote_to_bytes(each).decode() for each in path.raw_key.split(b"/")]


def _composite(values: Sequence[bytes]) -> bytes:
    """Return the partition key: the value of a single column, or Cassandra's CompositeType."""
    if len(values) == 1:
        return values[0]
    return b"".join(_with_length(value) + b"\0" for value in values)


def _parts(encoded: bytes, *, ends: bool = False) -> list[bytes]:
    """Return the values that ``_with_length`` encoded; with ``ends`` each has a byte behind it."""
    found, at = list[bytes](), 0
    while at < len(encoded):
        begin = at + LENGTH_BYTES
        end = begin + int.from_bytes(encoded[at:begin], "big")
        found.append(encoded[begin:end])
        at = end + ends
    return found


def _with_length(value: bytes) -> bytes:
    if len(value) > MAX_KEY_BYTES:
        _check_key(value)
    return len(value).to_bytes(LENGTH_BYTES, "big") + value
