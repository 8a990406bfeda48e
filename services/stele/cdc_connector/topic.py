"""The topic of one table: its creation, its records, and the cursor to continue from.

Each record has the header ``stele.cursor``, the cursor after which its page was read. A page is
sent when the one before is acknowledged. All changes up to the newest cursor are therefore in the
topic, and a restart repeats at most one page.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from stele.log.brokers import Brokers
from stele.log.ends import READ_TIMEOUT_S, Prober
from stele.runtime.kafka import TopicSpec, make_named_topic

CURSOR: Final = "stele.cursor"
_HEX: Final = re.compile(rb"[0-9a-f]{1,16}")
FLUSH_S: Final = 30.0


class TableTopic:
    """A topic at the brokers. All methods block; call them in one thread at a time."""

    def __init__(self, brokers: Brokers, name: str, record_bytes: int) -> None:
        self.name = name
        self._brokers = brokers
        self._errors = list[KafkaError]()
        self._producer = Producer(
            {
                **brokers.client(),
                "acks": "all",
                "enable.idempotence": True,
                "message.max.bytes": record_bytes,
                "compression.type": "zstd",
                "delivery.timeout.ms": int(FLUSH_S * 1000),
                "partitioner": "murmur2_random",
                "on_delivery": self._on_delivery,
            }
        )

    def create(self, partitions: int, replication_factor: int, record_bytes: int) -> None:
        """Create the topic if the brokers lack it. Raises TopicsUnavailable."""
        config = {
            "cleanup.policy": "delete",
            "max.message.bytes": str(record_bytes),
            "min.insync.replicas": "2" if replication_factor >= 3 else "1",
        }
        make_named_topic(
            self._brokers, self.name, TopicSpec(partitions, config), replication_factor
        )

    def send(self, records: Sequence[tuple[bytes, bytes]], cursor: str) -> None:
        """Send the records of one page. Return when all are acknowledged. Raises KafkaException."""
        self._errors.clear()
        for key, value in records:
            self._producer.produce(self.name, value, key, headers={CURSOR: cursor})
        if self._producer.flush(FLUSH_S):
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001
        if self._errors:
            raise KafkaException(self._errors[0])

    def newest_cursor(self) -> str:
        """Return the newest cursor of the last records; empty if there are none.

        Raises KafkaException, TimeoutError.
        """
        consumer = Consumer(
            {**self._brokers.client(), "group.id": "stele-unused", "enable.auto.commit": False}
        )
        prober = Prober(self._brokers)
        try:
            found = consumer.list_topics(self.name, timeout=READ_TIMEOUT_S).topics[self.name]
            ends = {each: prober.ends(self.name, each) for each in found.partitions}
            last = [
                TopicPartition(self.name, partition, end - 1)
                for partition, (begin, end) in ends.items()
                if begin < end
            ]
            consumer.assign(last)
            headers = (dict(each.headers() or ()) for each in _one_of_each(consumer, len(last)))
            cursors = map(cursor_of, headers)
            return max(cursors, key=lambda text: int(text or "0", 16), default="")
        finally:
            prober.close()
            consumer.close()

    def close(self) -> None:
        self._producer.flush(FLUSH_S)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(error)


def _one_of_each(consumer: Consumer, partitions: int) -> list[Message]:
    """Return the first message of each assigned partition."""
    found, end_s = dict[int | None, Message](), time.monotonic() + READ_TIMEOUT_S
    while len(found) < partitions:
        message = consumer.poll(max(0.0, end_s - time.monotonic()))
        if message is None:
            raise TimeoutError(f"{len(found)} of {partitions} last records were read")
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        found.setdefault(message.partition(), message)
    return [*found.values()]


def cursor_of(headers: Mapping[str, object]) -> str:
    """Return the cursor in a record's headers; empty for a foreign record without a cursor."""
    value = headers.get(CURSOR)
    return value.decode() if isinstance(value, bytes) and _HEX.fullmatch(value) else ""
