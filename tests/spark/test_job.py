"""The query on a real topic: what it writes equals the image, whatever it lives through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stele.runtime.kafka import ensure_topics
from tests.polling import wait_until
from tests.spark.checks import assert_materialized, read_topic
from tests.spark.conftest import Append
from tests.spark.histories import images, random_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from stele.placements.job import Job, JobOptions

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]
BATCH_S = 120.0  # the first one on a busy machine; later ones take a few seconds


def make_options(kafka: str, cluster: str, folder: Path, pattern: str = "") -> JobOptions:
    from stele.placements.job import JobOptions

    return JobOptions(
        bootstrap=kafka,
        cluster=cluster,
        pattern=pattern,
        delta_dir=folder / "delta",
        checkpoint_dir=folder / "checkpoint",
        trigger_ms=100,
    )


def run_until(job: Job, want: dict[str, int], then: Callable[[], None] = lambda: None) -> None:
    """Run the query until each cluster has reached its epoch; raises what stops it before."""
    query = job.start()
    then()

    def arrived() -> bool:
        if not query.isActive:
            raise query.exception()  # type: ignore[misc]
        return all(c in job.reached and job.reached[c].epoch >= e for c, e in want.items())

    try:
        wait_until(arrived, f"epochs {want}; reached: {job.reached}", BATCH_S)
    finally:
        query.stop()


def wait_for_failure(query: StreamingQuery) -> str:
    wait_until(lambda: not query.isActive, "the query to fail", BATCH_S)
    return str(query.exception())


def last_epoch(log: tuple[bytes, ...]) -> int:
    return images(log)[-1].epoch


def test_tables_and_topic_equal_the_image_over_a_restart_and_a_lost_checkpoint(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    from stele.placements.job import Job

    log = random_log(1)
    half = len(log) // 2
    append(topics, log[:half])
    options = make_options(kafka, topics, folder)
    run_until(Job(spark, options), {topics: last_epoch(log[:half])})
    assert_materialized(kafka, options.delta_dir, topics, log[:half])

    append(topics, log[half:])
    run_until(Job(spark, options), {topics: last_epoch(log)})
    assert_materialized(kafka, options.delta_dir, topics, log)

    options.checkpoint_dir.rename(folder / "lost")
    told = len(read_topic(kafka, topics))
    job = Job(spark, options)
    query = job.start()
    wait_until(lambda: query.lastProgress is not None, "the whole log folded again", BATCH_S)
    query.stop()
    assert len(read_topic(kafka, topics)) == told
    assert_materialized(kafka, options.delta_dir, topics, log)


class Crash(Exception):
    """Stands for a kill at this point."""


def test_a_batch_that_died_after_each_of_its_writes_in_turn_is_written_once(
    spark: SparkSession,
    kafka: str,
    topics: str,
    append: Append,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stele.placements import job as module

    log = random_log(2)
    append(topics, log)
    options = make_options(kafka, topics, folder)
    for written in ("history", "current", "topic", "epochs"):
        job = module.Job(spark, options)
        _die_after(written, job, module, monkeypatch)
        assert f"after {written}" in wait_for_failure(job.start())
        monkeypatch.undo()
    run_until(module.Job(spark, options), {topics: last_epoch(log)})
    assert_materialized(kafka, options.delta_dir, topics, log)


def _die_after(written: str, job: Job, module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = {
        "history": (job.tables, "write_history"),
        "current": (job.tables, "write_current"),
        "topic": (module, "write_topic"),
        "epochs": (job.tables, "append_epochs"),
    }[written]
    write = getattr(owner, name)

    def write_and_die(rows: DataFrame, *more: object) -> None:
        write(rows, *more)
        raise Crash(f"after {written}")

    monkeypatch.setattr(owner, name, write_and_die)


def test_a_fleet_is_folded_by_one_query_and_a_new_cluster_is_found(
    spark: SparkSession, kafka: str, cluster: str, append: Append, folder: Path
) -> None:
    from stele.placements.job import Job

    logs = {f"{cluster}-a": random_log(1), f"{cluster}-b": random_log(3)}
    first, second = logs
    options = make_options(kafka, cluster, folder, pattern=f"{cluster}-.*")
    met: list[str] = []

    def second_comes() -> None:
        ensure_topics(kafka, second)
        append(second, logs[second])

    ensure_topics(kafka, first)
    append(first, logs[first])
    job = Job(spark, options, on_cluster=met.append)
    run_until(job, {name: last_epoch(log) for name, log in logs.items()}, second_comes)
    assert sorted(met) == sorted(logs)
    for name, log in logs.items():
        assert_materialized(kafka, options.delta_dir, name, log)


def test_a_record_of_an_unknown_schema_stops_the_query_and_is_never_skipped(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    from stele.placements.failures import failure_of
    from stele.placements.job import Job

    log = random_log(1)[:10]
    append(topics, log)
    options = make_options(kafka, topics, folder)
    run_until(Job(spark, options), {topics: last_epoch(log)})
    append(topics, [b"\xc3\x01" + bytes(30)])
    failure = failure_of(wait_for_failure(Job(spark, options).start()))
    assert failure.final
    assert f"At offset 10 of stele.{topics}.epochs" in failure.reason
    assert "no schema of Epoch has fingerprint C3010000" in failure.reason
    assert_materialized(kafka, options.delta_dir, topics, log)
