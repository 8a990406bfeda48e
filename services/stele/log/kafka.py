"""The log on Kafka: one topic of one partition.

Clients run in threads, callbacks in the event loop. All settings that matter are in this module.
docs/internals/performance.md and docs/reference/log.md give the reasons; see also docs/design.md, rule 8.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from stele.log.brokers import Brokers
from stele.log.clocks import LONGEST_PAUSE_S, ClockJumpDetector
from stele.log.deliveries import DELIVERIES, Refusals, refusal
from stele.log.ends import Prober
from stele.log.errors import OffsetGoneError
from stele.log.loops import call_in
from stele.log.port import (
    ROOM_POLL_S,
    Ends,
    HasRoom,
    OnDoubt,
    OnRecords,
    Record,
    TopicProbe,
    always,
    ignore,
)

# Read the answers of a Kafka admin client without leaking the client.
#
# The library keeps an error in a reference cycle with its future. `Future.result` would tie every
# frame that it passes to this cycle, including one that holds the client. Cycles are rarely collected
# (`runtime.memory`), and each client has four threads and as many connections.


T = TypeVar("T")


def answer_of(asked: Future[T], timeout_s: float) -> T:
    """Return the answer. Raises KafkaException, and TimeoutError after ``timeout_s``."""
    # ``exception`` does not raise, so no frame becomes part of the cycle. The new exception is free
    # of it too.
    try:
        error = asked.exception(timeout_s)
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if error is not None:
        raise KafkaException(*error.args)
    return asked.result()


# Passes fetched records from the reading thread to the event loop, a few batches at a time.


MAX_IN_HAND: Final = 4
"""Batches that may wait for the event loop before the reading thread blocks."""


class HandOver:
    """Bounded queue of one follower between its reading thread and the event loop ``loop``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_records: OnRecords, stop: threading.Event
    ) -> None:
        self._loop = loop
        self._on_records = on_records
        self._stop = stop
        self._in_hand = threading.Semaphore(MAX_IN_HAND)

    def fetched(self, batch: list[Record]) -> None:
        """Have the event loop call ``on_records``.

        Blocks in the reading thread while the queue is full. After ``stop`` the batch is dropped.
        """
        # With a time-out, to notice ``stop`` while the event loop takes nothing.
        while not self._in_hand.acquire(timeout=0.2):
            if self._stop.is_set():
                return
        call_in(self._loop, self._run, batch)

    def _run(self, batch: list[Record]) -> None:
        try:
            self._on_records(batch)
        finally:
            self._in_hand.release()


# Detect from librdkafka's log lines that another topic has taken the topic's name.
#
# A consumer fetches by the topic's id. When that id is gone, the client finds the new topic of the
# name. It continues there at its old offset, without an error. Only a log line reports the change.
# The client delivers this line before any record of the new topic.


DEBUG: Final = "metadata"
"""The debug context of that line. It logs some lines per metadata request, and none per record."""
_CHANGED: Final = re.compile(r"Topic \S+ changed id from (\S+) to (\S+)")
_NO_ID: Final = "A" * 22
"""Sixteen zero bytes in base64: the client had no id yet, or the broker has no topic ids."""

_log: Final = logging.getLogger("librdkafka")


class Notices:
    """The ``logger`` of one client.

    Lines above debug level go to the process's log, as warnings at most: a client recovers by
    itself, and reports permanent errors to ``error_cb`` too.
    """

    def __init__(self, on_another_topic: Callable[[str], None]) -> None:
        self._on_another_topic = on_another_topic

    def log(self, level: int, text: str, *values: object) -> None:
        """Take one line, and report a changed topic id."""
        if level > logging.DEBUG:
            _log.log(min(level, logging.WARNING), text, *values)
            return
        changed = _CHANGED.search(text % values)
        if changed is not None and changed[1] != _NO_ID:
            self._on_another_topic(f"the topic is another one, {changed[2]} and not {changed[1]}")


READ_BATCH: Final = 2000
FOLLOW_BATCH: Final = 500
"""Most records passed to the event loop at once: it runs no other task while it takes them."""
TIMEOUT_S: Final = 10.0
FLUSH_TIMEOUT_S: Final = 5.0
LAST_POLL_S: Final = 1.0
"""Wait for further records before the end. Control records at the end are never delivered."""

