"""The query: records in, rows of ``events`` out; what it wrote goes on to the topic and the tables.

It starts where the table ``events`` stands, so its own checkpoint is scratch and thrown away each time.
"""

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from stele.log.flows import flow_topic
from stele.placements.chain import FRESH
from stele.placements.derive import Deriver, Reached
from stele.placements.events import NewRows
from stele.placements.tables import Events, merge, upkeep
from stele.placements.watch import ANOTHER, TopicState, TopicWatch, epochs_pattern, flaw
from stele.runtime.logs import get_logger

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""The log's own limit of a record."""
METADATA_AGE_MS: Final = 5_000
"""A new cluster's topic is found by its pattern within this time."""
FETCH_WAIT_MS: Final = 20
"""A fetch that finds nothing waits so long, and whoever asks for offsets waits behind it."""
LOOK_S: Final = 5.0
"""How often the brokers are asked whether the topics still continue what was read."""
UPKEEP_S: Final = 600.0
"""Each batch adds a small file; a moment of work joins them."""
STOP_S: Final = 5.0
BATCH_S: Final = 15.0
"""The end waits so long for the batch that is being written; then it is interrupted."""

log = get_logger(__name__)


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the query reads and where it writes. ``pattern`` is a regular expression of clusters."""

    bootstrap: str
    cluster: str
    pattern: str = ""
    delta_dir: Path
    trigger_ms: int = 500
    max_offsets: int = 5000


class ReadAgain(Exception):
    """Records were not delivered that may still be there: a new query reads them from the head."""


class Job:
    """One query. ``reached`` tells what stands in all tables and in the topic; ``stopped`` which clusters
    do not go on, and why.

    ``on_cluster`` is called with a cluster that has no topic of placements, ``on_took`` with the seconds
    that a part took, ``on_stop`` with a cluster that does not go on.
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
        self.stopped: dict[str, str] = {}
        self.query: StreamingQuery | None = None
        self._spark = spark
        self._checkpoint = scratch / "checkpoint"
        self._on_cluster = on_cluster
        self._on_took = on_took
        self._on_stop = on_stop
        self._events = Events(options.delta_dir)
        self._deriver = Deriver(
            options.bootstrap, options.delta_dir, self._events, self._stop_cluster, on_took
        )
        self._watch = TopicWatch(options.bootstrap, options.cluster, options.pattern)
        self._topics: dict[str, TopicState] = {}
        self._known: set[str] = set()
        self._delivered: set[str] = set()
        self._certain: dict[str, int] = {}
        self._looked_s = self._kept_s = time.monotonic()
        self._writing = threading.Lock()
        self._ending = False

    @property
    def reached(self) -> dict[str, Reached]:
        return self._deriver.reached

    @property
    def strays(self) -> dict[str, int]:
        """Records of other logs that were skipped, by cluster."""
        return {cluster: head.strays for cluster, head in self._events.heads.items()}

    def start(self) -> StreamingQuery:
        """Start from the heads of table ``events``."""
        self._topics = self._watch.look()
        self._meet(self._topics)
        for cluster in sorted({*self._topics, *self._mine()}):
            self._check(cluster, self._topics.get(cluster), None)
        self._deriver.start()
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
        """Stop the query between two batches, and the threads behind it."""
        self._ending = True
        if self._writing.acquire(timeout=BATCH_S):
            self._writing.release()
        try:
            if self.query is not None:
                self.query.stop()
        finally:
            self._deriver.stop(STOP_S)
            self._watch.close()

    @property
    def progressed(self) -> bool:
        """Whether this query has written anything."""
        return bool(self._delivered)

    def tend(self) -> None:
        """To be called often: looks at the topics, keeps the tables small. Raises what ended the query."""
        self._deriver.check()
        if self.query is not None and not self.query.isActive:
            raise self.query.exception() or RuntimeError("the query ended by itself")
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        if now_s - self._kept_s >= UPKEEP_S:
            self._kept_s = now_s
            began = time.perf_counter()
            upkeep(self.options.delta_dir)
            self._on_took("upkeep", time.perf_counter() - began)

    def _look(self) -> None:
        """The query reads on meanwhile: only what is wrong by the heads of before and after is wrong."""
        earlier, before = self._events.heads, self._topics
        self._topics = self._watch.look()
        heads = self._events.heads
        for cluster in sorted({*before, *self._mine()} - set(self.stopped)):
            topics = self._topics.get(cluster), before.get(cluster)
            why = flaw(heads.get(cluster, FRESH), *topics)
            if why and flaw(earlier.get(cluster, FRESH), *topics):
                self._stop_cluster(cluster, why)

    def _mine(self) -> list[str]:
        """The clusters in the tables that this job reads."""
        pattern = re.compile(epochs_pattern(self.options.cluster, self.options.pattern))
        return [c for c in self._events.heads if pattern.fullmatch(flow_topic(c, "epochs"))]

    def _check(self, cluster: str, now: TopicState | None, before: TopicState | None) -> None:
        """Does the topic go on from the head, and is the last winner still where it was read?"""
        head = self._events.heads.get(cluster, FRESH)
        why = flaw(head, now, before)
        if not why and now is not None and not self._watch.continues(cluster, head, now):
            why = ANOTHER
        if why:
            self._stop_cluster(cluster, why)
        elif now is not None:
            self._certain[cluster] = now.end

    def _stop_cluster(self, cluster: str, why: str) -> None:
        if cluster not in self.stopped:
            log.error("a cluster is not materialized any further", cluster=cluster, why=why)
            self.stopped = {**self.stopped, cluster: f"Cluster {cluster}: {why}"}
            self._on_stop(cluster)

    def _source(self) -> DataFrame:
        options = self.options
        source = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", options.bootstrap)
            .option("subscribePattern", epochs_pattern(options.cluster, options.pattern))
            .option("startingOffsets", self._starting_offsets())
            .option("failOnDataLoss", "false")  # one cluster's loss stops that cluster; see _write
            .option("maxOffsetsPerTrigger", options.max_offsets)
            .option("kafka.max.partition.fetch.bytes", MAX_RECORD_BYTES)
            .option("kafka.metadata.max.age.ms", METADATA_AGE_MS)
            .option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
            .load()
        )
        cluster = sql.regexp_extract("topic", r"^stele\.(.+)\.epochs$", 1)
        return source.select(cluster.alias("cluster"), "offset", "value")

    def _starting_offsets(self) -> str:
        """The heads; the end for a cluster that does not go on."""
        if not self._topics:
            return "earliest"
        heads = self._events.heads
        offsets = {
            flow_topic(cluster, "epochs"): {
                "0": -1 if cluster in self.stopped else heads.get(cluster, FRESH).next_offset
            }
            for cluster in self._topics
        }
        return msgspec.json.encode(offsets).decode()

    def _on_batch(self, batch: DataFrame, _batch_id: int) -> None:
        """A batch that comes when the end was asked is left to the next query, which reads it again."""
        with self._writing:
            if not self._ending:
                self._write(batch)

    def _write(self, batch: DataFrame) -> None:
        """One batch; what the table holds already is not written again, whoever wrote it."""
        began = time.perf_counter()
        self._deriver.check()
        records = batch.coalesce(self._spark.sparkContext.defaultParallelism)
        new = self._judged(records)
        self._on_took("events", time.perf_counter() - began)
        for cluster, rows in new.items():
            if rows.stopped:
                if rows.hole and cluster in self._delivered:
                    raise ReadAgain(f"Cluster {cluster}: {rows.stopped}")
                self._stop_cluster(cluster, rows.stopped)
        self._delivered |= set(new)
        self._meet(new)
        self._deriver.offer(new)
        self._on_took("batch", time.perf_counter() - began)

    def _judged(self, records: DataFrame) -> dict[str, NewRows]:
        """Strays hold a cluster up until its anchor was looked at; then the batch is judged once more."""
        new = self._events.append(records, frozenset(self.stopped), self._certain)
        heads = self._events.heads
        held_up = [
            c for c, rows in new.items() if rows.stray and heads[c].next_offset <= rows.stray.offset
        ]
        if held_up:
            topics = self._watch.look()
            for cluster in held_up:
                self._check(cluster, topics.get(cluster), self._topics.get(cluster))
            merge(new, self._events.append(records, frozenset(self.stopped), self._certain))
        return new

    def _meet(self, clusters: Iterable[str]) -> None:
        """Topics are made for clusters that do not have the one that is written."""
        for cluster in sorted(set(clusters) - self._known):
            if flow_topic(cluster, "placements") not in self._watch.names:
                self._on_cluster(cluster)
            self._known.add(cluster)
