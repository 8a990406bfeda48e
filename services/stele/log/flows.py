"""The live flows beside the log: orders, acks, reports.

Records are sent once and read from the end. Flows are not the truth (docs/design.md, rule 46).
Senders repeat what matters, so a reader starts at the newest record.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from stele.log.brokers import Brokers, Settings
from stele.log.codec import DecodeError
from stele.log.deliveries import DELIVERIES, Refusals, note_start_wait, refusal
from stele.log.ends import resolve
from stele.log.kafka import is_fatal
from stele.log.loops import call_in

TIMEOUT_S: Final = 10.0
ENDS_TIMEOUT_S: Final = 2.0
"""Limit of a request for the ends. After it the leader is looked up again: it may have changed."""
START_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.1
ASK_AGAIN_S: Final = 1.0
"""Pause after a refusal before partitions are assigned again. A client reports a refused partition
only once. A new assignment shows whether it is still refused."""
LOOK_FOR_PARTITIONS_S: Final = 300.0
"""Interval of the search for new partitions. Producers refresh their metadata as often."""
MAX_REPORT_DELAY_S: Final = 2.0
"""Oldest delivery report that measures the clock. Nodes send acks more often than that."""
FLUSH_TIMEOUT_S: Final = 3.0
BATCH: Final = 500
LIMIT_BYTES: Final = 1_000_000
"""Default limit of a record, a little less than the default limit of a topic."""

_log: Final = logging.getLogger(__name__)

OnValue = Callable[[bytes], None]
OnUnreadable = Callable[[DecodeError], None]


def flow_topic(cluster: str, flow: str) -> str:
    """Return the topic of a flow: epochs, commands, outcomes, orders, acks, reports ..."""
    return f"stele.{cluster}.{flow}"


class FlowWriter:
    """Sends records to one topic.

    The key selects the partition, so records of a key keep their order. A record has at most
    ``limit_bytes``. Sending a larger one raises KafkaException.
    """

    def __init__(self, brokers: Brokers, topic: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self._topic = topic
        self._refusals = Refusals()
        self._settings: Settings = {
            **brokers.client(),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "delivery.timeout.ms": 10_000,
            "message.max.bytes": limit_bytes,
            "partitioner": "murmur2_random",
            "on_delivery": self._on_delivery,
            "error_cb": self._refusals,
        }
        self._producer = Producer(self._settings)
        self._made_s = self._polled_s = time.monotonic()

    def send(self, key: str, value: bytes) -> None:
        """Send a record, or drop it when the queue is full or the brokers refuse it.

        The caller repeats what matters.
        """
        try:
            try:
                self._producer.produce(self._topic, value, key.encode())
            except BufferError:
                DELIVERIES.fail(self._topic, KafkaError(KafkaError._QUEUE_FULL))  # noqa: SLF001
            self._producer.poll(0)
            self._polled_s = time.monotonic()
        except KafkaException as error:
            cause = error.args[0]
            self._refusals(cause)
            if is_fatal(cause):
                self._make_anew()
            elif not refusal(cause):
                raise

    def _make_anew(self) -> None:
        """Replace the producer after a fatal error, at most once in ``ASK_AGAIN_S``.

        A producer without the right to write any topic fails permanently. It stays unusable even
        when the right is granted later.
        """
        if time.monotonic() - self._made_s >= ASK_AGAIN_S:
            self._producer, self._made_s = Producer(self._settings), time.monotonic()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            # A report that waited for the next send is too late to measure the clock.
            if time.monotonic() - self._polled_s < MAX_REPORT_DELAY_S:
                DELIVERIES.measure_clock(message)
            return
        DELIVERIES.fail(self._topic, error)
        self._refusals(error)

    async def close(self) -> None:
        await asyncio.to_thread(self._producer.flush, FLUSH_TIMEOUT_S)


class FlowReader:
    """Reads all partitions of one topic from their end, and calls back in the event loop.

    A partition that is added later is read from its beginning. A record that ``on_value`` cannot
    decode (DecodeError) goes to ``on_unreadable``, and reading continues. Create and start it
    inside the event loop.
    """

    def __init__(
        self, brokers: Brokers, topic: str, on_value: OnValue, on_unreadable: OnUnreadable
    ) -> None:
        self._topic = topic
        self._on_value = on_value
        self._on_unreadable = on_unreadable
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flow-{topic}", daemon=True)
        self._ready = asyncio.Event()
        self._refusals = Refusals()
        self._partitions = set[int]()
        """Partitions that are read."""
        self._consumer = Consumer(
            {
                **brokers.client(),
                "group.id": "stele-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "error_cb": self._refusals,
                "fetch.error.backoff.ms": 50,
            }
        )

    async def start(self) -> None:
        """Return when the reader is at the topic's end, so that all later records will be read.

        Raises TimeoutError when the brokers do not report the end. It may be called again then.
        """
        if self._thread.ident is None:
            self._thread.start()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            text = f"The end of {self._topic} was not found within {START_TIMEOUT_S:g} s."
            why = self._refusals.newest or "Are the brokers up, and is the topic there?"
            raise TimeoutError(f"{text} {why}") from None

    async def close(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._stand_at_the_end()
            call_in(self._loop, self._ready.set)
            looked_s = time.monotonic()
            while not self._stop.is_set():
                if time.monotonic() - looked_s > LOOK_FOR_PARTITIONS_S:
                    self._read_added_partitions()
                    looked_s = time.monotonic()
                first = self._consumer.poll(0.2)
                if first is not None:
                    batch = [first, *self._consumer.consume(BATCH, 0)]
                    values, refused = list[bytes](), False
                    for message in batch:
                        error = message.error()
                        if error is None:
                            values.append(message.value() or b"")
                        else:
                            self._refusals(error)
                            refused = refused or bool(refusal(error))
                    call_in(self._loop, self._deliver, values)
                    if refused and not self._stop.wait(ASK_AGAIN_S):
                        self._stand_at_the_end()
        finally:
            self._consumer.close()

    def _stand_at_the_end(self) -> None:
        while not self._stop.is_set() and not self._assign():
            self._stop.wait(RETRY_S)

    def _assign(self) -> bool:
        """Assign all partitions at their ends. Return False if the caller must try again.

        That is the case while a leader is unreachable or moving, or the topic does not exist yet.
        """
        try:
            metadata = self._consumer.list_topics(self._topic, timeout=ENDS_TIMEOUT_S)
            topic = metadata.topics[self._topic]
            if topic.error is not None:
                self._refusals(topic.error)
            partitions = sorted(topic.partitions)
            # Resolve the ends here: a lazy OFFSET_END would be looked up at the first fetch, and
            # records sent between ``start`` and that fetch would be missed.
            wanted = [TopicPartition(self._topic, each, OFFSET_END) for each in partitions]
            self._consumer.assign(resolve(self._consumer, wanted, ENDS_TIMEOUT_S))
            self._partitions = {*partitions}
        except (KafkaException, TimeoutError) as failed:
            self._refusals.why(failed, self._consumer)
            return False
        return bool(partitions)

    def _read_added_partitions(self) -> None:
        """Assign partitions that were added to the topic, from their beginning.

        Writers may have sent to them before this reader found them.
        """
        with contextlib.suppress(KafkaException):  # the next look asks again
            topics = self._consumer.list_topics(self._topic, timeout=ENDS_TIMEOUT_S).topics
            added = sorted({*topics[self._topic].partitions} - self._partitions)
            if added:
                begins = [TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in added]
                self._consumer.incremental_assign(begins)
                self._partitions |= {*added}

    def _deliver(self, values: list[bytes]) -> None:
        for value in values:
            try:
                self._on_value(value)
            except DecodeError as error:
                self._on_unreadable(error)


class Startable(Protocol):
    """A reader of a flow. ``start`` raises TimeoutError, and may be called again then."""

    async def start(self) -> None: ...


async def start_across_outage(*readers: Startable) -> None:
    """Start readers one after the other. Waits for the brokers without a time limit."""
    for reader in readers:
        while True:
            try:
                await reader.start()
                break
            except TimeoutError as error:
                note_start_wait(str(error))
                _log.warning("%s", error)
