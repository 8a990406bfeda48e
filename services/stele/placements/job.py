"""The main query: it turns records into rows of ``events``, and passes them on to the topic and
the tables.

It starts from the heads in the table ``events``. Its own checkpoint is scratch, and is deleted each
time.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from stele.domain.image import Image
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.placements.cluster_states import ClusterStates, ReadAgain
from stele.placements.derive import Deriver
from stele.placements.derived_tables import Reached
from stele.placements.events import NewRows
from stele.placements.events_table import Events, merge
from stele.placements.fold import FRESH
from stele.placements.progress import ProgressTable, Row, row_of
from stele.placements.reporting import Reporting
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.store import TableStore
from stele.placements.topic import PLACEMENTS
from stele.placements.upkeep import Upkeep
from stele.placements.watch import TopicWatch, flow_pattern

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""The log's limit of a record."""
METADATA_AGE_MS: Final = 5_000
"""Time within which a new cluster's topic is found by its pattern."""
FETCH_WAIT_MS: Final = 1
"""Wait of a fetch that finds no record, in milliseconds.

Spark asks for a partition's offsets after a fetch on the same connection, for each cluster of a
batch. No fetch is made for a cluster without new records.
"""
LOOK_S: Final = 5.0
"""Interval for checking that the topics still continue what was read."""
MAKERS: Final = 8
"""Clusters whose topics are created at the same time."""
PUBLISHED: Final = (PLACEMENTS.flow, SCHEMA_TOPIC.flow)
"""Topics that the job writes for each cluster."""
UPKEEP_S: Final = 600.0
"""Interval of the upkeep: each batch adds a small file, and the upkeep joins them quickly."""
SNAPSHOT_S: Final = 30.0
"""Interval between requests for a snapshot, for clusters that wait for one."""
STOP_S: Final = 5.0
BATCH_S: Final = 15.0
"""Limit of waiting for the batch that is being written; then it is interrupted."""


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Input and output of the query. ``pattern`` is a regular expression of clusters."""

    brokers: Brokers
    cluster: str
    pattern: str = ""
    delta_dir: str
    """A path, or the address of an object store."""
    catch_up_urls: tuple[str, ...] = ()
    """``{cluster}`` in them is replaced by the cluster's name."""
    trigger_ms: int = 200
    max_offsets: int = 5000
    schema_ids: str = ""
    """Schema ids of a registry, for the topic placements. Empty: single-object encoding."""
    movements: bool = True
    """True if reports are read too, in a second query."""


class Lag(msgspec.Struct, frozen=True):
    """Records of the topic that were not judged yet, and epochs of ``events`` that the tables
    lack.
    """

    records: int
    epochs: int


