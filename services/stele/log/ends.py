"""Ask the current leader of a partition for its first offset and end, and read up to that end.

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
from contextlib import contextmanager
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
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


# Read the records of a topic up to its end at the time of the call.


SILENCE_S: Final = 15.0
"""Time without data from a partition after which the brokers count as not answering."""
CALL_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 15.0
FIRST_STRETCH: Final = 500
"""Records of each partition in the first stretch. Each further one is four times as long."""
LONGER: Final = 4
BATCH: Final = 500

Offsets = dict[int, int]
"""Offsets by partition."""
KeyedRecord = tuple[str, bytes | None]
"""Key and value; a value of None is a tombstone. Bytes of a key that are not UTF-8 are escaped."""


def read_topic(brokers: Brokers, topic: str) -> Iterator[KeyedRecord]:
    """Yield all records up to the end at the time of the call, partition by partition.

    Raises TimeoutError, KafkaException.
    """
    with _reading(brokers, Refusals()) as (consumer, prober):
        partitions = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
        for each in sorted(partitions):
            begin, end = prober.ends(topic, each)
            for message in _between(consumer, topic, {each: begin}, {each: end}):
                key = (message.key() or b"").decode(errors="backslashreplace")
                yield key, message.value()


def newest_of(
    brokers: Brokers,
    topic: str,
    key: str,
    wanted: Callable[[bytes], bool],
) -> list[bytes]:
    """Return the ``wanted`` values of the key in the newest stretch with any, or an empty list.

    The topic is read backwards from its end, in stretches. The search begins in the partition to
    which the key maps now. If that has none, the other partitions follow, because the topic may
    have had fewer partitions. The call blocks, and survives a change of leader. Use it rarely: it
    costs two consumers, and reads all records since the one that it finds.

    Raises TimeoutError, with the reason of a refusal, when the brokers do not answer.
    """
    refusals = Refusals()
    with _reading(brokers, refusals) as (consumer, prober):
        try:
            metadata = consumer.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic]
            if metadata.error is not None:
                raise KafkaException(metadata.error)
            partitions = sorted(metadata.partitions)
            if not partitions:
                raise TimeoutError("the brokers show no partition of it")
            own = partition_of(key.encode(), len(partitions))
            for group in ([own], [each for each in partitions if each != own]):
                ends = {each: prober.ends(topic, each) for each in group}
                for lowers, uppers in _stretches(ends):
                    found = [
                        message.value() or b""
                        for message in _between(consumer, topic, lowers, uppers)
                        if message.key() == key.encode() and wanted(message.value() or b"")
                    ]
                    if found:
                        return found
            return []
        except (KafkaException, TimeoutError) as error:
            why = refusals.why(error, consumer)
            raise TimeoutError(f"What {topic} holds of {key} was not read: {why}") from error


@contextmanager
def _reading(brokers: Brokers, refusals: Refusals) -> Iterator[tuple[Consumer, Prober]]:
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
        yield consumer, prober
    finally:
        prober.close()
        consumer.close()


def _stretches(ends: dict[int, Ends]) -> Iterator[tuple[Offsets, Offsets]]:
    """Yield the bounds of the stretches, the newest first."""
    begins: Offsets = {each: found.begin for each, found in ends.items()}
    uppers, stretch = {each: found.end for each, found in ends.items()}, FIRST_STRETCH
    while any(uppers[each] > begins[each] for each in ends):
        lowers = {each: max(begins[each], uppers[each] - stretch) for each in ends}
        yield lowers, uppers
        uppers, stretch = lowers, stretch * LONGER


def _between(consumer: Consumer, topic: str, lowers: Offsets, uppers: Offsets) -> Iterator[Message]:
    """Yield the records from ``lowers`` up to before ``uppers``.

    Records that compaction has removed are missing. Raises TimeoutError, KafkaException.
    """
    left = {each for each, lower in lowers.items() if lower < uppers[each]}
    consumer.assign([TopicPartition(topic, each, lowers[each]) for each in sorted(left)])
    heard_s = time.monotonic()
    while left:
        # Only partitions still to be read reset the clock: records of a finished one must not
        # hide that another one is silent.
        first = consumer.poll(max(0.0, heard_s + SILENCE_S - time.monotonic()))
        if first is None:
            raise TimeoutError(f"the brokers gave nothing of {topic} for {SILENCE_S:g} s")
        for message in (first, *consumer.consume(BATCH, 0)):
            error, partition = message.error(), message.partition() or 0
            if partition in left:
                heard_s = time.monotonic()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                raise KafkaException(error)
            offset, upper = message.offset() or 0, uppers[partition]
            if error is None and offset < upper:
                yield message
            # The end of a partition counts too: compaction may have removed the last offsets.
            if error is not None or offset + 1 >= upper:
                left.discard(partition)


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
