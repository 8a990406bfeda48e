"""What was said last under a key of a topic: read backwards from its end, a stretch at a time.

Whoever asks is seldom: it costs two consumers, and as many records as came since.
"""

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stele.log.brokers import Brokers
from stele.log.ends import Prober
from stele.log.refusals import Refusals

SILENCE_S: Final = 15.0
"""Brokers that give nothing for so long do not answer."""
CALL_TIMEOUT_S: Final = 5.0
FIRST_STRETCH: Final = 500
"""Records of each partition; each further stretch is four times as long."""
LONGER: Final = 4
BATCH: Final = 500

Offsets = dict[int, int]
"""By partition."""


def newest_of(
    brokers: Brokers,
    topic: str,
    key: str,
    wanted: Callable[[bytes], bool],
) -> list[bytes]:
    """The ``wanted`` values of the key in the newest stretch that has any; none where the topic has none.

    It is looked for where the key's records go now, and in the other partitions if there are none: there were
    fewer of these once. A change of leader is waited for. It blocks.

    Raises TimeoutError, with what the brokers refuse, when they do not answer.
    """
    refusals = Refusals()
    consumer = Consumer(
        {
            **brokers.client(),
            "group.id": "stele-unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "error_cb": refusals,
        }
    )
    prober = Prober(brokers, refusals=refusals)
    try:
        return _Backwards(consumer, prober, topic, key.encode(), wanted).find()
    except (KafkaException, TimeoutError) as error:
        why = refusals.why(error, consumer)
        raise TimeoutError(f"What {topic} holds of {key} was not read: {why}") from error
    finally:
        prober.close()
        consumer.close()


class _Backwards:
    def __init__(
        self,
        consumer: Consumer,
        prober: Prober,
        topic: str,
        key: bytes,
        wanted: Callable[[bytes], bool],
    ) -> None:
        self._consumer = consumer
        self._prober = prober
        self._topic = topic
        self._key = key
        self._wanted = wanted

    def find(self) -> list[bytes]:
        metadata = self._consumer.list_topics(self._topic, timeout=CALL_TIMEOUT_S)
        topic = metadata.topics[self._topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        partitions = sorted(topic.partitions)
        if not partitions:
            raise TimeoutError("the brokers show no partition of it")
        own = partition_of(self._key, len(partitions))
        others = [each for each in partitions if each != own]
        return self._newest_in([own]) or self._newest_in(others)

    def _newest_in(self, partitions: list[int]) -> list[bytes]:
        if not partitions:
            return []
        ends = {each: self._prober.ends(self._topic, each) for each in partitions}
        begins: Offsets = {each: found.begin for each, found in ends.items()}
        uppers, stretch = {each: found.end for each, found in ends.items()}, FIRST_STRETCH
        while any(uppers[each] > begins[each] for each in partitions):
            lowers = {each: max(begins[each], uppers[each] - stretch) for each in partitions}
            found = self._between(lowers, uppers)
            if found:
                return found
            uppers, stretch = lowers, stretch * LONGER
        return []

    def _between(self, lowers: Offsets, uppers: Offsets) -> list[bytes]:
        """Of the records from ``lowers`` on and before ``uppers``. What was compacted away is not there."""
        found = list[bytes]()
        left = {each for each, lower in lowers.items() if lower < uppers[each]}
        starts = [TopicPartition(self._topic, each, lowers[each]) for each in sorted(left)]
        self._consumer.assign(starts)
        heard_s = time.monotonic()
        while left:
            # What goes on where all is read must not hide that another partition says nothing.
            first = self._consumer.poll(max(0.0, heard_s + SILENCE_S - time.monotonic()))
            if first is None:
                raise TimeoutError(f"the brokers gave nothing for {SILENCE_S:g} s")
            for message in (first, *self._consumer.consume(BATCH, 0)):
                error, partition = message.error(), message.partition() or 0
                if partition in left:
                    heard_s = time.monotonic()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                    raise KafkaException(error)
                offset, upper = message.offset() or 0, uppers[partition]
                if error is None and offset < upper and message.key() == self._key:
                    value = message.value() or b""
                    if self._wanted(value):
                        found.append(value)
                if error is not None or offset + 1 >= upper:
                    left.discard(partition)
        return found


def partition_of(key: bytes, partitions: int) -> int:
    """Where Java's default partitioner, and ``FlowWriter``, put a key: by its murmur2 hash."""
    return (_murmur2(key) & 0x7FFF_FFFF) % partitions


def _murmur2(data: bytes) -> int:
    """32 bits of MurmurHash2 (Austin Appleby), with Kafka's seed."""
    mask, by = 0xFFFF_FFFF, 0x5BD1_E995
    found = 0x9747_B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * by & mask
        word = (word ^ word >> 24) * by & mask
        found = (found * by & mask) ^ word
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * by & mask
    found = (found ^ found >> 13) * by & mask
    return found ^ found >> 15
