"""Rows of tables with columns: keys, JSON documents, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from cassandra import cqltypes

from stele.domain.model.schema import TableCreation
from stele.domain.ring.partitioner import token_of
from stele.node.cells import VALUE, Cell, merged
from stele.node.coordinate import RequestRefused
from stele.node.settings import MAX_COLUMN_BYTES, MAX_KEY_BYTES
from stele.node.table_rows import DataPath, place_of, write_of
from tests.node.columned import (
    PLAYS,
    USERS,
    alter,
    change,
    column,
    create_tables,
    reads,
    row_of,
    schema_of,
    writes,
)
from tests.node.world import KEYSPACE, World

ROW = "se/2026-11-29/10:00:00/intro"
PARTITION = "se/2026-11-29"


@pytest.fixture
def world() -> World:
    world = World()
    create_tables(world)
    return world


class StoredRow:
    """One row of a table, as a replica stores it."""

    def __init__(self, world: World, key: str = "ada", name: str = USERS) -> None:
        self.world, self.key, self.name = world, key, name
        self.cell: Cell | None = None
        self._now_us = 0

    def write(self, row: dict[str, Any] | None) -> None:
        self._now_us += 1
        cell = writes(self.key, row, self.name)(self.world.image).cell_at(self._now_us)
        self.cell = cell if self.cell is None else merged(self.cell, cell)

    def row(self) -> dict[str, Any] | None:
        return row_of(self.world.image, self.key, self.cell, self.name)


def refused(world: World, key: str, row: dict[str, Any], name: str = USERS) -> RequestRefused:
    with pytest.raises(RequestRefused) as raised:
        writes(key, row, name)(world.image)
    assert raised.value.status == 400
    return raised.value


def test_write_keeps_unnamed_columns_and_null_deletes_a_column(world: World) -> None:
    stored = StoredRow(world)
    stored.write({"age": 36, "tags": ["b", "a"]})
    stored.write({"age": None, "home": {"street": "Ring"}})
    assert stored.row() == {
        "name": "ada",
        "age": None,
        "home": {"street": "Ring"},
        "tags": ["a", "b"],
    }


def test_a_row_exists_from_its_first_write_to_its_deletion(world: World) -> None:
    stored = StoredRow(world)
    assert stored.row() is None
    stored.write({})
    assert stored.row() == {"name": "ada", "age": None, "home": None, "tags": None}
    stored.write({"age": 1})
    stored.write(None)
    assert stored.row() is None
    stored.write({"tags": []})
    assert stored.row() == {"name": "ada", "age": None, "home": None, "tags": []}


def test_a_row_that_was_read_can_be_written_back(world: World) -> None:
    stored = StoredRow(world, ROW, PLAYS)
    stored.write({"listener": "Ada"})
    row = stored.row()
    assert row is not None
    stored.write(row)
    assert stored.row() == row
    answer = refused(world, ROW, {**row, "song": "another"}, PLAYS)
    assert (answer.code, answer.details["column"]) == ("bad_primary_key", "song")


def test_key_has_the_encoding_and_partition_token_of_cassandra(
    world: World,
) -> None:
    users = reads("ada")(world.image)
    assert (users.key, users.token) == (b"ada", token_of(b"ada"))
    assert users.table_version == schema_of(world.image).version
    day = cqltypes.SimpleDateType.serialize("2026-11-29", 5)
    partition_key = b"\0\2se\0" + b"\0\4" + day + b"\0"
    at_partition, at_row = (reads(key, PLAYS)(world.image) for key in (PARTITION, ROW))
    assert at_row.token == at_partition.token == token_of(partition_key)
    assert at_partition.key == b"\0\x0c" + partition_key
    assert at_row.key.startswith(at_partition.key) and at_row.key != at_partition.key


def test_slash_in_a_key_with_several_columns_must_be_escaped(world: World) -> None:
    place = place_of(world.image, DataPath(USERS, "a/b", b"a%2Fb"))
    assert place.key == b"a/b"
    raw = b"se/2026-11-29/10:00:00/a%2Fb"
    place = place_of(world.image, DataPath(PLAYS, raw.decode().replace("%2F", "/"), raw))
    assert place.key.endswith(b"\0\3a/b")


def test_static_columns_belong_to_the_partition_and_others_to_the_row(world: World) -> None:
    partition, row = StoredRow(world, PARTITION, PLAYS), StoredRow(world, ROW, PLAYS)
    partition.write({"total": 3})
    row.write({"listener": "Ada"})
    assert partition.row() == {"country": "se", "day": "2026-11-29", "total": 3}
    shown = row.row()
    assert shown is not None and shown["listener"] == "Ada" and "total" not in shown
    for key, wrong in ((PARTITION, {"listener": "Ada"}), (ROW, {"total": 3})):
        answer = refused(world, key, wrong, PLAYS)
        assert (answer.code, answer.details["column"]) == ("bad_primary_key", next(iter(wrong)))


@pytest.mark.parametrize("key", ["se", "se/2026-11-29/10:00:00", f"{ROW}/more"])
def test_a_path_with_too_few_or_too_many_key_columns_is_refused(world: World, key: str) -> None:
    answer = refused(world, key, {}, PLAYS)
    assert answer.code == "bad_primary_key"
    assert "country, day, at, song" in answer.message


def test_column_that_is_dropped_and_added_again_has_no_old_values(
    world: World,
) -> None:
    stored = StoredRow(world)
    stored.write({"age": 36})
    alter(world, drop=("age",))
    assert stored.row() == {"name": "ada", "home": None, "tags": None}
    alter(world, add=(column("age", "int"),))
    assert stored.row() == {"name": "ada", "home": None, "tags": None, "age": None}
    stored.write({"age": 37})
    row = stored.row()
    assert row is not None and row["age"] == 37


def test_a_renamed_column_keeps_its_values(world: World) -> None:
    stored = StoredRow(world)
    stored.write({"age": 36})
    alter(world, rename={"name": "login"})
    assert stored.row() == {"login": "ada", "age": 36, "home": None, "tags": None}


def test_invalid_column_is_refused_with_the_column_and_the_schema_version(
    world: World,
) -> None:
    alter(world, drop=("tags",))
    version = schema_of(world.image).version
    for row, code, details in (
        ({"tags": ["a"]}, "dropped_column", {"column": "tags", "type": "set<text>"}),
        ({"size": 1}, "unknown_column", {"column": "size"}),
        ({"age": "old"}, "wrong_type", {"column": "age", "type": "int"}),
    ):
        answer = refused(world, "ada", row)
        assert (answer.code, answer.details) == (code, {**details, "table_version": version})
        assert next(iter(row)) in answer.message and str(version) in answer.message + answer.hint
    answer = refused(world, "se/today/10:00:00/intro", {}, PLAYS)
    assert (answer.code, answer.details["column"]) == ("wrong_type", "day")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b"value", b"\xff", b'{"a":' * 100_000),
        *(b'{"name": "\xff"}', b'{"\xff": 1}', b'{"age": 1e99999999999999999999}'),
    ],
)
def test_body_must_be_a_json_object(world: World, body: bytes) -> None:
    with pytest.raises(RequestRefused) as raised:
        write_of(world.image, DataPath(USERS, "ada", b"ada"), body)
    assert (raised.value.status, raised.value.code) == (400, "malformed_json")


def test_keys_and_values_above_their_limits_are_refused(world: World) -> None:
    answer = refused(world, "x" * (MAX_KEY_BYTES + 1), {})
    assert (answer.code, answer.details["size_bytes"]) == ("bad_key", MAX_KEY_BYTES + 1)
    assert refused(world, "", {}).code == "bad_key"
    large = {"home": {"street": "x" * MAX_COLUMN_BYTES}}
    assert refused(world, "ada", large).code == "value_too_large"


@pytest.mark.parametrize(
    ("columns", "parameters", "said"),
    [
        ((column("total", "counter"),), {}, "counters"),
        ((column("total", "int"),), {"default_time_to_live": "60"}, "default_time_to_live"),
    ],
)
def test_unsupported_column_types_and_parameters_are_refused(
    world: World, columns: tuple[Any, ...], parameters: dict[str, str], said: str
) -> None:
    name = f"{KEYSPACE}.others"
    key = column("id", "int", "partition_key")
    change(world, TableCreation(name=name, columns=(key, *columns), parameters=parameters))
    answer = refused(world, "1", {}, name)
    assert answer.code == "not_supported" and said in answer.message


def test_table_without_columns_stores_any_bytes(world: World) -> None:
    write = write_of(world.image, DataPath(KEYSPACE, "k/1", b"k/1"), b"\xff")
    assert write.cell_at(5) == Cell(5, VALUE, b"\xff")
    assert (write.place.key, write.place.table_version) == (b"k/1", 0)


def test_opaque_value_in_a_table_with_columns_is_not_a_row(world: World) -> None:
    stored = StoredRow(world)
    stored.cell = Cell(9, VALUE, b"of an earlier build")
    assert stored.row() is None
    stored.write({"age": 1})
    row = stored.row()
    assert row is not None and row["age"] == 1
