"""Delta tables read without Spark equal those read by Spark. Derived tables continue from their heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stele.domain.ring.ranges import RangeReplicas
from stele.placements.fold import CurrentRow, HeldRows, PastRow
from stele.placements.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stele.placements.derived_tables import Derived

NAME = "a-b"


def rows(epoch: int, count: int = 3) -> dict[str, HeldRows]:
    return {
        "dc1:3": {
            n: CurrentRow(RangeReplicas(n, n + 1, ("n1",), ("n1",), epoch, n), epoch)
            for n in range(count)
        }
    }


def held(tables: Derived, cluster: str) -> tuple[int, dict[str, HeldRows]]:
    """Return the epoch and the rows from which a process continues."""
    loaded = tables.load([cluster])
    return loaded.epochs[cluster], loaded.placements(cluster)


@pytest.mark.spark
def test_reader_equals_spark_at_every_version_over_upkeep(
    spark: SparkSession, folder: Path
) -> None:
    from stele.placements.derived_tables import Derived
    from stele.placements.queries import view
    from stele.placements.tables import EVENTS, open_table
    from stele.placements.upkeep import upkeep
    from stele_harness.tables import read_table

    store = TableStore(folder)
    tables = Derived(store)
    for epoch in range(1, 5):
        tables.write_current(
            {NAME: rows(epoch, epoch), "c": rows(epoch)}, {NAME: epoch, "c": epoch}
        )
    open_table(store, EVENTS)
    upkeep(store)
    table = folder / "placements"
    for version in range(1, 5):
        frame = spark.read.format("delta").option("versionAsOf", version).load(str(table))
        expected = sorted(
            (r.asDict() for r in frame.where(f"cluster = '{NAME}'").collect()), key=str
        )
        assert len(expected) == version
        assert sorted(read_table(folder, "placements", NAME, version), key=str) == expected
    assert read_table(folder, "placements", "other") == []
    came = rows(9, 8)["dc1:3"][7]
    changes = {("dc1:3", 1): None, ("dc1:3", 7): came}
    tables.write_changes({"c": changes}, {"c": 9})
    for name in ("placements", "placements_changes"):
        spark.read.format("delta").load(str(folder / name)).createOrReplaceTempView(name)
    live = spark.sql(view("placements_live")).collect()
    assert sorted(r.range_start for r in live if r.cluster == "c") == [0, 2, 7]
    assert sum(r.cluster == NAME for r in live) == 4


def test_folder_without_a_table_is_an_error(folder: Path) -> None:
    from stele.placements.store import TableMissing
    from stele_harness.tables import read_table

    with pytest.raises(TableMissing, match="no Delta table at"):
        read_table(folder, "events", "a")


def test_rows_of_a_written_epoch_are_not_written_again(folder: Path) -> None:
    from stele.placements.derived_tables import Derived
    from stele_harness.tables import current_placements, read_table

    mine, other = Derived(TableStore(folder)), Derived(TableStore(folder))
    went = [PastRow("p", RangeReplicas(0, 1, (), ()), 1, to_epoch) for to_epoch in (2, 3, 4)]
    other.write_past({"a": went[:2]}, {"a": 3})
    mine.write_past({"a": went}, {"a": 4})
    mine.write_past({"a": went}, {"a": 4})
    found = read_table(folder, "placements_past", "a")
    assert sorted(row["to_epoch"] for row in found) == [2, 3, 4]
    other.write_current({"a": rows(5)}, {"a": 5})
    mine.write_past({"a": [], "b": []}, {"a": 5, "b": 1})
    mine.write_current({"a": rows(4, 1), "b": rows(2)}, {"a": 4, "b": 2})
    assert len(current_placements(folder, "a")["dc1:3"]) == 3
    assert held(mine, "a")[0] == 5
    assert held(mine, "b") == (0, {})  # the past rows are incomplete: all are written again
    mine.write_past({"a": [], "b": []}, {"a": 6, "b": 2})
    assert held(mine, "b") == (2, rows(2))
    mine.write_current({"a": {}}, {"a": 6})
    assert held(mine, "a") == (6, {})


def test_write_is_retried_after_a_concurrent_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable, write_deltalake

    from stele.placements import derived_tables as module

    mine, other = module.Derived(TableStore(folder)), module.Derived(TableStore(folder))
    write: Callable[..., None] = write_deltalake
    came = list[int]()

    def late(*arguments: object, **more: object) -> None:
        if not came:
            came.append(1)
            path = str(folder / "placements")
            module.commit(DeltaTable(path), module._current({"a": rows(9)}), {"a": 9}, "overwrite")
        write(*arguments, **more)

    monkeypatch.setattr(module, "write_deltalake", late)
    mine.write_current({"a": rows(8, 1)}, {"a": 8})
    assert came
    other.write_past({"a": []}, {"a": 9})
    assert held(other, "a") == (9, rows(9))


def test_events_with_a_missing_or_duplicate_file_are_not_continued(folder: Path) -> None:
    from deltalake import write_deltalake

    from stele.placements.events_table import Events
    from stele.placements.tables import EVENTS, TableLost, open_table
    from tests.spark.histories import random_log
    from tests.spark.test_chain import arrow, rows_of

    log = random_log(1)
    rows = rows_of({}, arrow(log[:30]))
    write_deltalake(open_table(TableStore(folder), EVENTS), rows, mode="append")
    assert Events(TableStore(folder)).heads["c"].next_offset == 30
    write_deltalake(open_table(TableStore(folder), EVENTS), rows.slice(0, 1), mode="append")
    with pytest.raises(TableLost, match="each epoch of c once"):
        Events(TableStore(folder))
