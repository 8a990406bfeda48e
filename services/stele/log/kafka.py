"""The log on Kafka: one topic of one partition. confluent-kafka in threads, callbacks in the event loop.

Every setting that matters is written here; why is in docs/performance.md and docs/services/log.md.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from stele.log.port import OnRecords, Record

READ_BATCH: Final = 2000
"""Most records handed to the event loop at once, so that other work gets its turn."""
MAX_IN_HAND: Final = 4
"""Batches that may wait for the event loop before the reading thread pauses."""
TIMEOUT_S: Final = 10.0
FLUSH_TIMEOUT_S: Final = 5.0

_PRODUCER: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "compression.type": "none",
    "message.max.bytes": 8_388_608,
    "delivery.timeout.ms": 30_000,
    "queue.buffering.max.messages": 200_000,
}
_CONSUMER: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 50,
    "fetch.message.max.bytes": 8_388_608,
    "queued.min.messages": 20_000,
    "enable.partition.eof": False,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}


class KafkaLog:
    """One process's access to a topic of one partition; see the port for the contract.

    Make it inside the event loop that ``follow``'s callbacks are to run in.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._servers = {"bootstrap.servers": bootstrap}
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._in_hand = threading.Semaphore(MAX_IN_HAND)
        self._threads: list[threading.Thread] = []
        self._producer: Producer | None = None
        self._prober: Consumer | None = None
        self._probing = asyncio.Lock()

    def append(self, value: bytes, key: bytes | None = None) -> None:
        producer = self._producer or self._start_producer()
        producer.produce(self._topic, value, key, 0)

    async def end_offset(self) -> int:
        async with self._probing:
            return await asyncio.to_thread(self._end_offset)

    def follow(
        self, offset: int, on_records: OnRecords, on_error: Callable[[Exception], None]
    ) -> None:
        self._start_thread(self._follow, offset, on_records, on_error)

    async def read(self, offset: int, limit: int) -> list[Record]:
        async with self._probing:
            return await asyncio.to_thread(self._read, offset, limit)

    async def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, TIMEOUT_S)
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, FLUSH_TIMEOUT_S)
        if self._prober is not None:
            await asyncio.to_thread(self._prober.close)

    def _start_thread(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=f"log-{self._topic}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start_producer(self) -> Producer:
        self._producer = Producer({**self._servers, **_PRODUCER})
        self._start_thread(self._serve_producer, self._producer)
        return self._producer

    def _serve_producer(self, producer: Producer) -> None:
        while not self._stop.is_set():
            producer.poll(0.1)

    def _consumer(self, **more: object) -> Consumer:
        return Consumer({**self._servers, **_CONSUMER, "group.id": "stele-unused", **more})

    def _end_offset(self) -> int:
        _, high = self._probe().get_watermark_offsets(
            TopicPartition(self._topic, 0), timeout=TIMEOUT_S, cached=False
        )
        return high

    def _probe(self) -> Consumer:
        if self._prober is None:
            self._prober = self._consumer(**{"fetch.wait.max.ms": 10})
        return self._prober

    def _read(self, offset: int, limit: int) -> list[Record]:
        consumer, found = self._probe(), list[Record]()
        end = min(self._end_offset(), offset + limit)
        if offset >= end:
            return found
        consumer.assign([TopicPartition(self._topic, 0, offset)])
        try:
            while not found or found[-1].offset + 1 < end:
                batch = consumer.consume(min(limit, READ_BATCH), TIMEOUT_S if not found else 1.0)
                if not batch:
                    break
                found.extend(_records(batch))
        finally:
            consumer.unassign()
        return [record for record in found if record.offset < end]

    def _follow(
        self, offset: int, on_records: OnRecords, on_error: Callable[[Exception], None]
    ) -> None:
        consumer = self._consumer()
        consumer.assign([TopicPartition(self._topic, 0, offset)])
        try:
            while not self._stop.is_set():
                first = consumer.poll(0.2)
                if first is not None:
                    batch = _records([first, *consumer.consume(READ_BATCH, 0)])
                    self._hand_over(on_records, batch)
        except KafkaException as error:
            self._call(on_error, error)
        finally:
            consumer.close()

    def _hand_over(self, on_records: OnRecords, batch: list[Record]) -> None:
        def run() -> None:
            try:
                on_records(batch)
            finally:
                self._in_hand.release()

        while not self._in_hand.acquire(timeout=0.2):
            if self._stop.is_set():
                return
        self._call(run)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is there to be told
            self._loop.call_soon_threadsafe(callback, *args)


def _records(batch: list[Message]) -> list[Record]:
    """Raises KafkaException for errors that do not go away, such as an offset that is gone."""
    found = list[Record]()
    for message in batch:
        error = message.error()
        if error is None:
            found.append(Record(message.offset() or 0, message.value() or b""))
        elif error.fatal() or error.code() in (
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own name for it
        ):
            raise KafkaException(error)
    return found