_PRODUCER: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "compression.type": "none",
    "message.max.bytes": 8_388_608,
    "delivery.timeout.ms": 30_000,
    "queue.buffering.max.messages": 200_000,
    # The reader resolves every record (docs/decisions/078-records-resolved-by-reading-alone.md), so
    # a report of success would only cost time.
    "delivery.report.only.error": True,
}
_CONSUMER: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "check.crcs": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 50,
    "fetch.message.max.bytes": 8_388_608,
    "queued.min.messages": 20_000,
    # Pause before the client fetches again after a full queue. The default of 1 s halved the speed
    # of a replay.
    "fetch.queue.backoff.ms": 50,
    "enable.partition.eof": False,
    "reconnect.backoff.ms": 50,
}
LOOK_TIMEOUT_S: Final = 3.0
"""Limit of each request of a look. A look that fails is repeated with new clients."""
UNREACHABLE_EVERY_S: Final = 10.0
"""Shortest time between two suspicions for an unreachable or refusing broker. The client retries
all the time and reports each failure. Without this limit a new suspicion would come before the last
one is answered, and the suspicion would never end."""
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001 - librdkafka's own names
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
    }
)
_LOOKER: Final[dict[str, Any]] = {
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 65_536,
    "queued.min.messages": 1,
}
"""Settings for the read of a single record, without the records behind it."""


class TopicMissingError(KafkaException):
    """The brokers have no topic of this name."""

    def __init__(self, topic: str, cause: KafkaError) -> None:
        super().__init__(cause)
        self._topic = topic

    def __str__(self) -> str:
        return f"the topic {self._topic} is not there"


