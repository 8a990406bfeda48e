"""The streaming query of stream reports, which writes the table ``reports``.

A thread then writes ``movements``. It continues from its own table's heads, as the query in ``job``
does from those of ``events``, and waits for no other part. A report of a session that is not in the
log yet gets its reason once the table ``streams`` has it.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.placements import reports
from stele.placements.cluster_states import ReadAgain
from stele.placements.reports_table import Movements, Reports, Session
from stele.placements.store import TableStore
from stele.placements.watch import TopicState, TopicWatch, flow_pattern

FLOW: Final = "reports"
TRIGGER_MS: Final = 2_000
"""Reports of a stream are half a second apart, so a batch contains several of each."""
WRITE_S: Final = 5.0
"""Maximum age of the table of movements while data moves. Each write replaces rows."""
LOOK_S: Final = 0.2


class Reporting:
    """Runs the second query. ``error`` is set when the thread has failed.

    ``unreadable`` counts, by cluster, records that were no reports.
    """

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        cluster: str,
        pattern: str,
        store: TableStore,
        scratch: Path,
        kafka: Mapping[str, object],
        on_took: Callable[[str, float], None],
    ) -> None:
        self.query: StreamingQuery | None = None
        self.error: Exception | None = None
        self._spark = spark
        self._cluster, self._pattern = cluster, pattern
        self._checkpoint = scratch / "reports"
        self._kafka = kafka
        self._on_took = on_took
        self._reports = Reports(store)
        self._movements = Movements(store)
        self._watch = TopicWatch(brokers, cluster, pattern, FLOW)
        self._topics: Mapping[str, TopicState] = {}
        self._lock = threading.Condition()
        self._touched: set[Session] = set()
        self._stopping = False
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._guarded, name="movements", daemon=True)

    @property
    def unreadable(self) -> dict[str, int]:
        return {cluster: head.unreadable for cluster, head in self._reports.heads.items()}

    def start(self) -> None:
        """Start from the heads. A topic that was created again is read from its beginning."""
        self._topics = self._watch.look()
        for cluster, head in self._reports.heads.items():
            now = self._topics.get(cluster)
            if now is not None and (now.topic_id != head.topic_id or now.end < head.next_offset):
                self._reports.begin_again(cluster)
        self._thread.start()
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self.query = (
            self._source()
            .writeStream.option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{TRIGGER_MS} milliseconds")
            .foreachBatch(self._on_batch)
            .start()
        )

    def offer(self, sessions: set[Session]) -> None:
        """Queue sessions with new rows in one of the two tables."""
        with self._lock:
            self._touched |= sessions
            self._lock.notify_all()

    def look(self) -> None:
        """Raise ReadAgain for a topic that was created again, and the errors of the brokers."""
        before, self._topics = self._topics, self._watch.look()
        for cluster, now in self._topics.items():
            if cluster in before and before[cluster].topic_id != now.topic_id:
                raise ReadAgain(f"Cluster {cluster}: its topic of reports was recreated.")

    def check(self) -> None:
        """Raise the error that ended the query or the thread."""
        if self.error is not None:
            raise self.error
        if self.query is not None and not self.query.isActive:
            raise self.query.exception() or RuntimeError("the query of reports ended by itself")

    def stop(self, batch_s: float, thread_s: float) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._writing.acquire(timeout=batch_s):
            self._writing.release()
        try:
            if self.query is not None:
                self.query.stop()
        finally:
            if self._thread.ident is not None:
                self._thread.join(thread_s)
            self._watch.close()

    def _source(self) -> DataFrame:
        source = (
            self._spark.readStream.format("kafka")
            .options(**self._kafka)
            .option("subscribePattern", flow_pattern(self._cluster, self._pattern, FLOW))
            .option("startingOffsets", self._starting_offsets())
            .load()
            .filter("partition = 0")
        )
        cluster = sql.regexp_extract("topic", rf"^stele\.(.+)\.{FLOW}$", 1)
        return source.select(cluster.alias("cluster"), "offset", "value")

    def _starting_offsets(self) -> str:
        if not self._topics:
            return "earliest"
        heads = self._reports.heads
        offsets = {
            flow_topic(cluster, FLOW): now.offsets(heads.get(cluster, reports.FRESH).next_offset)
            for cluster, now in self._topics.items()
        }
        return msgspec.json.encode(offsets).decode()

    def _on_batch(self, batch: DataFrame, _batch_id: int) -> None:
        """Write a batch.

        A batch after the stop request is left to the next query, which reads it again.
        """
        with self._writing:
            if self._stopping:
                return
            began_s = time.perf_counter()
            records = batch.coalesce(self._spark.sparkContext.defaultParallelism)
            decoded = records.mapInArrow(reports.decode, reports.SPARK_SCHEMA).toArrow()
            topic_ids = {cluster: now.topic_id for cluster, now in self._topics.items()}
            if any(c not in topic_ids for c in decoded["cluster"].unique().to_pylist()):
                topic_ids = {c: now.topic_id for c, now in self._watch.look().items()}
            self.offer(self._reports.append(decoded.cast(reports.DECODED), topic_ids))
            self._on_took("reports", time.perf_counter() - began_s)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # the thread that runs the queries must see it
            self.error = error

    def _run(self) -> None:
        self.offer(self._movements.behind())
        written_s = time.monotonic() - WRITE_S
        while True:
            with self._lock:
                while not self._stopping and not (
                    self._touched and time.monotonic() - written_s >= WRITE_S
                ):
                    self._lock.wait(LOOK_S)
                if self._stopping:
                    return
                sessions, self._touched = self._touched, set()
            began_s = time.perf_counter()
            self._movements.write(sessions)
            written_s = time.monotonic()
            self._on_took("movements", time.perf_counter() - began_s)
