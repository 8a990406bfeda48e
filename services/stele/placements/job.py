"""The query: topics in, fold by cluster, tables and compacted topic out; restarts where it stopped."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from stele.placements import schema
from stele.placements.decode import decode
from stele.placements.processor import FoldProcessor
from stele.placements.tables import Tables
from stele.placements.topic import write_topic

QUERY_NAME: Final = "placements"
MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""The log's own limit of a record."""
METADATA_AGE_MS: Final = 5_000
"""A new cluster's topic is found by its pattern within this time."""
COMPACT_BATCHES: Final = 500
"""Each batch adds a small file to each table; some seconds of work join them."""


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the query reads and where it writes. ``pattern`` is a regular expression of clusters."""

    bootstrap: str
    cluster: str
    pattern: str = ""
    delta_dir: Path
    checkpoint_dir: Path
    trigger_ms: int = 500
    max_offsets: int = 5000


class Reached(msgspec.Struct, frozen=True):
    """What is materialized of a cluster: ``state_id`` is hex.

    ``version`` is that of the Delta table ``placements`` which holds exactly this epoch; None after a
    start, when the table may already hold a part of the next batch.
    """

    epoch: int
    state_id: str
    version: int | None = None


class Batch(msgspec.Struct, frozen=True):
    """What a batch brings a cluster: its last epoch, and whether any row of a placement changed."""

    epoch: int
    state_id: str
    changed: bool


class Job:
    """One query on one checkpoint. ``reached`` tells what stands in all tables and in the topic.

    ``on_cluster`` is called with each cluster before its first batch is written, ``on_batch`` with the
    seconds that each part of a batch took.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: JobOptions,
        on_cluster: Callable[[str], None] = lambda _: None,
        on_batch: Callable[[dict[str, float]], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.tables = Tables(options.delta_dir)
        self.reached: dict[str, Reached] = {}
        self._spark = spark
        self._on_cluster = on_cluster
        self._on_batch = on_batch
        self._known: set[str] = set()

    def start(self) -> StreamingQuery:
        """Make the tables and start, or go on from the checkpoint."""
        self.tables.create(self._spark)
        found = self.tables.reached(self._spark)
        self.reached = {cluster: Reached(*place) for cluster, place in found.items()}
        query: StreamingQuery = (
            fold(decode(self._source()))
            .writeStream.queryName(f"{QUERY_NAME}-{self.options.cluster}")
            .outputMode("append")
            .option("checkpointLocation", str(self.options.checkpoint_dir))
            .trigger(processingTime=f"{self.options.trigger_ms} milliseconds")
            .foreachBatch(self._write)
            .start()
        )
        return query

    def _source(self) -> DataFrame:
        options = self.options
        topics = (
            ("subscribePattern", rf"stele\.({options.pattern})\.epochs")
            if options.pattern
            else ("subscribe", f"stele.{options.cluster}.epochs")
        )
        return (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", options.bootstrap)
            .option(*topics)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", options.max_offsets)
            .option("kafka.max.partition.fetch.bytes", MAX_RECORD_BYTES)
            .option("kafka.metadata.max.age.ms", METADATA_AGE_MS)
            .load()
        )

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        """One batch to all outputs. Whatever was written before is not doubled."""
        began = time.perf_counter()
        changes: pa.Table = batch.toArrow()
        took_s = {"fold": time.perf_counter() - began}
        ends = ends_of(changes)
        new = {name: end for name, end in ends.items() if end.epoch > self._epoch_of(name)}
        if new:
            # Local rows: merging them takes half of what reading a cached frame takes.
            rows = batch.sparkSession.createDataFrame(changes, schema.CHANGES_OUT)
            self._write_rows(rows, batch_id, new, took_s)
            self._on_batch({**took_s, "total": time.perf_counter() - began})
        if batch_id % COMPACT_BATCHES == COMPACT_BATCHES - 1:
            self.tables.compact(self._spark)

    def _write_rows(
        self, rows: DataFrame, batch_id: int, new: dict[str, Batch], took_s: dict[str, float]
    ) -> None:
        """Rows and topic side by side, then ``epochs``, which says that they are complete."""
        clusters = sorted(new)
        self._meet(clusters)
        rows = rows.where(sql.col("cluster").isin(clusters))
        changed = [name for name in clusters if new[name].changed]
        writes = {"topic": lambda: write_topic(rows, self.options.bootstrap)}
        if changed:
            writes["history"] = lambda: self.tables.write_history(rows, changed)
            writes["current"] = lambda: self.tables.write_current(rows, changed)
        with ThreadPoolExecutor(len(writes)) as pool:
            running = {name: pool.submit(_timed, write) for name, write in writes.items()}
        took_s.update({name: future.result() for name, future in running.items()})
        query_id = batch_query_id(self.options.checkpoint_dir)
        took_s["epochs"] = _timed(lambda: self.tables.append_epochs(rows, query_id, batch_id))
        version = self.tables.version("placements")
        self.reached = {
            **self.reached,
            **{name: Reached(end.epoch, end.state_id, version) for name, end in new.items()},
        }

    def _meet(self, clusters: list[str]) -> None:
        for cluster in clusters:
            if cluster not in self._known:
                self._on_cluster(cluster)
                self._known.add(cluster)

    def _epoch_of(self, cluster: str) -> int:
        found = self.reached.get(cluster)
        return 0 if found is None else found.epoch


def fold(records: DataFrame) -> DataFrame:
    """The stateful operator over decoded records; the state's key is the cluster."""
    return records.groupBy("cluster").transformWithStateInPandas(
        statefulProcessor=FoldProcessor(),
        outputStructType=schema.CHANGES_OUT,
        outputMode="Append",
        timeMode="None",
    )


def batch_query_id(checkpoint: Path) -> str:
    """The query's id for as long as its checkpoint lives: a new one counts its batches from 0."""
    return str(msgspec.json.decode((checkpoint / "metadata").read_bytes())["id"])


def ends_of(changes: pa.Table) -> dict[str, Batch]:
    """How far each cluster comes with a batch whose rows are as ``schema.CHANGES_OUT``."""
    epochs: dict[str, tuple[int, str]] = {}
    changed: set[str] = set()
    columns = changes.select(["kind", "cluster", "epoch", "state_id"]).to_pydict()
    for kind, cluster, epoch, state_id in zip(*columns.values(), strict=True):
        if kind == "epoch":
            epochs[cluster] = max(epochs.get(cluster, (0, "")), (epoch, state_id))
        else:
            changed.add(cluster)
    return {name: Batch(*end, name in changed) for name, end in epochs.items()}


def _timed(write: Callable[[], None]) -> float:
    began = time.perf_counter()
    write()
    return time.perf_counter() - began
