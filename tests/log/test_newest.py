"""The newest record of a key is found from the topic's end backwards."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stele.log import ends
from stele.log.brokers import Brokers
from stele.log.ends import newest_of
from stele.log.flows import flow_topic
from stele_harness.stack.ports import LOOPBACK, free_port
from tests.polling import wait_until


def anything(_: bytes) -> bool:
    return True


def where(key: str, partitions: int) -> int:
    return ends.partition_of(key.encode(), partitions)


def placed(kafka: str, topic: str, key: str) -> int:
    """Return the partition where the broker puts a record of this key."""
    producer, found = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"}), []
    producer.produce(topic, b"x", key, on_delivery=lambda _, each: found.append(each.partition()))
    assert producer.flush(10) == 0
    (partition,) = found
    return int(partition or 0)


def sent(kafka: str, topic: str, key: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})
    for value in values:
        producer.produce(topic, value.encode(), key)
    assert producer.flush(10) == 0


@pytest.mark.broker
def test_newest_record_of_a_key_is_found_behind_many_others(
    kafka: str, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "FIRST_STRETCH", 3)
    brokers, topic = Brokers(kafka), flow_topic(topics, "acks")
    assert newest_of(brokers, topic, "n1", anything) == []
    sent(kafka, topic, "n1", *(f"old {number}" for number in range(20)))
    sent(kafka, topic, "n1", "last")
    assert newest_of(brokers, topic, "n1", anything)[-1] == b"last"
    for number in range(300):
        sent(kafka, topic, f"n{2 + number % 9}", f"other {number}")
    assert newest_of(brokers, topic, "n1", anything)[-1] == b"last"
    found = newest_of(brokers, topic, "n1", lambda value: value != b"last")
    assert found[-1] == b"old 19"
    assert newest_of(brokers, topic, "n1", lambda value: value == b"old 3") == [b"old 3"]
    assert newest_of(brokers, topic, "n99", anything) == []


@pytest.mark.broker
def test_deleted_record_is_not_found(kafka: str, topics: str) -> None:
    brokers, topic = Brokers(kafka), flow_topic(topics, "orders")
    sent(kafka, topic, "n1", "one")
    admin = AdminClient({"bootstrap.servers": kafka})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        deleted.result(10)
    assert newest_of(brokers, topic, "n1", anything) == []
    sent(kafka, topic, "n1", "two")
    assert newest_of(brokers, topic, "n1", anything) == [b"two"]


@pytest.mark.broker
def test_missing_topic_raises_a_timeout(kafka: str, topics: str) -> None:
    with pytest.raises(TimeoutError, match=r"What stele\.nobody\.acks holds of n1 was not read"):
        newest_of(Brokers(kafka), "stele.nobody.acks", "n1", anything)


@pytest.mark.broker
def test_records_from_before_a_partition_increase_count_as_older(
    kafka: str, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "FIRST_STRETCH", 3)
    brokers, topic = Brokers(kafka), flow_topic(topics, "acks")
    keys = [f"n{number}" for number in range(200)]
    key = next(each for each in keys if where(each, 4) != where(each, 7))
    other = next(each for each in keys if each != key and where(each, 7) == where(key, 7))
    sent(kafka, topic, key, "before")
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_partitions([NewPartitions(topic, 7)]).values():
        made.result(10)
    assert newest_of(brokers, topic, key, anything) == [b"before"]
    wait_until(lambda: placed(kafka, topic, other) == where(key, 7), "the partitions to be known")
    sent(kafka, topic, key, "after")
    sent(kafka, topic, other, *(f"other {number}" for number in range(50)))
    assert newest_of(brokers, topic, key, anything) == [b"after"]


def test_read_without_brokers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "CALL_TIMEOUT_S", 0.5)
    with pytest.raises(TimeoutError, match=r"What stele\.x\.acks holds of n1 was not read: "):
        newest_of(Brokers(f"{LOOPBACK}:{free_port()}"), "stele.x.acks", "n1", anything)
