"""Founding, and detection of a lost or recreated log, with the real process on a real broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.metadata_log.founding import GUARD_KEY
from stele.runtime.kafka import ensure_topics
from stele.session_guard.check import guard_key
from tests.deployment.metadata_log import DEADLINE_S, MetadataLog, Start, instances
from tests.polling import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def start(kafka: str, cluster: str, tmp_path: Path) -> Iterator[Start]:
    with instances(tmp_path, kafka, cluster) as started:
        yield started


def reason_of(service: MetadataLog) -> str:
    answer = service.http.get("/healthz")
    return "" if answer.status_code == 200 else str(answer.json()["reason"])


def append(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(DEADLINE_S) == 0


def test_empty_topic_is_not_a_cluster_before_founding(start: Start) -> None:
    service = start(STELE_FOUND="no")
    wait_until(lambda: "stele found" in reason_of(service), "health to say what to do", DEADLINE_S)
    early = service.command("early", type="set_setting", name="a", value="1")
    assert (early.status_code, early.json()["code"]) == (412, "not_founded")
    assert service.http.get("/v1/state", params={"level": "linearizable"}).status_code == 503
    assert service.get("/v1/state")["epoch"] == 0
    founded = service.command("found-1", type="found").json()
    assert (founded["applied"], founded["epoch"]) == (True, 1)
    fact = service.get("/v1/epochs/1")["facts"][0]
    state = service.wait_healthy().get("/v1/state")
    assert (
        fact["log_id"]
        == state["log_id"]
        == founded["log_id"]
        == service.get("/v1/position")["log_id"]
    )
    assert fact["topic_id"]
    assert service.set("a", "1", "early")["applied"]
    again = service.command("found-2", type="found").json()
    assert (again["applied"], again["log_id"]) == (True, founded["log_id"])
    assert service.get("/v1/state")["cluster_id"] == state["cluster_id"]


def test_founding_is_refused_if_the_orders_topic_has_records(
    start: Start, kafka: str, cluster: str
) -> None:
    ensure_topics(Brokers(kafka), cluster)
    append(kafka, flow_topic(cluster, "orders"), b"an order of the old cluster")
    service = start(STELE_FOUND="auto")
    wait_until(lambda: "has held records" in reason_of(service), "health to say why", DEADLINE_S)
    answer = service.command("f", type="found")
    assert (answer.status_code, answer.json()["code"]) == (412, "older_cluster")
    assert service.get("/v1/state")["epoch"] == 0


def test_founding_is_refused_if_redis_has_an_older_cluster(
    start: Start, redis_url: str, cluster: str
) -> None:
    from redis import Redis

    assert GUARD_KEY.format(cluster=cluster) == guard_key(cluster)
    Redis.from_url(redis_url).hset(guard_key(cluster), "cluster_id", f"{cluster}/old")
    service = start(STELE_FOUND="auto", STELE_REDIS_URL=redis_url)
    wait_until(lambda: f"{cluster}/old" in reason_of(service), "health to say why", DEADLINE_S)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_process_acknowledges_nothing_after_a_quickly_recreated_topic(
    start: Start, kafka: str, cluster: str, is_stopped: bool
) -> None:
    """The new topic has the offset that is read next, and was created faster than any detected pause."""
    service, topic = start().wait_healthy(), flow_topic(cluster, "epochs")
    service.wait_known()
    admin, others = (
        AdminClient({"bootstrap.servers": kafka}),
        Producer({"bootstrap.servers": kafka}),
    )
    others.list_topics(topic, timeout=DEADLINE_S)
    epoch = service.set("a", "1")["epoch"]
    pid = service.service.process.pid
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        admin.delete_topics([topic])[topic].result(DEADLINE_S)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
        others.produce_batch(topic, [{"value": b"another"}] * epoch, partition=0)
        assert others.flush(DEADLINE_S) == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    answer = service.command("LOST", type="set_setting", name="important", value="yes")
    assert answer.status_code == 503, answer.text
    # The topic id shows it, or a record at the offset of a winner. Running processes
    # may read while the topic is missing.
    why = "is missing" if is_stopped else ""
    wait_until(lambda: reason_of(service) and why in reason_of(service), "health to say why")
    assert service.get("/v1/state")["epoch"] == epoch


def test_health_reports_a_deleted_topic(start: Start, kafka: str, cluster: str) -> None:
    service = start(STELE_FOUND="auto").wait_healthy()
    service.set("a", "1")
    topic = flow_topic(cluster, "epochs")
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    wait_until(lambda: reason_of(service), "health to turn", DEADLINE_S)
    assert service.get("/v1/state")["settings"]["a"] == "1"
