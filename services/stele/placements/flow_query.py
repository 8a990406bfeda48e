"""A streaming query over one flow of all clusters of a job, from given offsets on.

Tables store how far their flow was read, so the query's own checkpoint is scratch. It is deleted at
each start.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from stele.log.flows import flow_topic
from stele.placements.settings import PlacementsSettings
from stele.placements.watch import flow_pattern

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""The log's limit of a record."""
METADATA_AGE_MS: Final = 5_000
"""Time within which a new cluster's topic is found by its pattern."""
FETCH_WAIT_MS: Final = 1
"""Wait of a fetch that finds no record, in milliseconds.

Spark asks for a partition's offsets after a fetch on the same connection, for each cluster of a
batch. No fetch is made for a cluster without new records.
"""
BATCH_S: Final = 15.0
"""Limit of waiting for the batch that is being written; then it is interrupted."""


class FlowQuery:
    """One query. ``write`` receives batches of (cluster, offset, value)."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PlacementsSettings,
        flow: str,
        scratch: Path,
        trigger_ms: int,
        write: Callable[[DataFrame], None],
    ) -> None:
        self.query: StreamingQuery | None = None
        self._spark = spark
        self._settings = settings
        self._flow = flow
        self._checkpoint = scratch / flow
        self._trigger_ms = trigger_ms
        self._write = write
        self._writing = threading.Lock()
        self._stopping = False

    def start(self, offsets: Mapping[str, Mapping[str, int]]) -> StreamingQuery:
        """Start from the offsets of each cluster's partitions; without any, from the beginning."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        starting = {flow_topic(cluster, self._flow): at for cluster, at in offsets.items()}
        settings, pattern = self._settings, rf"^stele\.(.+)\.{self._flow}$"
        source = (
            self._spark.readStream.format("kafka")
            .options(**{f"kafka.{name}": text for name, text in settings.brokers.java().items()})
            # One cluster's loss stops that cluster alone: the job looks at the topics itself.
            .option("failOnDataLoss", "false")
            .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
            .option("kafka.max.partition.fetch.bytes", MAX_RECORD_BYTES)
            .option("kafka.metadata.max.age.ms", METADATA_AGE_MS)
            .option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
            .option(
                "subscribePattern",
                flow_pattern(settings.cluster, settings.clusters_pattern, self._flow),
            )
            .option(
                "startingOffsets",
                msgspec.json.encode(starting).decode() if starting else "earliest",
            )
            .load()
            .filter("partition = 0")
        )
        cluster = sql.regexp_extract("topic", pattern, 1).alias("cluster")
        self.query = (
            source.select(cluster, "offset", "value")
            .writeStream.option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .foreachBatch(self._on_batch)
            .start()
        )
        return self.query

    def check(self) -> None:
        """Raise the error that ended the query."""
        if self.query is not None and not self.query.isActive:
            raise self.query.exception() or RuntimeError(
                f"the query of {self._flow} ended by itself"
            )

    def stop(self) -> None:
        """Stop the query between two batches."""
        self._stopping = True
        if self._writing.acquire(timeout=BATCH_S):
            self._writing.release()
        if self.query is not None:
            self.query.stop()

    def _on_batch(self, batch: DataFrame, _batch_id: int) -> None:
        """Write a batch.

        A batch after the stop request is left to the next query, which reads it again.
        """
        with self._writing:
            if not self._stopping:
                self._write(batch.coalesce(self._spark.sparkContext.defaultParallelism))
