"""The Delta tables: made once, and written a batch at a time so that a batch may come twice.

The merges are keyed by epoch, so a second time changes nothing; the append carries the batch's
transaction id. ``epochs`` is written last: what stands there is in the other tables too.
"""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from stele.placements.schema import TABLES

_HISTORY: Final = """
    MERGE INTO delta.`{path}` t USING {source} s
    ON t.cluster IN ({clusters}) AND t.cluster = s.cluster AND t.placement = s.placement
       AND t.`start` = s.`start` AND t.from_epoch = s.from_epoch
    WHEN MATCHED THEN UPDATE SET to_epoch = s.to_epoch
    WHEN NOT MATCHED THEN INSERT *
"""
_CURRENT: Final = """
    MERGE INTO delta.`{path}` t USING {source} s
    ON t.cluster IN ({clusters}) AND t.cluster = s.cluster AND t.placement = s.placement
       AND t.`start` = s.`start`
    WHEN MATCHED AND s.gone THEN DELETE
    WHEN MATCHED THEN UPDATE SET
        `end` = s.`end`, reads = s.reads, writes = s.writes, epoch = s.epoch
    WHEN NOT MATCHED AND NOT s.gone THEN INSERT
        (cluster, placement, `start`, `end`, reads, writes, epoch)
        VALUES (s.cluster, s.placement, s.`start`, s.`end`, s.reads, s.writes, s.epoch)
"""


class Tables:
    """The three tables in one folder, through one session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, table: str) -> Path:
        return self.folder / table

    def create(self, spark: SparkSession) -> None:
        """Make the tables that are missing."""
        for name, columns in TABLES.items():
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS delta.`{self.path(name)}` ({columns}) "
                "USING delta PARTITIONED BY (cluster)"
            )

    def version(self, table: str) -> int:
        """The table's newest version, from the names in its log."""
        commits = (self.path(table) / "_delta_log").glob("*.json")
        return max(int(path.stem) for path in commits if path.stem.isdigit())

    def compact(self, spark: SparkSession) -> None:
        """Join the small files of many batches, and remove those that are a week out of use."""
        for name in TABLES:
            spark.sql(f"OPTIMIZE delta.`{self.path(name)}`")
            spark.sql(f"VACUUM delta.`{self.path(name)}`")

    def reached(self, spark: SparkSession) -> dict[str, tuple[int, str]]:
        """The last epoch and its state id (hex) of each cluster in the tables."""
        found = (
            spark.read.format("delta")
            .load(str(self.path("epochs")))
            .groupBy("cluster")
            .agg(sql.max("epoch"), sql.max_by("state_id", "epoch"))
            .collect()
        )
        return {row[0]: (row[1], row[2]) for row in found}

    def write_history(self, rows: DataFrame, clusters: list[str]) -> None:
        """Open new rows and close old ones."""
        found = rows.where("kind = 'history'").select(
            "cluster", "placement", "start", "end", "reads", "writes", "from_epoch", "to_epoch"
        )
        self._merge(_HISTORY, "placements_history", found, clusters)

    def write_current(self, rows: DataFrame, clusters: list[str]) -> None:
        """Bring the current rows to the end of the batch."""
        found = rows.where("kind = 'current'").select(
            "cluster",
            "placement",
            "start",
            "end",
            "reads",
            "writes",
            sql.col("from_epoch").alias("epoch"),
            "gone",
        )
        self._merge(_CURRENT, "placements", found, clusters)

    def append_epochs(self, rows: DataFrame, query: str, batch: int) -> None:
        found = rows.where("kind = 'epoch'").select(
            "cluster",
            "epoch",
            "state_id",
            "request_id",
            "command",
            "actor",
            "reason",
            "origin",
            sql.timestamp_millis("at_ms").alias("at"),
            "offset",
        )
        (
            found.coalesce(1)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", query)
            .option("txnVersion", batch)
            .save(str(self.path("epochs")))
        )

    def _merge(self, statement: str, table: str, found: DataFrame, clusters: list[str]) -> None:
        spark = found.sparkSession
        source = f"stele_{table}"
        found.createOrReplaceTempView(source)
        names = ", ".join(f"'{cluster}'" for cluster in clusters)
        spark.sql(statement.format(path=self.path(table), source=source, clusters=names))
