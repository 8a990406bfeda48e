"""Tables with columns for tests, and requests for their rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import Image
from stele.domain.model.schema import (
    AlterSchema,
    AnyChange,
    ColumnDefinition,
    TableAlteration,
    TableCreation,
    TypeCreation,
)
from stele.domain.model.schema_objects import ColumnKind, TableSchema, TypeField
from stele.node.cells import Cell
from stele.node.coordinate import PlaceOf, WriteOf
from stele.node.table_rows import DataPath, place_of, rows_of, write_of
from tests.node.world import KEYSPACE, World

USERS = f"{KEYSPACE}.users"
PLAYS = f"{KEYSPACE}.plays"


def column(name: str, type_: str, kind: str = "regular") -> ColumnDefinition:
    return ColumnDefinition(name=name, type=type_, kind=ColumnKind(kind))


def create_tables(world: World) -> None:
    """Create ``users`` by name, and ``plays`` by two partition and two clustering columns."""
    world.enable(SCHEMA_OBJECTS)
    change(
        world,
        TypeCreation(name=f"{KEYSPACE}.address", fields=(TypeField("street", "text"),)),
        TableCreation(
            name=USERS,
            columns=(
                column("name", "text", "partition_key"),
                column("age", "int"),
                column("home", "frozen<address>"),
                column("tags", "set<text>"),
            ),
        ),
        TableCreation(
            name=PLAYS,
            columns=(
                column("country", "text", "partition_key"),
                column("day", "date", "partition_key"),
                column("at", "time", "clustering"),
                column("song", "text", "clustering"),
                column("total", "int", "static"),
                column("listener", "text"),
            ),
        ),
    )


def change(world: World, *changes: AnyChange) -> None:
    world.apply(AlterSchema(changes))


def alter(world: World, name: str = USERS, **changes: Any) -> None:
    change(world, TableAlteration(name=name, **changes))


def schema_of(image: Image, name: str = USERS) -> TableSchema:
    table = image.schema.table_named(name)
    assert table is not None
    return image.schema.schemas[table.table_id]


def path_of(key: str, name: str = USERS) -> DataPath:
    """Return the path of a key whose segments need no escapes."""
    return DataPath(name, key, key.encode())


def writes(key: str, row: dict[str, Any] | None, name: str = USERS) -> WriteOf:
    """Return the write of a row, or its deletion with None."""
    body = None if row is None else msgspec.json.encode(row)
    return partial(write_of, path=path_of(key, name), body=body)


def reads(key: str, name: str = USERS) -> PlaceOf:
    return partial(place_of, path=path_of(key, name))


def row_of(image: Image, key: str, cell: Cell | None, name: str = USERS) -> dict[str, Any] | None:
    """Return the row that a cell is shown as."""
    rows = rows_of(image, name)
    assert rows is not None
    found = rows.document(path_of(key, name), cell)
    return None if found is None else msgspec.json.decode(found)
