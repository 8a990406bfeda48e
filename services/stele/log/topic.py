"""A topic read from its beginning to its end, as any consumer would."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, TopicPartition

from stele.log.brokers import Brokers
from stele.log.ends import Prober
from stele.log.port import Ends

TIMEOUT_S = 15.0

Record = tuple[str, bytes | None]
"""Key and value; no value is a tombstone. A key that is no text has its bytes written out."""


def read_topic(brokers: Brokers, topic: str) -> Iterator[Record]:
    """All records up to the end at the time of the call, partition by partition.

    Raises TimeoutError, and KafkaException when the brokers cannot say what the topic's partitions are.
    """
    consumer = Consumer(
        {
            **brokers.client(),
            "group.id": "stele-unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    prober = Prober(brokers)
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        for partition in sorted(partitions):
            yield from _read_partition(consumer, topic, partition, prober.ends(topic, partition))
    finally:
        prober.close()
        consumer.close()


def _read_partition(consumer: Consumer, topic: str, partition: int, ends: Ends) -> Iterator[Record]:
    position, end = ends
    if position == end:
        return
    consumer.assign([TopicPartition(topic, partition, position)])
    while position < end:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"{topic}/{partition} was silent at offset {position} of {end}.")
        error = message.error()
        if error is None:
            position = (message.offset() or 0) + 1
            yield (message.key() or b"").decode(errors="backslashreplace"), message.value()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name
            break  # compaction may have taken the last offsets
    consumer.unassign()
