"""Queries for the ends of a partition have a time limit, whatever the brokers do.

The permanent loss of a leader is tested with three brokers, in tests/end_to_end/test_three_brokers.py.
"""

import threading

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stele.log import ends
from stele.log.brokers import Brokers
from stele.log.ends import Prober
from stele.log.flows import flow_topic
from stele.log.port import Ends
from stele_harness.stack.ports import LOOPBACK, free_port


@pytest.mark.broker
def test_ends_follow_appends_and_deletions(kafka: str, topics: str) -> None:
    topic = flow_topic(topics, "epochs")
    prober = Prober(Brokers(kafka))
    assert prober.ends(topic) == Ends(0, 0)

    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(5):
        producer.produce(topic, b"record", partition=0)
    assert producer.flush(10) == 0
    assert prober.ends(topic) == Ends(0, 5)

    admin = AdminClient({"bootstrap.servers": kafka})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        deleted.result(10)
    assert prober.ends(topic) == Ends(3, 5)
    prober.close()


def test_query_without_brokers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "TIMEOUT_S", 0.5)
    prober = Prober(Brokers(f"{LOOPBACK}:{free_port()}"))
    with pytest.raises(TimeoutError, match=r"No leader tells where stele\.x\.epochs/0 ends"):
        prober.end("stele.x.epochs")


def test_stop_ends_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the call lasts an hour, and pytest's own timeout ends the test."""
    monkeypatch.setattr(ends, "TIMEOUT_S", 3600.0)
    stop = threading.Event()
    stop.set()
    with pytest.raises(TimeoutError):
        Prober(Brokers(f"{LOOPBACK}:{free_port()}"), stop).end("stele.x.epochs")
