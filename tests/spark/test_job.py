"""The query on a real topic: its tables equal the image despite any failure."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from prometheus_client import generate_latest

from stele.domain.image import Image
from stele.log.brokers import Brokers
from stele.placements.queries import run
from stele.placements.store import Row, TableStore
from stele.placements.summaries import SUMMARIES, Summary
from stele.runtime.kafka import ensure_topics
from stele.runtime.metrics import REGISTRY
from stele_harness.tables import read_table
from tests.polling import wait_until
from tests.spark.checks import assert_materialized, differences
from tests.spark.conftest import Append
from tests.spark.histories import images, poison, random_log, unknown
from tests.spark.reported import held, moved, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stele.placements.job import Job
    from stele.placements.settings import PlacementsSettings

pytestmark = [pytest.mark.spark, pytest.mark.broker]
BATCH_S = 200.0  # for the first batch on a busy machine. Later ones take a second or two


LOOK_S = 0.5
"""Interval at which a job under test checks the work beside its query."""
MOVED: WeakKeyDictionary[Job, threading.Event] = WeakKeyDictionary()
"""Set when a job has completed a part of its work, so that tests need not poll."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll the brokers and write summaries often, so that tests need not wait."""
    from stele.placements import derive, flow_query, job

    monkeypatch.setattr(derive, "SUMMARY_S", 0.5)
    monkeypatch.setattr(job, "LOOK_S", 0.5)
    monkeypatch.setattr(flow_query, "METADATA_AGE_MS", 500)


def make_options(
    kafka: str,
    cluster: str,
    folder: Path,
    pattern: str = "",
    max_offsets: int = 5000,
    movements: bool = False,
) -> PlacementsSettings:
    from stele.placements.settings import PlacementsSettings

    return PlacementsSettings(
        kafka_bootstrap=kafka,
        cluster=cluster,
        clusters_pattern=pattern,
        delta_dir=TableStore(folder / "delta"),
        trigger_interval_ms=100,
        max_offsets_per_trigger=max_offsets,
        movements=movements,
    )


def make_job(
    spark: SparkSession, options: PlacementsSettings, folder: Path, name: str = "scratch"
) -> Job:
    from stele.placements.job import Job

    moved = threading.Event()
    job = Job(
        spark,
        options,
        folder / name,
        lambda cluster: ensure_topics(options.brokers, cluster),
        on_took=lambda *_: moved.set(),
        on_stop=lambda _: moved.set(),
    )
    MOVED[job] = moved
    return job


def run_until(job: Job, done: Callable[[], object], what: str) -> None:
    """Run the query until the condition holds. Raises the error that stops it before."""
    job.start()
    try:
        wait_for(job, done, what)
    finally:
        job.stop()


def wait_for(job: Job, done: Callable[[], object], what: str) -> None:
    moved, end_s = MOVED[job], time.monotonic() + BATCH_S
    while True:
        moved.clear()
        job.tend()
        if done():
            return
        assert time.monotonic() < end_s, (
            f"no {what}; reached: {job.reached}, stopped: {job.stopped}"
        )
        moved.wait(LOOK_S)


def reached(job: Job, **want: tuple[bytes, ...]) -> Callable[[], bool]:
    """Return whether each cluster's log is materialized."""
    return lambda: all(
        cluster in job.reached and job.reached[cluster].epoch == images(log)[-1].epoch
        for cluster, log in want.items()
    )


def run_to_end(
    spark: SparkSession, options: PlacementsSettings, folder: Path, log: tuple[bytes, ...]
) -> None:
    job = make_job(spark, options, folder)
    is_reached, delta = reached(job, **{options.cluster: log}), folder / "delta"
    # Each read of the tables takes a tenth of a second.
    run_until(
        job,
        lambda: is_reached() and not differences(delta, options.cluster, log),
        "tables equal to a replay of the log",
    )


