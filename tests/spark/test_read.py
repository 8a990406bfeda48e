"""Delta tables read without Spark are what Spark reads, at every version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ROW = "kind string, cluster string, placement string, start long, end long, reads array<string>, "
ROW += "writes array<string>, from_epoch long, gone boolean"


def test_reading_equals_spark_at_every_version_over_checkpoints_and_compaction(
    spark: SparkSession, folder: Path
) -> None:
    from stele.placements.read import read_table
    from stele.placements.tables import Tables

    tables = Tables(folder)
    tables.create(spark)
    table = tables.path("placements")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for epoch in range(1, 5):
        rows = [
            ("current", "a b", "dc1:3", start, start + 1, ["n1"], ["n1"], epoch, epoch == start)
            for start in range(epoch + 1)
        ]
        tables.write_current(spark.createDataFrame([*rows], ROW), ["a b"])
    tables.compact(spark)
    newest = tables.version("placements")
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))
    for version in range(2, newest + 1):
        frame = spark.read.format("delta").option("versionAsOf", version).load(str(table))
        expected = sorted((row.asDict() for row in frame.collect()), key=str)
        assert sorted(read_table(table, "a b", version), key=str) == expected
    assert read_table(table, "other") == []


def test_a_folder_without_a_table_says_so(folder: Path) -> None:
    from stele.placements.read import TableMissing, read_table

    with pytest.raises(TableMissing, match="no Delta table at"):
        read_table(folder, "a")