class KafkaLog:
    """One process's access to a topic of one partition; ``port`` states the contract.

    Create it inside the event loop that runs the callbacks of ``follow``.
    """

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._client = brokers.client()
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._producer: Producer | None = None
        self._to_send: list[dict[str, Any]] = []
        # One thread: the call of a cancelled caller continues to run, and a client must not run two
        # calls at a time.
        self._asking = ThreadPoolExecutor(1, f"ends-{topic}")
        self._refusals = Refusals()
        self._prober = Prober(brokers, self._stop, self._refusals)
        # Reads of the past have their own thread and prober: barriers wait for looks, and a look
        # must not queue behind a long read.
        self._reading = ThreadPoolExecutor(1, f"read-{topic}")
        self._reading_prober = Prober(brokers, self._stop, self._refusals)
        self._reader: Consumer | None = None
        self._looker: Consumer | None = None
        self._admin: AdminClient | None = None

    def append(self, value: bytes, key: bytes | None = None) -> None:
        if not self._to_send:
            self._loop.call_soon(self._send)
        self._to_send.append({"value": value, "key": key} if key else {"value": value})

    async def ends(self) -> Ends:
        return await self._loop.run_in_executor(self._asking, self._prober.ends, self._topic)

    async def look(self, offset: int | None) -> TopicProbe:
        if self._stop.is_set():
            raise TimeoutError(f"reading {self._topic} was ended")
        return await self._loop.run_in_executor(self._asking, self._look, offset)

    def follow(
        self,
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt = ignore,
        has_room: HasRoom = always,
    ) -> None:
        hand_over = HandOver(self._loop, on_records, self._stop)
        self._start_thread(self._follow, offset, hand_over, on_error, on_doubt, has_room)

    async def read(self, offset: int, limit: int) -> list[Record]:
        return await self._loop.run_in_executor(self._reading, self._read, offset, limit)

    async def close(self) -> None:
        # The order matters: send before the producer's thread stops, and close the consumers only
        # after the threads that use them have ended.
        self._send()
        self._stop.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, TIMEOUT_S)
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, FLUSH_TIMEOUT_S)
        for executor in (self._asking, self._reading):
            await asyncio.to_thread(executor.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._close_consumers)

    def _send(self) -> None:
        """Pass the records of one turn of the event loop to the producer, as one batch.

        A batch wakes the broker's thread once. Records that do not fit into the producer's queue
        are lost, as the contract of ``append`` allows.
        """
        batch, self._to_send = self._to_send, []
        if not batch:
            return
        producer = self._producer or self._start_producer()
        # The reader detects lost records. The first record still has a callback: a broker that
        # refuses this process refuses the whole batch, and only a delivery report gives the reason.
        batch[0]["callback"] = self._on_undelivered
        if producer.produce_batch(self._topic, batch, partition=0) < len(batch):
            refused = next(m["_error"] for m in batch if "_error" in m)
            if is_fatal(refused):
                self._producer = None  # librdkafka needs a new producer after such an error

    def _on_undelivered(self, error: KafkaError | None, _: Message) -> None:
        """Called for failures only (``delivery.report.only.error``)."""
        if error is not None:
            DELIVERIES.fail(self._topic, error)
            self._refusals(error)

    def _start_thread(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=f"log-{self._topic}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start_producer(self) -> Producer:
        self._producer = Producer({**self._client, **_PRODUCER, "error_cb": self._refusals})
        self._start_thread(self._serve_producer, self._producer)
        return self._producer

    def _serve_producer(self, producer: Producer) -> None:
        while not self._stop.is_set() and producer is self._producer:
            try:
                producer.poll(0.1)
            except KafkaException as error:  # a fatal error: the next append creates a producer
                self._refusals.why(error)
                return

    def _consumer(self, **more: object) -> Consumer:
        return Consumer(
            {
                **self._client,
                **_CONSUMER,
                "error_cb": self._refusals,
                "group.id": "stele-unused",
                **more,
            }
        )

    def _close_consumers(self) -> None:
        for prober in (self._prober, self._reading_prober):
            prober.close()
        for consumer in (self._reader, self._looker):
            if consumer is not None:
                consumer.close()

    def _look(self, offset: int | None) -> TopicProbe:
        """Look once, and drop the clients if that fails: they may keep asking a dead leader.

        A missing topic is not a failure of the clients. Raises TimeoutError, KafkaException.
        """
        try:
            return self._look_once(offset)
        except TopicMissingError:
            raise
        except (KafkaException, TimeoutError) as error:
            looker, admin, self._looker, self._admin = self._looker, self._admin, None, None
            why = self._refusals.why(error, admin)
            if looker is not None:
                looker.close()
            if self._refusals.newest:
                raise TimeoutError(f"the brokers do not show {self._topic}: {why}") from error
            raise

    def _look_once(self, offset: int | None) -> TopicProbe:
        topic_id = self._ask_topic_id()
        end = self._prober.end(self._topic)
        if offset is None or offset >= end:
            return TopicProbe(topic_id, end, None)
        value = self._read_one(offset)
        if value is not None:
            return TopicProbe(topic_id, end, value, 0)
        begin = self._prober.ends(self._topic).begin
        if begin <= offset:
            # The consumer may have delivered the error of the offset that was read before. A record
            # that only seems to be gone would stop the reader, so ask once more.
            value = self._read_one(offset)
        return TopicProbe(topic_id, end, value, begin)

    def _ask_topic_id(self) -> str:
        """Ask the brokers' metadata, not a client's cache, for the topic id.

        Raises TopicMissingError, TimeoutError, KafkaException.
        """
        if self._admin is None:  # not its truth value: an idle client has length 0 and is false
            self._admin = AdminClient(self._client | {"error_cb": self._refusals})
        asked = self._admin.describe_topics(
            TopicCollection([self._topic]), request_timeout=LOOK_TIMEOUT_S
        )
        try:
            return str(answer_of(asked[self._topic], LOOK_TIMEOUT_S).topic_id)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicMissingError(self._topic, cause) from error
            raise

    def _read_one(self, offset: int) -> bytes | None:
        """Return the record at the offset from the current leader; None when there is none."""
        if self._looker is None:
            self._looker = self._consumer(**_LOOKER)
        looker = self._looker
        # Refresh the metadata: a cached leader may have been replaced, and its log may be older.
        looker.list_topics(self._topic, timeout=LOOK_TIMEOUT_S)
        looker.assign([TopicPartition(self._topic, 0, offset)])
        try:
            message = looker.poll(LOOK_TIMEOUT_S)
            if message is None:
                raise TimeoutError(
                    f"{self._topic} did not give offset {offset} in {LOOK_TIMEOUT_S:g} s"
                )
            error = message.error()
            if error is not None:
                if is_gone(error):
                    return None
                raise KafkaException(error)
            return (message.value() or b"") if message.offset() == offset else None
        finally:
            looker.unassign()

    def _read(self, offset: int, limit: int) -> list[Record]:
        """Read once, and drop the client after a TimeoutError or KafkaException, as a look does.

        Raises OffsetGoneError, TimeoutError, KafkaException.
        """
        try:
            return self._read_once(offset, limit)
        except (KafkaException, TimeoutError):
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
            raise

    def _read_once(self, offset: int, limit: int) -> list[Record]:
        ends = self._reading_prober.ends(self._topic)
        if offset < ends.begin:
            text = f"the topic begins at {ends.begin}. Begin with a snapshot."
            raise OffsetGoneError(offset, text)
        end = min(ends.end, offset + limit)
        if offset >= end:
            return []
        if self._reader is None:
            self._reader = self._consumer(**{"fetch.wait.max.ms": 10})
        consumer, found = self._reader, list[Record]()
        consumer.list_topics(self._topic, timeout=LOOK_TIMEOUT_S)  # refreshes the leader
        consumer.assign([TopicPartition(self._topic, 0, offset)])
        try:
            while not found or found[-1].offset + 1 < end:
                first = consumer.poll(TIMEOUT_S if not found else LAST_POLL_S)
                if first is None and not found:
                    raise TimeoutError(f"{self._topic} did not give offset {offset} of {end}")
                if first is None:
                    break
                found.extend(_records([first, *consumer.consume(READ_BATCH, 0)], _raise))
        finally:
            consumer.unassign()
        return [record for record in found if record.offset < end]

    def _follow(
        self,
        offset: int,
        hand_over: HandOver,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt,
        has_room: HasRoom,
    ) -> None:
        unreachable_s = -UNREACHABLE_EVERY_S

        def on_trouble(error: KafkaError) -> None:
            nonlocal unreachable_s
            self._refusals(error)
            refused = refusal(error)
            if refused or error.code() in _UNREACHABLE:
                if time.monotonic() - unreachable_s < UNREACHABLE_EVERY_S:
                    return
                unreachable_s = time.monotonic()
            call_in(self._loop, on_doubt, f"the consumer says: {refused or error.str()}")

        notices = Notices(partial(call_in, self._loop, on_doubt))
        consumer = self._consumer(error_cb=on_trouble, debug=DEBUG, logger=notices)
        clocks = ClockJumpDetector()
        consumer.assign([TopicPartition(self._topic, 0, offset)])
        try:
            while not self._stop.is_set():
                first = consumer.poll(0.2)
                messages = [] if first is None else [first, *consumer.consume(FOLLOW_BATCH, 0)]
                # Report the pause before the records: calls into the loop keep their order, so the
                # reader holds back everything that arrived after the pause.
                pause_s = clocks.elapsed_s()
                if pause_s > LONGEST_PAUSE_S:
                    call_in(
                        self._loop, on_doubt, f"the reading thread was away for {pause_s:.1f} s"
                    )
                if messages:
                    records = _records(messages, on_trouble)
                    if records:
                        hand_over.fetched(records)
                    # Block this thread: the client's queue fills, and it stops fetching.
                    while not has_room() and not self._stop.wait(ROOM_POLL_S):
                        pass
                    clocks.elapsed_s()  # the wait for room is not a pause of the process
        except Exception as error:  # any error that ends reading must reach the reader
            call_in(self._loop, on_error, error)
        finally:
            consumer.close()


def is_fatal(error: KafkaError) -> bool:
    """Return whether librdkafka needs a new client after this error."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's name


def _raise(error: KafkaError) -> None:
    raise KafkaException(error)


def is_gone(error: KafkaError) -> bool:
    """Return whether the error means that there is no record at the offset."""
    return error.code() in (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own name for it
    )


def _records(batch: list[Message], on_trouble: Callable[[KafkaError], None]) -> list[Record]:
    """Return the records of a batch, and pass errors that the client survives to ``on_trouble``.

    Raises OffsetGoneError, and KafkaException for errors that end the client.
    """
    found = list[Record]()
    for message in batch:
        error = message.error()
        if error is None:
            found.append(Record(message.offset() or 0, message.value() or b""))
        elif is_gone(error):
            raise OffsetGoneError(message.offset() or 0, f"{error.str()}. Begin with a snapshot.")
        elif is_fatal(error):
            raise KafkaException(error)
        else:
            on_trouble(error)
    return found
