"""A client that uses the metadata-log only through Kafka."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from stele.domain.commands import Envelope, Outcome
from stele.log.brokers import Brokers
from stele.log.codec import decode_outcome, encode_envelope
from stele.log.flows import flow_topic
from stele.runtime.kafka import ensure_topics
from tests.polling import wait_until

DEADLINE_S = 240.0


class Kafka:
    """A plain producer of commands and a plain consumer of outcomes."""

    def __init__(self, bootstrap: str, cluster: str) -> None:
        ensure_topics(Brokers(bootstrap), cluster)
        self._commands = flow_topic(cluster, "commands")
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(flow_topic(cluster, "outcomes"), 0, 0)])
        self.outcomes: dict[str, list[Outcome]] = {}

    def send(self, value: bytes, key: str | None) -> None:
        self._producer.produce(self._commands, value, key)
        assert self._producer.flush(DEADLINE_S) == 0

    def send_all(self, envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
            self._producer.produce(self._commands, encode_envelope(envelope), envelope.request_id)
        assert self._producer.flush(DEADLINE_S) == 0

    def wait_for(self, *request_ids: str) -> list[Outcome]:
        """Return the first outcome of each request id."""
        wait_until(lambda: self._saw(request_ids), f"outcomes of {request_ids[:5]}", DEADLINE_S)
        return [self.outcomes[request_id][0] for request_id in request_ids]

    def _saw(self, request_ids: tuple[str, ...]) -> bool:
        message = self._consumer.poll(0.05)
        while message is not None:
            assert message.error() is None
            outcome = decode_outcome(message.value() or b"")
            self.outcomes.setdefault(outcome.request_id, []).append(outcome)
            message = self._consumer.poll(0)
        return all(request_id in self.outcomes for request_id in request_ids)

    def close(self) -> None:
        self._consumer.close()
