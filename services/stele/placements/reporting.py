"""The streaming query of stream reports, which writes the table ``reports``.

A thread then writes ``movements``. It continues from its own table's heads, as the query in ``job``
does from those of ``events``, and waits for no other part. A report of a session that is not in the
log yet gets its reason once the table ``streams`` has it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from stele.placements import reports
from stele.placements.cluster_states import ReadAgain
from stele.placements.flow_query import FlowQuery
from stele.placements.reports_table import Movements, Reports, Session
from stele.placements.settings import PlacementsSettings
from stele.placements.store import TableStore
from stele.placements.watch import TopicState, TopicWatch

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
        settings: PlacementsSettings,
        store: TableStore,
        scratch: Path,
        on_took: Callable[[str, float], None],
    ) -> None:
        self.error: Exception | None = None
        self._on_took = on_took
        self._reports = Reports(store)
        self._movements = Movements(store)
        self._query = FlowQuery(spark, settings, FLOW, scratch, TRIGGER_MS, self._write)
        self._watch = TopicWatch(
            settings.brokers, settings.cluster, settings.clusters_pattern, FLOW
        )
        self._topics: Mapping[str, TopicState] = {}
        self._lock = threading.Condition()
        self._touched: set[Session] = set()
        self._stopping = False
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
        heads = self._reports.heads
        self._query.start(
            {
                cluster: now.offsets(heads.get(cluster, reports.FRESH).next_offset)
                for cluster, now in self._topics.items()
            }
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
        self._query.check()

    def stop(self, thread_s: float) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        try:
            self._query.stop()
        finally:
            if self._thread.ident is not None:
                self._thread.join(thread_s)
            self._watch.close()

    def _write(self, records: DataFrame) -> None:
        began_s = time.perf_counter()
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
