"""The schema as the page shows it: keyspaces, tables, options, snapshots and settings.

Pure functions of an image: the page shows them at any epoch.
"""

import difflib
from collections.abc import Iterator

import msgspec

from stele.console.views import copied
from stele.domain.image import Image
from stele.domain.model.schema import Balancing, SchemaImage, Table, TableOptions
from stele.domain.model.schema_objects import (
    Aggregate,
    Column,
    ColumnKind,
    Function,
    Index,
    IndexTarget,
    SchemaVersion,
    TableSchema,
    UserType,
)
from stele.domain.model.settings import KNOWN
from stele.domain.rules.table_snapshots import summary_of
from stele.runtime.answers.of_image import schema_answer
from stele.words.cql import statements

NEVER_SET = msgspec.to_builtins(TableOptions())
"""Default values. An option with its default is not shown."""


class KeyspaceShown(msgspec.Struct, frozen=True, kw_only=True):
    """A keyspace. ``replication`` is written as on the command line."""

    name: str
    replication: str
    tablets: bool
    initial_tablets: int
    tables: int
    dropped: bool
    balancing: Balancing


class ColumnShown(msgspec.Struct, frozen=True, kw_only=True):
    """A column; ``kind`` is partition_key, clustering, static or regular."""

    name: str
    type: str
    kind: str
    order: str


class TableShown(msgspec.Struct, frozen=True, kw_only=True):
    """A table. ``tablets`` 0 means that its rows are placed by its keyspace.

    ``kind`` is table, view, or opaque for a table without columns. ``version`` is the epoch of the
    last change of its columns. ``options`` holds those that differ from the default.
    """

    name: str
    keyspace: str
    kind: str
    version: int
    columns: tuple[ColumnShown, ...]
    dropped_columns: tuple[str, ...]
    parameters: dict[str, str]
    indexes: tuple[str, ...]
    placement: str
    tablets: int
    colocated_with: str
    options: dict[str, int | str]
    dropped: bool
    balancing: Balancing


class ObjectShown(msgspec.Struct, frozen=True, kw_only=True):
    """A type, function or aggregate. ``kind`` is one of these words."""

    name: str
    keyspace: str
    kind: str
    version: int


