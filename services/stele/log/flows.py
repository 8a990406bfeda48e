"""The live flows beside the log: orders, acks, reports. Sent and forgotten; read from their end.

Nothing here is a truth: what is lost is said again, so a reader starts at the newest record.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import (
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
from stele.log.ends import resolve
from stele.log.kafka import is_fatal
from stele.log.loops import call_in
from stele.log.refusals import Refusals, refusal

TIMEOUT_S: Final = 10.0
ENDS_TIMEOUT_S: Final = 2.0
"""After which who leads is asked again: it may be another by now."""
START_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.1
ASK_AGAIN_S: Final = 1.0
"""A client says once that it may not read a partition. One that begins anew says whether it still may not."""
FLUSH_TIMEOUT_S: Final = 3.0
BATCH: Final = 500
LIMIT_BYTES: Final = 1_000_000
"""A little less than what a topic takes that does not say otherwise."""

OnValue = Callable[[bytes], None]
OnUnreadable = Callable[[DecodeError], None]


def flow_topic(cluster: str, flow: str) -> str:
    """Name of a cluster's topic; ``flow`` is epochs, commands, outcomes, orders, acks, reports ..."""
    return f"stele.{cluster}.{flow}"


class FlowWriter:
    """Sends records of one topic; the key decides the partition, so one key's records keep their order.

    A record has at most ``limit_bytes``; sending a larger one raises KafkaException.
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
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "error_cb": self._refusals,
        }
        self._producer = Producer(self._settings)
        self._made_s = time.monotonic()

    def send(self, key: str, value: bytes) -> None:
        """Send off, or drop when the queue is full or it is refused: the sender repeats what matters."""
        try:
            with contextlib.suppress(BufferError):
                self._producer.produce(self._topic, value, key.encode())
            self._producer.poll(0)
        except KafkaException as error:
            cause = error.args[0]
            self._refusals(cause)
            if is_fatal(cause):
                self._make_anew()
            elif not refusal(cause):
                raise

    def _make_anew(self) -> None:
        """A producer of whom may write no topic at all comes to its end, and is of no use once he may."""
        if time.monotonic() - self._made_s >= ASK_AGAIN_S:
            self._producer, self._made_s = Producer(self._settings), time.monotonic()

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._refusals(error)

    async def close(self) -> None:
        await asyncio.to_thread(self._producer.flush, FLUSH_TIMEOUT_S)


class FlowReader:
    """Reads all partitions of one topic from their end, and calls back in the event loop.

    A record that ``on_value`` cannot decode (DecodeError) goes to ``on_unreadable`` and reading goes on.
    Make and start it inside the event loop.
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
        """Returns once the reader stands at the topic's end: what is sent from now on will be read.

        Raises TimeoutError when the brokers do not tell where that is.
        """
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
            while not self._stop.is_set():
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
        """False while a leader is away or moving, or the topic is not there yet: try again."""
        try:
            metadata = self._consumer.list_topics(self._topic, timeout=ENDS_TIMEOUT_S)
            topic = metadata.topics[self._topic]
            if topic.error is not None:
                self._refusals(topic.error)
            partitions = sorted(topic.partitions)
            wanted = [TopicPartition(self._topic, each, OFFSET_END) for each in partitions]
            self._consumer.assign(resolve(self._consumer, wanted, ENDS_TIMEOUT_S))
        except (KafkaException, TimeoutError) as failed:
            self._refusals.why(failed, self._consumer)
            return False
        return bool(partitions)

    def _deliver(self, values: list[bytes]) -> None:
        for value in values:
            try:
                self._on_value(value)
            except DecodeError as error:
                self._on_unreadable(error)
