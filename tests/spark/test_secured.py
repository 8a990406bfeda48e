"""The query on a topic whose brokers need TLS and a password, and enforce ACLs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.placements.settings import PlacementsSettings
from stele.runtime.kafka import ensure_topics
from stele.runtime.settings import load_settings
from tests.docs.acls_page import acls_of_kind
from tests.secured import USERS, WAIT_S, Secured
from tests.spark.histories import random_log
from tests.spark.test_job import make_job, reached, run_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.parametrize("by", ["password", "certificate"])
def test_job_with_tls_works_and_spark_shows_no_secret(
    secured: Secured,
    cluster: str,
    spark: SparkSession,
    folder: Path,
    by: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secured.allow(acls_of_kind("placements", cluster))
    ways = {"password": secured.by_password("placements"), "certificate": secured.by_certificate()}
    ensure_topics(Brokers(secured.plaintext), cluster)
    log = random_log(1, 10)
    producer = Producer({"bootstrap.servers": secured.plaintext})
    for value in log:
        producer.produce(flow_topic(cluster, "epochs"), value, partition=0)
    producer.flush(WAIT_S)
    options = load_settings(
        PlacementsSettings, {**ways[by], "STELE_CLUSTER": cluster, "STELE_DELTA_DIR": str(folder)}
    )
    job = make_job(spark, options, folder)
    run_until(job, reached(job, **{cluster: log}), "the log in the tables")
    assert not job.topics_stopped
    assert job.query is not None
    print(job.query.lastProgress, job.query.recentProgress)
    job.query.explain(True)
    shown = "".join(capfd.readouterr())
    key = Path(ways["certificate"]["STELE_KAFKA_SSL_KEY_FILE"]).read_text().splitlines()[1]
    assert not any(secret in shown for secret in (*USERS.values(), key)), shown