class SnapshotShown(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a table. Rows and bytes count all replicas; ``expires_ms`` 0: never."""

    name: str
    table: str
    request_id: str
    epoch: int
    tablets: int
    rows: int
    size_bytes: int
    nodes: int
    taken_ms: int
    expires_ms: int


class RestoreShown(msgspec.Struct, frozen=True, kw_only=True):
    """A restore under way. ``restored`` of its ``tablets`` are done."""

    request_id: str
    table: str
    snapshot: str
    tablets: int
    restored: int


class SettingShown(msgspec.Struct, frozen=True, kw_only=True):
    """A setting. An empty ``value`` means the default; an empty ``counts`` means unknown here."""

    name: str
    value: str
    default: str
    counts: str
    unsafe: bool


class SchemaShown(msgspec.Struct, frozen=True, kw_only=True):
    """The schema at one epoch. Each list is sorted by name."""

    epoch: int
    keyspaces: tuple[KeyspaceShown, ...]
    tables: tuple[TableShown, ...]
    objects: tuple[ObjectShown, ...]
    cql: dict[str, str]
    """Statements by full name of the object that they create."""
    version: SchemaVersion
    snapshots: tuple[SnapshotShown, ...]
    restores: tuple[RestoreShown, ...]
    settings: tuple[SettingShown, ...]
    features: tuple[str, ...]


class ObjectDifference(msgspec.Struct, frozen=True):
    """A schema object that was added (+), dropped (-) or changed (~), as signed lines of CQL.

    The sign of an unchanged line is a blank.
    """

    name: str
    sign: str
    lines: tuple[tuple[str, str], ...]


class SchemaDifference(msgspec.Struct, frozen=True):
    """The changed objects between two epochs, by name."""

    before: int
    after: int
    objects: tuple[ObjectDifference, ...]


def schema_difference(before: Image, after: Image) -> SchemaDifference:
    """Return the changed schema objects between two states."""
    old, new = _cql(before), _cql(after)
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    found = tuple(_object_difference(name, old.get(name), new.get(name)) for name in changed)
    return SchemaDifference(before.epoch, after.epoch, found)


def _object_difference(name: str, old: str | None, new: str | None) -> ObjectDifference:
    sign = "~" if old and new else "+" if new else "-"
    # Lines of hints ("?") mark characters inside a line. They are left out.
    compared = difflib.ndiff((old or "").splitlines(), (new or "").splitlines())
    lines = tuple((line[0], line[2:]) for line in compared if line[0] != "?")
    return ObjectDifference(name, sign, lines)


def _cql(image: Image) -> dict[str, str]:
    """Return the statements by full name. Those of indexes are with their table."""
    found = dict[str, str]()
    for name, text in statements(schema_answer(image)):
        found[name] = f"{found[name]}\n{text}" if name in found else text
    return found


def schema_shown(image: Image) -> SchemaShown:
    """Return the schema at the epoch of the image."""
    schema = image.schema
    keyspaces = sorted(schema.by_id.values(), key=lambda each: each.name)
    tables = sorted(schema.tables.values(), key=schema.full_name)
    return SchemaShown(
        epoch=image.epoch,
        keyspaces=tuple(
            copied(
                KeyspaceShown,
                each,
                replication=each.wanted.words(),
                tables=len(schema.tables_of(each)),
                dropped=each.dropped_version > 0,
            )
            for each in keyspaces
        ),
        tables=tuple(_table(image, each) for each in tables),
        objects=tuple(_objects(schema)),
        cql=_cql(image),
        version=schema.version,
        snapshots=_snapshots(image),
        restores=_restores(image),
        settings=_settings(image),
        features=tuple(sorted(image.features.enabled)),
    )


def _table(image: Image, table: Table) -> TableShown:
    schema = image.schema
    data, base_id = schema.data_of(table), table.base_table_id
    base = schema.tables.get(base_id) if table.placement else None
    placed = image.ring.placements.get(table.placement) if table.placement else None
    said = msgspec.to_builtins(table.options).items()
    own = schema.schemas.get(table.table_id)
    dropped = () if own is None else own.dropped_columns
    return TableShown(
        name=data.name,
        keyspace=schema.by_id[table.keyspace_id].name,
        kind="opaque" if own is None else "table" if own.view is None else "view",
        version=0 if own is None else own.version,
        columns=() if own is None else tuple(map(_column, own.columns)),
        dropped_columns=tuple(f"{c.name} {c.type}, epoch {c.dropped_epoch}" for c in dropped),
        parameters={} if own is None else own.parameters,
        indexes=() if own is None else tuple(_index(own, each) for each in own.indexes),
        placement=data.placement,
        tablets=0 if placed is None else len(placed),
        colocated_with="" if base is None else schema.full_name(base),
        options={name: value for name, value in said if value != NEVER_SET[name]},
        dropped=data.dropped_version > 0,
        balancing=table.balancing,
    )


def _column(column: Column) -> ColumnShown:
    order = column.order if column.kind is ColumnKind.CLUSTERING else ""
    return ColumnShown(name=column.name, type=column.type, kind=column.kind, order=order)


def _index(table: TableSchema, index: Index) -> str:
    column = table.column_by_id(index.column_id).name
    target = column if index.target is IndexTarget.SIMPLE else f"{index.target}({column})"
    return f"{index.name} on {target}"


def _objects(schema: SchemaImage) -> Iterator[ObjectShown]:
    rows: list[tuple[str, UserType | Function | Aggregate]] = [
        *(("type", each) for each in schema.types.values()),
        *(("function", each) for each in schema.functions.values()),
        *(("aggregate", each) for each in schema.aggregates.values()),
    ]
    for kind, row in sorted(rows, key=lambda each: (each[1].name, each[0])):
        keyspace = schema.by_id[row.keyspace_id].name
        yield ObjectShown(
            name=f"{keyspace}.{row.name}", keyspace=keyspace, kind=kind, version=row.version
        )


def _snapshots(image: Image) -> tuple[SnapshotShown, ...]:
    found = image.table_snapshots.snapshots.values()
    return tuple(
        copied(
            SnapshotShown,
            each,
            request_id=each.snapshot_id,
            rows=sum(part.rows for part in each.parts),
            nodes=len(each.parts),
        )
        for each in sorted(found, key=lambda snapshot: (snapshot.name, snapshot.snapshot_id))
    )


def _restores(image: Image) -> tuple[RestoreShown, ...]:
    schema, taken = image.schema, image.table_snapshots.snapshots
    shown = []
    for each in map(summary_of, image.table_snapshots.restores.values()):
        table, snapshot = schema.tables.get(each.table_id), taken.get(each.snapshot_id)
        shown.append(
            RestoreShown(
                request_id=each.restore_id,
                table=each.table_id if table is None else schema.full_name(table),
                snapshot=each.snapshot_id if snapshot is None else snapshot.name,
                tablets=each.tablets,
                restored=each.restored,
            )
        )
    return tuple(sorted(shown, key=lambda each: (each.table, each.request_id)))


def _settings(image: Image) -> tuple[SettingShown, ...]:
    values, shown = image.features.settings, []
    for name in sorted({*KNOWN, *values}):
        value, known = values.get(name, ""), KNOWN.get(name)
        shown.append(
            SettingShown(
                name=name,
                value=value,
                default="" if known is None else str(known.default),
                counts="" if known is None else known.counts,
                unsafe=known is not None and bool(value) and known.is_unsafe(value),
            )
        )
    return tuple(shown)
