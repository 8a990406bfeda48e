"""Real brokers: produce and consume, keep data, survive the loss of one of three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.runtime.kafka import Topic, ensure_topics
from stele_harness.stack.broker import BrokerCluster, BrokerFailed
from stele_harness.stack.redis import RedisServer

pytestmark = pytest.mark.broker


def produce(bootstrap: str, topic: str, value: bytes, timeout_s: float = 30) -> None:
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    )
    producer.produce(topic, value, on_delivery=delivered)
    producer.flush(timeout_s)
    assert errors == [None]


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        values: list[bytes] = []
        while len(values) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(values)} of {count} records in 30 s"
            if message.error() is None:
                value = message.value()
                assert value is not None
                values.append(value)
        return values
    finally:
        consumer.close()


def test_record_is_produced_and_consumed(kafka: str, topics: str) -> None:
    topic = flow_topic(topics, Topic.EPOCHS)
    produce(kafka, topic, b"one")
    assert consume(kafka, topic, 1) == [b"one"]


def test_data_survives_a_kill_and_new_ports(tmp_path: Path) -> None:
    topic = flow_topic("c", Topic.EPOCHS)
    first = BrokerCluster(tmp_path)
    try:
        first.start()
        first.wait_ready()
        ensure_topics(Brokers(first.bootstrap), "c")
        produce(first.bootstrap, topic, b"before")
    finally:
        first.brokers[0].kill()
    second = BrokerCluster(tmp_path)
    assert second.bootstrap != first.bootstrap
    try:
        second.start()
        second.wait_ready()
        ensure_topics(Brokers(second.bootstrap), "c")
        assert consume(second.bootstrap, topic, 1) == [b"before"]
    finally:
        second.stop()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    brokers = BrokerCluster(tmp_path_factory.mktemp("three"), count=3, heap_mb=384)
    try:
        brokers.start()
        brokers.wait_ready()
        yield brokers
    finally:
        brokers.stop()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_acks_all_succeeds_with_one_of_three_brokers_killed(
    three: BrokerCluster, cluster: str, victim: int
) -> None:
    ensure_topics(Brokers(three.bootstrap), cluster, three.replication_factor)
    topic = flow_topic(cluster, Topic.EPOCHS)
    produce(three.bootstrap, topic, b"before")
    three.brokers[victim].kill()
    produce(three.bootstrap, topic, b"after", timeout_s=60)
    assert consume(three.bootstrap, topic, 2) == [b"before", b"after"]
    three.brokers[victim].start()
    three.wait_ready()


def test_broker_that_cannot_start_raises_with_the_reason(tmp_path: Path) -> None:
    running = BrokerCluster(tmp_path / "a")
    broken = BrokerCluster(tmp_path / "b", heap_mb=1)  # no JVM starts a broker in one megabyte
    with pytest.raises(BrokerFailed, match=r"(?i)heap|memory|ended with"):
        broken.start()
        broken.wait_ready(60)
    broken.stop()
    assert not running.brokers[0].is_running()


def test_redis_starts_and_stops(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    server.wait_ready()
    server.stop()
    assert server._process is not None
    assert server._process.poll() is not None