def test_lost_checkpoint_and_other_batches_write_no_duplicates(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log = random_log(1)
    half = len(log) // 2
    append(topics, log[:half])
    run_to_end(spark, make_options(kafka, topics, folder, max_offsets=half - 3), folder, log[:half])
    assert_materialized(kafka, folder / "delta", topics, log[:half])

    append(topics, log[half:])
    job = make_job(spark, make_options(kafka, topics, folder), folder, "other-scratch")
    start = job._query.start
    job._query.start = lambda offsets: start({})  # type: ignore[method-assign]  # all comes again
    run_until(job, reached(job, **{topics: log}), "the end of the log")
    assert_materialized(kafka, folder / "delta", topics, log)


def test_lost_tables_are_rebuilt_completely(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log, delta = random_log(3)[:70], folder / "delta"
    options = make_options(kafka, topics, folder)
    reached_before = 0
    for end, lost in (
        (40, None),
        (50, delta / "events"),
        (60, delta / "placements_past"),
        (70, delta),
    ):
        if lost is not None:
            shutil.rmtree(lost)
        append(topics, log[reached_before:end])
        run_to_end(spark, options, folder, log[:end])
        assert_materialized(kafka, delta, topics, log[:end])
        reached_before = end


def test_query_ends_if_a_table_is_deleted_while_it_runs(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log = random_log(1)
    append(topics, log[:20])
    job = make_job(spark, make_options(kafka, topics, folder), folder)
    job.start()
    try:
        wait_for(job, reached(job, **{topics: log[:20]}), "the first records")
        shutil.rmtree(folder / "delta" / "events")
        append(topics, log[20:])
        with pytest.raises(Exception, match="no Delta table at"):
            wait_for(job, lambda: False, "the query to end")
    finally:
        job.stop()
    run_to_end(spark, make_options(kafka, topics, folder), folder, log)
    assert_materialized(kafka, folder / "delta", topics, log)


def test_two_concurrent_jobs_write_every_row_once(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log = random_log(2)
    options = make_options(kafka, topics, folder, max_offsets=40)
    jobs = [make_job(spark, options, folder, f"scratch-{number}") for number in range(2)]
    try:
        for job in jobs:
            job.start()
        append(topics, log)
        for job in jobs:
            wait_for(job, reached(job, **{topics: log}), "the end of the log")
    finally:
        for job in jobs:
            job.stop()
    assert_materialized(kafka, folder / "delta", topics, log)


def test_stopped_job_completes_its_current_batch(
    spark: SparkSession,
    kafka: str,
    topics: str,
    append: Append,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stele.placements.events_table import Events
    from stele.placements.tables import NumberedTable

    log = random_log(1)
    append(topics, log)
    job = make_job(spark, make_options(kafka, topics, folder), folder)
    write, within = NumberedTable._write, threading.Event()

    def slow(self: NumberedTable, rows: pa.Table) -> None:
        within.set()
        time.sleep(1.0)  # the stop arrives meanwhile
        write(self, rows)

    monkeypatch.setattr(NumberedTable, "_write", slow)
    query = job.start()
    assert within.wait(BATCH_S)
    job.stop()
    assert (query.isActive, query.exception()) == (False, None)
    assert Events(TableStore(folder / "delta")).heads[topics].next_offset == len(log)


def test_corrupt_winner_stops_only_its_cluster_and_a_corrupt_loser_none(
    spark: SparkSession, kafka: str, cluster: str, append: Append, folder: Path
) -> None:
    log = random_log(1)[:60]
    tip = images(log[:30])[-1]
    bad = {
        f"{cluster}-corrupt": poison(tip, log[0]),
        f"{cluster}-unknown": unknown(tip),
    }
    good = f"{cluster}-good"
    for name in (*bad, good):
        ensure_topics(Brokers(kafka), name)
        append(name, log[:30])
    for name, value in bad.items():
        append(name, [value, *log[30:]])
    loser = poison(images(log[:5])[-1], log[0])
    healthy = (*log[:30], loser, *log[30:])
    append(good, [loser, *log[30:]])
    job = make_job(spark, make_options(kafka, cluster, folder, pattern=f"{cluster}-.*"), folder)
    at_tip = dict.fromkeys(bad, log[:30])
    done = reached(job, **{good: healthy, **at_tip})
    run_until(job, lambda: done() and len(job.stopped) == 2, "the good log's end, and two stops")
    assert set(job.stopped) == set(bad)
    assert "At offset 30" in job.stopped[f"{cluster}-corrupt"]
    assert "no schema has fingerprint" in job.stopped[f"{cluster}-unknown"]
    assert "Upgrade" in job.stopped[f"{cluster}-unknown"]
    assert_materialized(kafka, folder / "delta", good, healthy)
    left = len(log) + 1 - 30
    assert {name: (job.lags[name].records, job.lags[name].epochs) for name in (*bad, good)} == {
        **dict.fromkeys(bad, (left, 0)),
        good: (0, 0),
    }
    for name in bad:
        assert_materialized(kafka, folder / "delta", name, log[:30])


def test_failing_summaries_quarantine_only_their_cluster(
    spark: SparkSession,
    kafka: str,
    cluster: str,
    append: Append,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stele.placements import derive, derived_tables, metrics, summaries

    log, delta = random_log(1), folder / "delta"
    good, bad = f"{cluster}-good", f"{cluster}-bad"
    for name in (good, bad):
        ensure_topics(Brokers(kafka), name)
        append(name, log[:40])
    mended, make = threading.Event(), summaries.rows_of

    def of_a_faulty_build(summary: Summary, name: str, image: Image) -> list[Row]:
        if name == bad and not mended.is_set() and summary is SUMMARIES["requests"]:
            raise OverflowError("a date of the year 10000")
        return make(summary, name, image)

    monkeypatch.setattr(derived_tables, "rows_of", of_a_faulty_build)
    monkeypatch.setattr(derive, "SUMMARY_S", 0.1)
    monkeypatch.setattr(derive, "TRY_AGAIN_S", 0.5)
    job = make_job(spark, make_options(kafka, cluster, folder, pattern=f"{cluster}-.*"), folder)
    monkeypatch.setattr(metrics.CLUSTERS, "job", job)
    query = job.start()
    try:
        wait_for(job, lambda: summarized(delta, good) == images(log[:40])[-1].epoch, "the good one")
        wait_for(job, lambda: job.summaries_stopped, "the quarantine")
        append(good, log[40:])
        append(bad, log[40:])
        wait_for(job, reached(job, **{good: log, bad: log}), "the end of both")
        wait_for(job, lambda: summarized(delta, good) == images(log)[-1].epoch, "the good one")
        assert {*job.summaries_stopped} == {bad}
        why = job.summaries_stopped[bad]
        assert f"Cluster {bad}" in why
        assert "the year 10000" in why
        assert "upgrade this process" in why
        assert in_metrics(bad) == "1.0"
        assert in_metrics(good) == "0.0"
        assert summarized(delta, bad) == 0
        (row,) = run(str(delta), "SELECT cluster, error_kind, error_text FROM stopped").to_pylist()
        assert (row["cluster"], row["error_kind"]) == (bad, "OverflowError")
        assert "the year 10000" in row["error_text"]
        mended.set()
        wait_for(job, lambda: not job.summaries_stopped, "the end of the quarantine")
        assert summarized(delta, bad) == images(log)[-1].epoch
        assert in_metrics(bad) == "0.0"
        assert query.isActive
    finally:
        job.stop()
    assert job.stopped == {}
    for name in (good, bad):
        assert_materialized(kafka, delta, name, log)
        assert len(read_table(delta, "requests", name)) > 0


def test_failing_placements_topic_blocks_no_table_and_no_other_cluster(
    spark: SparkSession,
    kafka: str,
    cluster: str,
    append: Append,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stele.placements import topic as publishing

    monkeypatch.setattr(publishing, "TRY_AGAIN_S", 0.5)
    log, delta = random_log(1), folder / "delta"
    good, bad = f"{cluster}-good", f"{cluster}-bad"
    for name in (good, bad):
        ensure_topics(Brokers(kafka), name)
        append(name, log[:40])
    most_bytes(kafka, bad, 100)  # smaller than a row; the end of a transaction needs 78
    job = make_job(spark, make_options(kafka, cluster, folder, pattern=f"{cluster}-.*"), folder)
    query = job.start()
    try:
        wait_for(job, reached(job, **{good: log[:40], bad: log[:40]}), "the tables of both")
        wait_for(job, lambda: job.topics_stopped, "the quarantine")
        assert set(job.topics_stopped) == {bad}
        assert f"Cluster {bad}" in job.topics_stopped[bad]
        (row,) = run(str(delta), "SELECT cluster, error_kind FROM stopped").to_pylist()
        assert (row["cluster"], row["error_kind"]) == (bad, "KafkaException")
        admin, gone = AdminClient({"bootstrap.servers": kafka}), f"stele.{good}.placements"
        admin.delete_topics([gone])[gone].result(20)
        for name in (good, bad):
            append(name, log[40:])
        most_bytes(kafka, bad, 1_000_000)
        wait_for(job, reached(job, **{good: log, bad: log}), "the tables of both")
        last = images(log)[-1].epoch
        both = {good: last, bad: last}
        wait_for(
            job, lambda: not job.topics_stopped and job._deriver.published == both, "the topics"
        )
        assert query.isActive
    finally:
        job.stop()
    assert job.stopped == {}
    for name in (good, bad):
        assert_materialized(kafka, delta, name, log)


def most_bytes(kafka: str, cluster: str, size: int) -> None:
    """Set the largest record that the placements topic of a cluster accepts."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(
        ResourceType.TOPIC, f"stele.{cluster}.placements", incremental_configs=[entry]
    )
    admin = AdminClient({"bootstrap.servers": kafka})
    for changed in admin.incremental_alter_configs([topic]).values():
        changed.result(20)


def summarized(delta: Path, cluster: str) -> int:
    """Return the epoch of the summary tables, or 0 without any."""
    found = TableStore(delta).table("clusters").to_pyarrow_table().to_pylist()
    return next((int(row["as_of_epoch"]) for row in found if row["cluster"] == cluster), 0)


def in_metrics(cluster: str) -> str:
    text = generate_latest(REGISTRY).decode()
    (found,) = re.findall(
        rf'^stele_placements_summaries_stopped{{cluster="{cluster}"}} (.+)$', text, re.MULTILINE
    )
    return str(found)


def test_deleted_truncated_or_recreated_topic_stops_only_its_cluster(
    spark: SparkSession, kafka: str, cluster: str, append: Append, folder: Path
) -> None:
    log = random_log(1)[:60]
    names = [f"{cluster}-{what}" for what in ("gone", "cut", "anew", "good")]
    for name in names:
        ensure_topics(Brokers(kafka), name)
        append(name, log[:30])
    options = make_options(kafka, cluster, folder, pattern=f"{cluster}-.*")
    job = make_job(spark, options, folder)
    run_until(job, reached(job, **dict.fromkeys(names, log[:30])), "four clusters")
    admin = AdminClient({"bootstrap.servers": kafka})
    gone, cut, anew = (f"stele.{name}.epochs" for name in names[:3])
    for deleted in admin.delete_topics([gone, anew]).values():
        deleted.result(20)
    wait_until(lambda: anew not in admin.list_topics(timeout=240).topics, "the deletion")
    ensure_topics(Brokers(kafka), names[2])
    append(names[2], random_log(2)[:40])
    append(names[1], log[30:])
    admin.delete_records([TopicPartition(cut, 0, 35)])[TopicPartition(cut, 0, 35)].result(20)
    append(names[3], log[30:])
    job = make_job(spark, options, folder)
    run_until(job, reached(job, **{names[3]: log}), "the good cluster's end")
    assert set(job.stopped) == set(names[:3])
    assert "topic is gone" in job.stopped[names[0]]
    assert "records 30 to 34 left its topic unread" in job.stopped[names[1]]
    assert "recreated" in job.stopped[names[2]]
    for name in names[:3]:
        assert_materialized(kafka, folder / "delta", name, log[:30])
    assert_materialized(kafka, folder / "delta", names[3], log)


def test_running_query_detects_a_deleted_topic_and_a_new_cluster(
    spark: SparkSession, kafka: str, cluster: str, append: Append, folder: Path
) -> None:
    log = random_log(1)[:40]
    first, second = f"{cluster}-a", f"{cluster}-b"
    ensure_topics(Brokers(kafka), first)
    append(first, log)
    job = make_job(spark, make_options(kafka, cluster, folder, pattern=f"{cluster}-.*"), folder)
    job.start()
    try:
        wait_for(job, reached(job, **{first: log}), "the first cluster")
        admin = AdminClient({"bootstrap.servers": kafka})
        name = f"stele.{first}.epochs"
        admin.delete_topics([name])[name].result(20)
        wait_for(job, lambda: first in job.stopped, "the deletion to be noticed")
        ensure_topics(Brokers(kafka), second)
        append(second, log)
        wait_for(job, reached(job, **{second: log}), "the second cluster")
    finally:
        job.stop()
    assert_materialized(kafka, folder / "delta", first, log)
    assert_materialized(kafka, folder / "delta", second, log)


def test_movements_are_exact_over_restarts_and_concurrent_jobs(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log, delta = random_log(2), folder / "delta"
    reports, cut = told(log, 2), 60
    options = make_options(kafka, topics, folder, max_offsets=40, movements=True)
    append(topics, reports[:cut], "reports")  # before their epochs
    append(topics, log[: len(log) // 2])
    first = make_job(spark, options, folder)
    run_until(first, lambda: moved_by(delta, log, reports[:cut]), "what moved at first")
    jobs = [make_job(spark, options, folder, f"scratch-{number}") for number in range(2)]
    try:
        for job in jobs:
            job.start()
        append(topics, reports[cut:], "reports")
        append(topics, log[len(log) // 2 :])
        for job in jobs:
            wait_for(job, reached(job, **{topics: log}), "the end of the log")
            wait_for(job, lambda: moved_by(delta, log, reports), "all that moved")
    finally:
        for job in jobs:
            job.stop()
    assert_materialized(kafka, delta, topics, log)
    for lost in ("movements", "reports"):
        shutil.rmtree(delta / lost)
    again = make_job(spark, options, folder)
    run_until(again, lambda: moved_by(delta, log, reports), "all that moved, again")


def moved_by(delta: Path, log: tuple[bytes, ...], reports: tuple[bytes, ...]) -> bool:
    """Return whether the table has the movements of the reports for sessions in the log."""
    (cluster,) = {row["cluster"] for row in read_table_all(delta, "events")} or {""}
    known = {row["session"] for row in read_table(delta, "streams", cluster)}
    expected = {key: size for key, size in moved(log, reports).items() if key[0] in known}
    return bool(expected) and held(read_table(delta, "movements", cluster)) == expected


def read_table_all(delta: Path, name: str) -> list[Row]:
    rows: list[Row] = TableStore(delta).table(name).to_pyarrow_dataset().to_table().to_pylist()
    return rows


def test_recreated_or_widened_reports_topic_does_not_stop_the_job(
    spark: SparkSession, kafka: str, cluster: str, append: Append, folder: Path
) -> None:
    log = random_log(1)
    reports, delta = told(log, 1), folder / "delta"
    names = [f"{cluster}-{what}" for what in ("anew", "wide")]
    for name in names:
        ensure_topics(Brokers(kafka), name)
        append(name, log)
        append(name, reports[:60], "reports")
    admin = AdminClient({"bootstrap.servers": kafka})
    wide = [NewPartitions(f"stele.{names[1]}.{flow}", 3) for flow in ("epochs", "reports")]
    for widened in admin.create_partitions(wide).values():
        widened.result(20)
    options = make_options(kafka, cluster, folder, pattern=f"{cluster}-.*", movements=True)

    def moved_by_all(upto: int) -> bool:
        return all(
            held(read_table(delta, "movements", name)) == moved(log, reports[:upto])
            for name in names
        )

    job = make_job(spark, options, folder)
    run_until(job, lambda: moved_by_all(60), "what moved at first")
    anew = f"stele.{names[0]}.reports"
    admin.delete_topics([anew])[anew].result(20)
    wait_until(lambda: anew not in admin.list_topics(timeout=240).topics, "the deletion")
    ensure_topics(Brokers(kafka), names[0])
    for name in names:
        append(name, reports[60:], "reports")
    job = make_job(spark, options, folder)
    run_until(job, lambda: moved_by_all(len(reports)), "the rest of both")
    assert job.stopped == {}
    for name in names:
        assert_materialized(kafka, delta, name, log)
