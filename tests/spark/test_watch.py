"""The watch of the topics of all clusters."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from stele.log.brokers import Brokers
from stele.placements.watch import TopicState, TopicWatch


def test_topic_deleted_during_a_look_does_not_end_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = TopicWatch(Brokers("127.0.0.1:1"), "demo")
    failures = [KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))]

    def look(_: TopicWatch) -> dict[str, TopicState]:
        if failures:
            raise failures.pop()
        return {}

    monkeypatch.setattr(TopicWatch, "_look", look)
    assert watch.look() == {}
    assert not failures
    watch.close()
