"""A topic read from its beginning to its end, as any consumer would."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_S = 15.0

Record = tuple[str, bytes | None]
"""Key and value; no value is a tombstone."""


def read_topic(bootstrap: str, topic: str) -> Iterator[Record]:
    """All records up to the end at the time of the call, partition by partition.

    Raises TimeoutError.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "stele-unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        for partition in sorted(partitions):
            yield from _read_partition(consumer, topic, partition)
    finally:
        consumer.close()


def _read_partition(consumer: Consumer, topic: str, partition: int) -> Iterator[Record]:
    where = TopicPartition(topic, partition)
    low, high = consumer.get_watermark_offsets(where, timeout=TIMEOUT_S, cached=False)
    if low == high:
        return
    consumer.assign([TopicPartition(topic, partition, low)])
    position = low
    while position < high:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"{topic}/{partition} was silent at offset {position} of {high}.")
        if message.error() is not None:  # the end: compaction may have taken the last offsets
            break
        position = (message.offset() or 0) + 1
        yield (message.key() or b"").decode(), message.value()
    consumer.unassign()