class Job:
    """One query.

    ``reached`` is what all tables and the topic hold; ``stopped`` is why clusters do not continue.

    ``on_cluster`` is called with a cluster that lacks a topic of ``PUBLISHED``, and ``on_stop`` with
    one that has stopped. ``on_took`` is called with the seconds that a part took.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: JobOptions,
        scratch: Path,
        on_cluster: Callable[[str], None] = lambda _: None,
        on_took: Callable[[str, float], None] = lambda *_: None,
        on_stop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.query: StreamingQuery | None = None
        self._spark = spark
        self._checkpoint = scratch / "checkpoint"
        self._on_cluster = on_cluster
        self._scratch = scratch
        self._on_took = on_took
        self._store = TableStore(options.delta_dir)
        self._events = Events(self._store)
        self._watch = TopicWatch(options.brokers, options.cluster, options.pattern)
        pattern = flow_pattern(options.cluster, options.pattern, "epochs")
        self._standing = ClusterStates(self._watch, self._events, pattern, on_stop)
        self._reporting = self._make_reporting() if options.movements else None
        self._deriver = Deriver(
            options.brokers,
            self._store,
            self._events,
            self._standing.stop,
            on_took,
            self._reporting.offer if self._reporting else lambda _: None,
            options.schema_ids,
        )
        self._progress = ProgressTable(self._store)
        self._upkeep = Upkeep(options.delta_dir)
        self._known: set[str] = set()
        self._delivered: set[str] = set()
        self._looked_s = self._kept_s = self._asked_s = time.monotonic()
        self._writing = threading.Lock()
        self._ending = False

    @property
    def stopped(self) -> dict[str, str]:
        return self._standing.stopped

    @property
    def summaries_stopped(self) -> dict[str, str]:
        """Clusters whose summary tables are not updated, and why."""
        return self._deriver.summaries_stopped

    @property
    def topics_stopped(self) -> dict[str, str]:
        """Clusters whose topic of placements or of the schema cannot be written, and why."""
        return self._deriver.topics_stopped

    @property
    def reached(self) -> dict[str, Reached]:
        return self._deriver.reached

    def images(self) -> dict[str, Image]:
        """Return the newest image of each cluster whose tables exist."""
        return self._deriver.images()

    @property
    def lags(self) -> dict[str, Lag]:
        """How far clusters are behind their topics, and their tables behind the table events."""
        heads, reached = self._events.heads, self.reached
        return {
            cluster: Lag(
                max(0, now.end - heads.get(cluster, FRESH).next_offset),
                heads.get(cluster, FRESH).epoch
                - (reached[cluster].epoch if cluster in reached else 0),
            )
            for cluster, now in self._standing.topics.items()
        }

    @property
    def unreadable(self) -> dict[str, int]:
        """Records of the topic of reports that could not be read, by cluster."""
        return self._reporting.unreadable if self._reporting else {}

    @property
    def strays(self) -> dict[str, int]:
        """Records of other logs that were skipped, by cluster."""
        return {cluster: head.strays for cluster, head in self._events.heads.items()}

    def start(self) -> StreamingQuery:
        """Start from the heads of the table ``events``."""
        self._standing.begin(self.options.catch_up_urls)
        self._meet(self._standing.topics)
        self._deriver.start()
        if self._reporting is not None:
            self._reporting.start()
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self.query = (
            self._source()
            .writeStream.option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{self.options.trigger_ms} milliseconds")
            .foreachBatch(self._on_batch)
            .start()
        )
        return self.query

    def stop(self) -> None:
        """Stop the query between two batches, then the threads that follow it."""
        self._ending = True
        if self._writing.acquire(timeout=BATCH_S):
            self._writing.release()
        try:
            if self.query is not None:
                self.query.stop()
        finally:
            self._upkeep.stop()
            if self._reporting is not None:
                self._reporting.stop(BATCH_S, STOP_S)
            self._deriver.stop(STOP_S)
            self._watch.close()

    @property
    def progressed(self) -> bool:
        """True once this query has written rows."""
        return bool(self._delivered)

    def tend(self) -> None:
        """Check the topics and keep the tables compact.

        Call it often. Raises the error that ended the query.
        """
        self._deriver.check()
        if self.query is not None and not self.query.isActive:
            raise self.query.exception() or RuntimeError("the query ended by itself")
        if self._reporting is not None:
            self._reporting.check()
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._standing.look()
            if self._reporting is not None:
                self._reporting.look()
            self._meet_again(self.topics_stopped)
            self._on_took("look", time.monotonic() - now_s)
        if self._progress.is_due():
            self._progress.write(self._how_far())
        if self._standing.waiting and now_s - self._asked_s >= SNAPSHOT_S:
            self._standing.look_for_snapshots(self.options.catch_up_urls)
            self._asked_s = time.monotonic()
        if now_s - self._kept_s >= UPKEEP_S:
            self._kept_s = now_s
            self._upkeep.start()

    def _how_far(self) -> dict[str, Row]:
        heads, published, reached = self._events.heads, self._deriver.published, self.reached
        return {
            cluster: row_of(
                cluster,
                now.end,
                (head := heads.get(cluster, FRESH)).next_offset,
                head.epoch,
                published.get(cluster),
                reached[cluster].epoch if cluster in reached else None,
            )
            for cluster, now in self._standing.topics.items()
        }

    def _kafka(self) -> dict[str, object]:
        """Return the options of a Spark source."""
        return {
            **{f"kafka.{name}": text for name, text in self.options.brokers.java().items()},
            "failOnDataLoss": "false",  # one cluster's loss stops that cluster; see _write
            "maxOffsetsPerTrigger": self.options.max_offsets,
            "kafka.max.partition.fetch.bytes": MAX_RECORD_BYTES,
            "kafka.metadata.max.age.ms": METADATA_AGE_MS,
            "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        }

    def _make_reporting(self) -> Reporting:
        options = self.options
        return Reporting(
            self._spark,
            options.brokers,
            options.cluster,
            options.pattern,
            self._store,
            self._scratch,
            self._kafka(),
            self._on_took,
        )

    def _source(self) -> DataFrame:
        options = self.options
        source = (
            self._spark.readStream.format("kafka")
            .options(**self._kafka())
            .option("subscribePattern", flow_pattern(options.cluster, options.pattern, "epochs"))
            .option("startingOffsets", self._starting_offsets())
            .load()
            .filter("partition = 0")
        )
        cluster = sql.regexp_extract("topic", r"^stele\.(.+)\.epochs$", 1)
        return source.select(cluster.alias("cluster"), "offset", "value")

    def _starting_offsets(self) -> str:
        """Return the offsets of the heads, or the end for a cluster that has stopped."""
        topics, stopped = self._standing.topics, self.stopped
        if not topics:
            return "earliest"
        heads = self._events.heads
        offsets = {
            flow_topic(cluster, "epochs"): now.offsets(
                -1 if cluster in stopped else heads.get(cluster, FRESH).next_offset
            )
            for cluster, now in topics.items()
        }
        return msgspec.json.encode(offsets).decode()

    def _on_batch(self, batch: DataFrame, _batch_id: int) -> None:
        """Write a batch.

        A batch after the stop request is left to the next query, which reads it again.
        """
        with self._writing:
            if not self._ending:
                self._write(batch)

    def _write(self, batch: DataFrame) -> None:
        """Write one batch, without the rows that the table holds already, from any process."""
        began = time.perf_counter()
        self._deriver.check()
        records = batch.coalesce(self._spark.sparkContext.defaultParallelism)
        new = self._judged(records)
        self._on_took("events", time.perf_counter() - began)
        for cluster, rows in new.items():
            if rows.stopped:
                if rows.hole and (cluster in self._delivered or self._standing.is_behind(cluster)):
                    raise ReadAgain(f"Cluster {cluster}: {rows.stopped}")
                if rows.elsewhere:
                    self._asked_s = -SNAPSHOT_S
                self._standing.stop(cluster, rows.stopped, waits=rows.elsewhere)
            if rows.snapshot is not None:
                raise ReadAgain(f"Cluster {cluster}: another process continued with a snapshot.")
        self._delivered |= set(new)
        self._meet(new)
        self._deriver.offer(new)
        self._on_took("batch", time.perf_counter() - began)

    def _judged(self, records: DataFrame) -> dict[str, NewRows]:
        """Judge a batch.

        If strays stop a cluster, look at its anchor and judge the batch once more.
        """
        new = self._events.append(records, frozenset(self.stopped), self._standing.certain)
        heads = self._events.heads
        held_up = [
            c for c, rows in new.items() if rows.stray and heads[c].next_offset <= rows.stray.offset
        ]
        if held_up:
            self._standing.look_at(held_up)
            merge(
                new, self._events.append(records, frozenset(self.stopped), self._standing.certain)
            )
        return new

    def _meet_again(self, clusters: Iterable[str]) -> None:
        """Create the missing topics of these clusters again."""
        self._known -= set(clusters)
        self._meet(clusters)

    def _meet(self, clusters: Iterable[str]) -> None:
        """Create the topics of placements and of the schema for clusters that lack one."""
        unknown = sorted(set(clusters) - self._known)
        lacking = [
            cluster
            for cluster in unknown
            if not {flow_topic(cluster, flow) for flow in PUBLISHED} <= self._watch.names
        ]
        if lacking:
            with ThreadPoolExecutor(MAKERS, "topics") as pool:
                list(pool.map(self._on_cluster, lacking))
        self._known.update(unknown)
