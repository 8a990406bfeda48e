"""The tables of the schema: rows of columns and types, and changes with actor, time and reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stele.domain.evolve import evolve
from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.placements.derived_tables import Derived
from stele.placements.schema_history import schema_changes
from stele.placements.store import TableStore
from stele.placements.summaries import SUMMARIES, Row, rows_of
from stele.placements.tables import SCHEMAS, open_table
from stele_harness.tables import read_table
from tests.spark.checks import differences
from tests.spark.filled import fill
from tests.spark.histories import images, random_log
from tests.spark.test_chain import winners


def changes() -> list[Row]:
    """Return all changes of the schema of a random log."""
    image, found = EMPTY_FOR_FOLLOWERS, list[Row]()
    for epoch in winners(random_log(1)):
        before, image = image, evolve(image, epoch)
        found += schema_changes(before, epoch, image)
    return found


def test_columns_and_types_have_their_names_types_and_order() -> None:
    last = images(random_log(1))[-1]
    columns = [
        (row["column_position"], row["column_name"], row["column_type"], row["column_kind"])
        for row in rows_of(SUMMARIES["columns"], "c", last)
        if row["table_name"] == "orders"
    ]
    assert columns == [
        (0, "customer", "uuid", "partition_key"),
        (1, "at", "timestamp", "clustering"),
        (2, "sent", "frozen<address>", "regular"),
        (3, "total", "decimal", "regular"),
        (4, "note", "text", "regular"),
    ]
    (address,) = rows_of(SUMMARIES["types"], "c", last)
    assert (address["type_name"], address["field_names"]) == (
        "address",
        ["street", "city", "zip"],
    )
    kinds = {
        row["table_name"]: row["table_kind"] for row in rows_of(SUMMARIES["tables"], "c", last)
    }
    assert kinds == {"t": "opaque", "orders": "table", "by_total": "view"}


def test_drop_has_the_actor_and_reason_of_its_request() -> None:
    (dropped,) = [
        row
        for row in changes()
        if (row["object_name"], row["change_kind"]) == ("shop.gone", "dropped")
    ]
    assert (dropped["actor"], dropped["reason"], dropped["command"]) == ("ada", "why", "drop_table")
    assert dropped["cql_text"] is None
    (created,) = [
        row
        for row in changes()
        if row["object_name"] == "shop.gone"
        and row is not dropped
        and row["change_kind"] == "created"
    ]
    assert created["command"] == "alter_schema"
    assert created["object_id"] == dropped["object_id"]


def test_change_without_a_visible_difference_has_no_row() -> None:
    """A view of all columns gets a new column, and its statement does not change."""
    changed = {row["object_name"] for row in changes() if row["change_kind"] == "changed"}
    assert changed == {"library", "shop.orders", "shop.address"}


@pytest.mark.parametrize("seed", [1, 2])
def test_schema_tables_equal_a_replay_of_the_log(seed: int, tmp_path: Path) -> None:
    fill(tmp_path, "c", seed)
    names = ("schema_history", "columns", "types", "tables")
    found = differences(tmp_path, "c", random_log(seed))
    assert [row for row in found if row.startswith(names)] == []


def test_changes_that_are_folded_again_are_written_once(tmp_path: Path) -> None:
    tables, rows = Derived(TableStore(tmp_path)), changes()
    half = rows[len(rows) // 2]["changed_epoch"]
    first = [row for row in rows if row["changed_epoch"] <= half]
    tables.write_schema_history({"c": first}, {"c": half})
    tables.write_schema_history({"c": rows}, {"c": rows[-1]["changed_epoch"]})
    tables.write_schema_history({"c": first}, {"c": half})
    assert tables.load(["c"]).schema_epochs == {"c": rows[-1]["changed_epoch"]}
    held = read_table(tmp_path, "schema_history", "c")
    assert sorted((row["changed_epoch"], row["object_id"]) for row in held) == sorted(
        (row["changed_epoch"], row["object_id"]) for row in rows
    )


def test_table_of_an_earlier_build_gets_missing_columns(tmp_path: Path) -> None:
    store, whole = TableStore(tmp_path), SCHEMAS["tables"]
    older = pa.schema([each for each in whole if each.name not in ("table_kind", "columns_epoch")])
    DeltaTable.create(store.uri("tables"), older)
    open_table(store, "tables")
    assert {field.name for field in store.table("tables").schema().fields} == {*whole.names}
    Derived(store).write_summaries({"c": images(random_log(1))[-1]})
    assert {row["table_kind"] for row in read_table(tmp_path, "tables", "c")} == {
        *("opaque", "table", "view")
    }
