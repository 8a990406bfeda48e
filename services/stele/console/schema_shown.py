"""What is agreed upon, as the page shows it: keyspaces, tables, their options and snapshots, settings.

Pure functions of an image: what is here can be seen at any epoch.
"""

import msgspec

from stele.domain.features.known import KNOWN
from stele.domain.image import Image
from stele.domain.schema.facts import Balancing, Table, TableOptions
from stele.domain.table_snapshots.domain import summary_of

NEVER_SET = msgspec.to_builtins(TableOptions())
"""An option that has this value says nothing."""


class KeyspaceShown(msgspec.Struct, frozen=True, kw_only=True):
    """``replication`` as on the command line."""

    name: str
    replication: str
    tablets: bool
    initial_tablets: int
    tables: int
    dropped: bool
    balancing: Balancing


class TableShown(msgspec.Struct, frozen=True, kw_only=True):
    """``tablets`` 0: its rows are where its keyspace's are. Of ``options`` those that say something."""

    name: str
    placement: str
    tablets: int
    colocated_with: str
    options: dict[str, int | str]
    dropped: bool
    balancing: Balancing


class SnapshotShown(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a table; ``expires_ms`` 0: never. Rows and bytes are those of all replicas."""

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
    """A restore under way: so many of its tablets are restored."""

    request_id: str
    table: str
    snapshot: str
    tablets: int
    restored: int


class SettingShown(msgspec.Struct, frozen=True, kw_only=True):
    """``value`` empty: it has its default. ``counts`` empty: this build does not know it."""

    name: str
    value: str
    default: str
    counts: str
    unsafe: bool


class SchemaShown(msgspec.Struct, frozen=True, kw_only=True):
    """By name, each list."""

    epoch: int
    keyspaces: tuple[KeyspaceShown, ...]
    tables: tuple[TableShown, ...]
    snapshots: tuple[SnapshotShown, ...]
    restores: tuple[RestoreShown, ...]
    settings: tuple[SettingShown, ...]
    features: tuple[str, ...]


def schema_shown(image: Image) -> SchemaShown:
    """All that was agreed upon at the epoch of the image."""
    schema = image.schema
    keyspaces = sorted(schema.by_id.values(), key=lambda each: each.name)
    tables = sorted(schema.tables.values(), key=schema.full_name)
    return SchemaShown(
        epoch=image.epoch,
        keyspaces=tuple(
            KeyspaceShown(
                name=each.name,
                replication=each.wanted.words(),
                tablets=each.tablets,
                initial_tablets=each.initial_tablets,
                tables=len(schema.tables_of(each)),
                dropped=each.dropped_version > 0,
                balancing=each.balancing,
            )
            for each in keyspaces
        ),
        tables=tuple(_table(image, each) for each in tables),
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
    return TableShown(
        name=data.name,
        placement=data.placement,
        tablets=0 if placed is None else len(placed),
        colocated_with="" if base is None else schema.full_name(base),
        options={name: value for name, value in said if value != NEVER_SET[name]},
        dropped=data.dropped_version > 0,
        balancing=table.balancing,
    )


def _snapshots(image: Image) -> tuple[SnapshotShown, ...]:
    found = image.table_snapshots.snapshots.values()
    return tuple(
        SnapshotShown(
            name=each.name,
            table=each.table,
            request_id=each.snapshot_id,
            epoch=each.epoch,
            tablets=each.tablets,
            rows=sum(part.rows for part in each.parts),
            size_bytes=each.size_bytes,
            nodes=len(each.parts),
            taken_ms=each.taken_ms,
            expires_ms=each.expires_ms,
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
