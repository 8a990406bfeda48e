"""The main query: it turns records into rows of ``events``, and passes them on to the topic and
the tables.

It starts from the heads in the table ``events``.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from stele.domain.image import Image
from stele.log.flows import flow_topic
from stele.placements.cluster_states import ClusterStates, ReadAgain
from stele.placements.derive import Deriver
from stele.placements.derived_tables import Reached
from stele.placements.events import NewRows
from stele.placements.events_table import Events, merge
from stele.placements.flow_query import FlowQuery
from stele.placements.fold import FRESH
from stele.placements.progress import ProgressTable, Row, row_of
from stele.placements.reporting import Reporting
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.settings import PlacementsSettings
from stele.placements.topic import PLACEMENTS
from stele.placements.upkeep import Upkeep
from stele.placements.watch import TopicWatch, flow_pattern

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
        settings: PlacementsSettings,
        scratch: Path,
        on_cluster: Callable[[str], None] = lambda _: None,
        on_took: Callable[[str, float], None] = lambda *_: None,
        on_stop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._on_cluster = on_cluster
        self._on_took = on_took
        store, brokers = settings.store(), settings.brokers
        self._events = Events(store)
        cluster, fleet = settings.cluster, settings.clusters_pattern
        self._watch = TopicWatch(brokers, cluster, fleet)
        pattern = flow_pattern(cluster, fleet, "epochs")
        self._states = ClusterStates(self._watch, self._events, pattern, on_stop)
        interval_ms = settings.trigger_interval_ms
        self._query = FlowQuery(spark, settings, "epochs", scratch, interval_ms, self._write)
        self._reporting = (
            Reporting(spark, settings, store, scratch, on_took) if settings.movements else None
        )
        self._deriver = Deriver(
            brokers,
            store,
            self._events,
            self._states.stop,
            on_took,
            self._reporting.offer if self._reporting else lambda _: None,
            settings.placement_schema_ids,
        )
        self._progress = ProgressTable(store)
        self._upkeep = Upkeep(str(store))
        self._known: set[str] = set()
        self._delivered: set[str] = set()
        self._last_look_s = self._last_upkeep_s = self._last_snapshot_s = time.monotonic()

    @property
    def query(self) -> StreamingQuery | None:
        return self._query.query

    @property
    def stopped(self) -> dict[str, str]:
        return self._states.stopped

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
            for cluster, now in self._states.topics.items()
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
        self._states.begin(self._settings.catch_up_urls)
        self._create_topics(self._states.topics)
        self._deriver.start()
        if self._reporting is not None:
            self._reporting.start()
        # A cluster that has stopped is read from its end on.
        topics, stopped, heads = self._states.topics, self.stopped, self._events.heads
        return self._query.start(
            {
                cluster: now.offsets(
                    -1 if cluster in stopped else heads.get(cluster, FRESH).next_offset
                )
                for cluster, now in topics.items()
            }
        )

    def stop(self) -> None:
        """Stop the query between two batches, then the threads that follow it."""
        try:
            self._query.stop()
        finally:
            self._upkeep.stop()
            if self._reporting is not None:
                self._reporting.stop(STOP_S)
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
        self._query.check()
        if self._reporting is not None:
            self._reporting.check()
        now_s = time.monotonic()
        if now_s - self._last_look_s >= LOOK_S:
            self._last_look_s = now_s
            self._states.look()
            if self._reporting is not None:
                self._reporting.look()
            # Missing topics of stopped clusters are created again.
            self._known -= {*self.topics_stopped}
            self._create_topics(self.topics_stopped)
            self._on_took("look", time.monotonic() - now_s)
        if self._progress.is_due():
            self._progress.write(self._progress_rows())
        if self._states.waiting and now_s - self._last_snapshot_s >= SNAPSHOT_S:
            self._states.look_for_snapshots(self._settings.catch_up_urls)
            self._last_snapshot_s = time.monotonic()
        if now_s - self._last_upkeep_s >= UPKEEP_S:
            self._last_upkeep_s = now_s
            self._upkeep.start()

    def _progress_rows(self) -> dict[str, Row]:
        heads, published, reached = self._events.heads, self._deriver.published, self.reached
        rows = dict[str, Row]()
        for cluster, now in self._states.topics.items():
            head = heads.get(cluster, FRESH)
            epoch = reached[cluster].epoch if cluster in reached else None
            published_epoch = published.get(cluster)
            rows[cluster] = row_of(
                cluster, now.end, head.next_offset, head.epoch, published_epoch, epoch
            )
        return rows

    def _write(self, records: DataFrame) -> None:
        """Write one batch, without the rows that the table holds already, from any process."""
        began = time.perf_counter()
        self._deriver.check()
        new = self._judge(records)
        self._on_took("events", time.perf_counter() - began)
        for cluster, rows in new.items():
            if rows.stopped:
                if rows.hole and (cluster in self._delivered or self._states.is_behind(cluster)):
                    raise ReadAgain(f"Cluster {cluster}: {rows.stopped}")
                if rows.elsewhere:
                    self._last_snapshot_s = -SNAPSHOT_S
                self._states.stop(cluster, rows.stopped, waits=rows.elsewhere)
            if rows.snapshot is not None:
                raise ReadAgain(f"Cluster {cluster}: another process continued with a snapshot.")
        self._delivered |= set(new)
        self._create_topics(new)
        self._deriver.offer(new)
        self._on_took("batch", time.perf_counter() - began)

    def _judge(self, records: DataFrame) -> dict[str, NewRows]:
        """Judge a batch.

        If strays stop a cluster, look at its anchor and judge the batch once more.
        """
        new = self._events.append(records, frozenset(self.stopped), self._states.certain)
        heads = self._events.heads
        held_up = [
            c for c, rows in new.items() if rows.stray and heads[c].next_offset <= rows.stray.offset
        ]
        if held_up:
            self._states.look_at(held_up)
            merge(new, self._events.append(records, frozenset(self.stopped), self._states.certain))
        return new

    def _create_topics(self, clusters: Iterable[str]) -> None:
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
