"""Ask the current leader of a partition for its first offset and end.

A consumer's ``get_watermark_offsets`` is not used (librdkafka, pull request 2535). While the leader
in its cache is down, it retries that leader without end. It exceeds its own time limit, and does
not notice the election of the next leader. ``offsets_for_times`` keeps its limit, and accepts
Kafka's two special times "beginning" and "end". It also caches the old leader, so the leader is
looked up again after each failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from stele.log.brokers import Brokers
from stele.log.deliveries import Refusals
from stele.log.port import Ends

TIMEOUT_S: Final = 10.0
FIRST_ATTEMPT_S: Final = 1.0
LONGEST_ATTEMPT_S: Final = 4.0
"""Limits of one attempt, doubled with each one: the network may be slow, or the leader dead."""
WHO_LEADS_S: Final = 2.0
"""Limit of the request for the current leader, after which all connections are replaced."""
PAUSE_S: Final = 0.05


def resolve(
    consumer: Consumer, wanted: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """Return the partitions with real offsets in place of OFFSET_BEGINNING and OFFSET_END.

    The request goes to the leaders in the consumer's cache. Raises TimeoutError, KafkaException.
    """
    found = consumer.offsets_for_times(wanted, timeout=timeout_s)
    for partition in found:
        if partition.error is not None:
            raise KafkaException(partition.error)
        if partition.offset < 0:
            raise TimeoutError(f"no answer within {timeout_s:.1f} s")
    return found


class Prober:
    """Asks brokers for offsets. Calls block for ``TIMEOUT_S`` at most. One thread at a time."""

    def __init__(
        self,
        brokers: Brokers,
        stop: threading.Event | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._refusals = refusals or Refusals()
        self._settings = {
            **brokers.client(),
            "error_cb": self._refusals,
            "group.id": "stele-unused",
            "reconnect.backoff.ms": 50,
        }
        self._stop = stop or threading.Event()
        self._consumer: Consumer | None = None

    def end(self, topic: str, partition: int = 0) -> int:
        """Return the end offset. Raises TimeoutError when no leader answers in time."""
        return self._ask(topic, partition, OFFSET_END)

    def ends(self, topic: str, partition: int = 0) -> Ends:
        """Return first offset and end. Raises TimeoutError when no leader answers in time."""
        begin = self._ask(topic, partition, OFFSET_BEGINNING)
        return Ends(begin, self._ask(topic, partition, OFFSET_END))

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _ask(self, topic: str, partition: int, which: int) -> int:
        """Ask until an answer or the time limit, across a change of leader."""
        deadline_s, attempt_s = time.monotonic() + TIMEOUT_S, FIRST_ATTEMPT_S
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self._attempt(
                    TopicPartition(topic, partition, which), min(left_s, attempt_s)
                )
            except (KafkaException, TimeoutError) as error:
                if left_s <= attempt_s or self._stop.wait(PAUSE_S):
                    why = self._refusals.why(error, self._consumer)
                    self.close()
                    raise TimeoutError(
                        f"No leader tells where {topic}/{partition} ends: {why}"
                    ) from error
            self._ask_who_leads(topic, min(WHO_LEADS_S, deadline_s - time.monotonic()))
            attempt_s = min(2 * attempt_s, LONGEST_ATTEMPT_S)

    def _ask_who_leads(self, topic: str, timeout_s: float) -> None:
        if self._consumer is not None and timeout_s > 0:
            try:
                self._consumer.list_topics(topic, timeout=timeout_s)
            except KafkaException:
                self.close()  # it may keep asking a broker that does not answer

    def _attempt(self, where: TopicPartition, timeout_s: float) -> int:
        consumer = self._consumer = self._consumer or Consumer(self._settings)
        (found,) = resolve(consumer, [where], timeout_s)
        return found.offset


# Find the newest values under a key of a topic: read backwards from its end, in stretches.
#
# Use it rarely: a call costs two consumers, and reads all records since the one that it finds.


SILENCE_S: Final = 15.0
"""Time without data from a partition after which the brokers count as not answering."""
CALL_TIMEOUT_S: Final = 5.0
FIRST_STRETCH: Final = 500
"""Records of each partition in the first stretch. Each further one is four times as long."""
LONGER: Final = 4
BATCH: Final = 500

Offsets = dict[int, int]
"""Offsets by partition."""


def newest_of(
    brokers: Brokers,
    topic: str,
    key: str,
    wanted: Callable[[bytes], bool],
) -> list[bytes]:
    """Return the ``wanted`` values of the key in the newest stretch with any, or an empty list.

    The search begins in the partition to which the key maps now. If that has none, the other
    partitions follow, because the topic may have had fewer partitions. The call blocks, and
    survives a change of leader.

    Raises TimeoutError, with the reason of a refusal, when the brokers do not answer.
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
    """One backward search."""

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
        """Return the wanted values from ``lowers`` up to before ``uppers``.

        Records that compaction has removed are missing.
        """
        found = list[bytes]()
        left = {each for each, lower in lowers.items() if lower < uppers[each]}
        starts = [TopicPartition(self._topic, each, lowers[each]) for each in sorted(left)]
        self._consumer.assign(starts)
        heard_s = time.monotonic()
        while left:
            # Only partitions still to be read reset the clock: records of a finished one must not
            # hide that another one is silent.
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
                # The end of a partition counts too: compaction may have removed the last offsets.
                if error is not None or offset + 1 >= upper:
                    left.discard(partition)
        return found


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Java's default partitioner and ``FlowWriter`` choose it."""
    return (_murmur2(key) & 0x7FFF_FFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Return the 32 bits of MurmurHash2 (Austin Appleby), with Kafka's seed."""
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


# Read a topic from its beginning to its end.


READ_TIMEOUT_S = 15.0

Record = tuple[str, bytes | None]
"""Key and value; a value of None is a tombstone. Bytes of a key that are not UTF-8 are escaped."""


def read_topic(brokers: Brokers, topic: str) -> Iterator[Record]:
    """Yield all records up to the end at the time of the call, partition by partition.

    Raises TimeoutError, and KafkaException when the brokers cannot list the topic's partitions.
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
        partitions = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
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
        message = consumer.poll(READ_TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"{topic}/{partition} was silent at offset {position} of {end}.")
        error = message.error()
        if error is None:
            position = (message.offset() or 0) + 1
            yield (message.key() or b"").decode(errors="backslashreplace"), message.value()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name
            break  # compaction may have removed the last offsets
    consumer.unassign()
