"""A recreated cluster: tables and topic forget the old one, and nothing of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from stele.log.brokers import Brokers
from stele.placements.events_table import Events
from stele.placements.forget import forget, main
from stele.placements.reports_table import Reports
from stele.placements.store import TableStore
from stele.placements.tables import SCHEMAS, TableLost
from stele.runtime.kafka import ensure_topics
from stele_harness.tables import read_table
from tests.polling import wait_until
from tests.spark.checks import assert_materialized
from tests.spark.conftest import Append
from tests.spark.filled import fill
from tests.spark.histories import random_log
from tests.spark.reported import decoded, told
from tests.spark.test_job import make_job, make_options, reached, run_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def of(folder: Path, cluster: str) -> dict[str, list[str]]:
    return {name: sorted(map(str, read_table(folder, name, cluster))) for name in SCHEMAS}


def test_forget_deletes_only_the_rows_of_one_cluster(tmp_path: Path) -> None:
    for seed, cluster in enumerate(("one", "two")):
        fill(tmp_path, cluster, seed)
    other = of(tmp_path, "two")
    for _ in range(2):  # an interrupted call is repeated
        forget(TableStore(tmp_path), "one")
        assert not any(of(tmp_path, "one").values())
        assert of(tmp_path, "two") == other
    fill(tmp_path, "one", 3)
    assert of(tmp_path, "two") == other
    (tmp_path / "anew").mkdir()
    for seed, cluster in ((1, "two"), (3, "one")):
        fill(tmp_path / "anew", cluster, seed)
    told_at = "looked_at"
    for name in SCHEMAS:
        found, expected = (read_table(at, name, "one") for at in (tmp_path, tmp_path / "anew"))
        for row in [*found, *expected]:
            for changing in (told_at, "commit_number"):
                row.pop(changing, None)
        assert sorted(map(str, found)) == sorted(map(str, expected)), name


def test_running_job_detects_that_a_cluster_was_forgotten(
    tmp_path: Path,
) -> None:
    fill(tmp_path, "one")
    fill(tmp_path, "two", 2)
    store = TableStore(tmp_path)
    events, reports = Events(store), Reports(store)
    forget(store, "one")
    with pytest.raises(TableLost, match="nothing of one any more"):
        events.refresh()
    log = random_log(2)
    more = decoded(told(log, 2, says_sources=True), cluster="two")
    assert {name for name, _ in reports.append(more, {"two": "of the topic"})} <= {"two"}
    assert set(Events(store).heads) == set(Reports(store).heads) == {"two"}


@pytest.mark.spark
@pytest.mark.broker
def test_refounded_cluster_is_materialized_after_forget(
    spark: SparkSession,
    kafka: str,
    cluster: str,
    append: Append,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new, good = random_log(1), random_log(2)[:60], f"{cluster}-good"
    anew = f"{cluster}-anew"
    for name in (anew, good):
        ensure_topics(Brokers(kafka), name)
        append(name, old)
    options = make_options(kafka, cluster, folder, pattern=f"{cluster}-.*")
    job = make_job(spark, options, folder)
    run_until(job, reached(job, **{anew: old, good: old}), "both clusters")
    admin, topic = AdminClient({"bootstrap.servers": kafka}), f"stele.{anew}.epochs"
    admin.delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in admin.list_topics(timeout=240).topics, "the deletion")
    ensure_topics(Brokers(kafka), anew)
    append(anew, new)
    job = make_job(spark, options, folder)
    run_until(job, lambda: anew in job.stopped, "the stop")
    assert "python -m stele.placements.forget" in job.stopped[anew]

    monkeypatch.setenv("STELE_KAFKA_BOOTSTRAP", kafka)
    monkeypatch.setenv("STELE_DELTA_DIR", str(options.delta_dir))
    assert main([anew]) == 0
    assert f"hold nothing of {anew}" in capsys.readouterr().out
    job = make_job(spark, options, folder)
    run_until(job, reached(job, **{anew: new, good: old}), "both clusters")
    assert job.stopped == {}
    for name, log in ((anew, new), (good, old)):
        assert_materialized(kafka, folder / "delta", name, log)


@pytest.mark.parametrize("name", ["", "a'b", "a.b", "../a", "a b", "ä", "a" * 65])
def test_invalid_cluster_name_is_a_usage_error(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name]) == 64
    assert "Usage" in capsys.readouterr().err
