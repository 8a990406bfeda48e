"""The log on Kafka: one topic of one partition. confluent-kafka in threads, callbacks in the event loop.

Every setting that matters is written here; why is in docs/performance.md and docs/services/log.md.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

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

from stele.log.admin import answer_of
from stele.log.brokers import Brokers
from stele.log.ends import Prober
from stele.log.errors import OffsetGoneError
from stele.log.hand_over import HandOver
from stele.log.loops import call_in
from stele.log.notices import DEBUG, Notices
from stele.log.port import (
    ROOM_POLL_S,
    Ends,
    HasRoom,
    Look,
    OnDoubt,
    OnRecords,
    Record,
    always,
    ignore,
)
from stele.log.pulse import LONGEST_PAUSE_S, Moment, Pulse
from stele.log.refusals import Refusals, refusal

READ_BATCH: Final = 2000
FOLLOW_BATCH: Final = 500
"""Most records handed to the event loop at once: the process answers nobody while it takes them."""
MOST_REPORTED: Final = 4
"""More records of one turn than this are not worth a report each: they are fetched together."""
TIMEOUT_S: Final = 10.0
FLUSH_TIMEOUT_S: Final = 5.0
LAST_POLL_S: Final = 1.0
"""Wait for what the log's end promises; control records at the end would never come."""

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
    "check.crcs": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 50,
    "fetch.message.max.bytes": 8_388_608,
    "queued.min.messages": 20_000,
    # A full queue is looked at again after this; the default of 1 s halved the speed of a replay.
    "fetch.queue.backoff.ms": 50,
    "enable.partition.eof": False,
    "reconnect.backoff.ms": 50,
}
LOOK_TIMEOUT_S: Final = 3.0
"""For each of a look's questions. One that fails is asked anew, by new clients."""
UNREACHABLE_EVERY_S: Final = 10.0
"""A broker that stays away, or refuses this process, is tried again all the time, and each failure is told. It
is a reason to look at the log once, and now and then; a new doubt before the last one is settled would never
let it be."""
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
"""One record is wanted, not what follows it."""


class TopicMissingError(KafkaException):
    """The brokers have no topic of this name."""

    def __init__(self, topic: str, cause: KafkaError) -> None:
        super().__init__(cause)
        self._topic = topic

    def __str__(self) -> str:
        return f"the topic {self._topic} is not there"


class KafkaLog:
    """One process's access to a topic of one partition; see the port for the contract.

    Make it inside the event loop that ``follow``'s callbacks are to run in.
    """

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._client = brokers.client()
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._producer: Producer | None = None
        self._to_send: list[dict[str, Any]] = []
        self._hand_over: HandOver | None = None
        # A thread each: a caller that has gone away leaves its question running, and no two may be.
        self._asking = ThreadPoolExecutor(1, f"ends-{topic}")
        self._refusals = Refusals()
        self._prober = Prober(brokers, self._stop, self._refusals)
        # What reads the past asks for itself: a look, which a barrier waits for, must not stand behind it.
        self._reading = ThreadPoolExecutor(1, f"read-{topic}")
        self._reading_prober = Prober(brokers, self._stop, self._refusals)
        self._reader: Consumer | None = None
        self._looker: Consumer | None = None
        self._admin: AdminClient | None = None

    def append(self, value: bytes, key: bytes | None = None) -> None:
        if not self._to_send:
            self._loop.call_soon(self._send)
        self._to_send.append({"value": value, "key": key} if key else {"value": value})

    async def end_offset(self) -> int:
        return await self._loop.run_in_executor(self._asking, self._prober.end, self._topic)

    async def ends(self) -> Ends:
        """Where the topic begins and ends. Raises TimeoutError."""
        return await self._loop.run_in_executor(self._asking, self._prober.ends, self._topic)

    async def look(self, offset: int | None) -> Look:
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
        hand_over = HandOver(self._loop, offset, on_records, has_room, self._stop)
        self._hand_over = hand_over
        self._start_thread(self._follow, offset, hand_over, on_error, on_doubt, has_room)

    async def read(self, offset: int, limit: int) -> list[Record]:
        return await self._loop.run_in_executor(self._reading, self._read, offset, limit)

    async def close(self) -> None:
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
        """Hand over what one turn of the loop appended: one batch costs the broker's thread one wake-up.

        What the producer does not take, because too much is on its way, is lost; the contract allows it.
        """
        batch, self._to_send = self._to_send, []
        if not batch:
            return
        producer = self._producer or self._start_producer()
        if self._hand_over is not None and len(batch) <= MOST_REPORTED:
            sent = Moment.now()
            for each in batch:
                each["callback"] = partial(
                    _reported, self._refusals, self._hand_over, each["value"], sent
                )
        if producer.produce_batch(self._topic, batch, partition=0) < len(batch):
            refused = next(m["_error"] for m in batch if "_error" in m)
            if is_fatal(refused):
                self._producer = None  # librdkafka wants a new one after such an error

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
            except KafkaException as error:  # its end: what is appended makes another one
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

    def _look(self, offset: int | None) -> Look:
        """Raises TimeoutError, KafkaException. Clients that failed may hold on to a leader that is dead; that
        the topic is not there is no failure of theirs.
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

    def _look_once(self, offset: int | None) -> Look:
        topic_id = self._ask_topic_id()
        end = self._prober.end(self._topic)
        if offset is None or offset >= end:
            return Look(topic_id, end, None)
        value = self._read_one(offset)
        begin = 0 if value is not None else self._prober.ends(self._topic).begin
        return Look(topic_id, end, value, begin)

    def _ask_topic_id(self) -> str:
        """Of the controller's metadata, never of what a client remembers. Raises TopicMissingError."""
        if self._admin is None:  # one with nothing to deliver has length 0, and is false
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
        """The record at the offset, from the leader of now; None when it is not there."""
        if self._looker is None:
            self._looker = self._consumer(**_LOOKER)
        looker = self._looker
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
        """Raises OffsetGoneError, TimeoutError, KafkaException; the last two cost the client, as in a look."""
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
        consumer.list_topics(self._topic, timeout=LOOK_TIMEOUT_S)  # who leads now
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
        pulse = Pulse()
        consumer.assign([TopicPartition(self._topic, 0, offset)])
        try:
            while not self._stop.is_set():
                first = consumer.poll(0.2)
                messages = [] if first is None else [first, *consumer.consume(FOLLOW_BATCH, 0)]
                pause_s = pulse.beat()
                if pause_s > LONGEST_PAUSE_S:
                    call_in(
                        self._loop, on_doubt, f"the reading thread was away for {pause_s:.1f} s"
                    )
                if messages:
                    records = _records(messages, on_trouble)
                    if records:
                        hand_over.fetched(records)
                    while not has_room() and not self._stop.wait(ROOM_POLL_S):
                        pass
                    pulse.beat()  # waiting for whoever takes them is no pause
        except Exception as error:  # whatever ends reading must be told
            hand_over.end()
            call_in(self._loop, on_error, error)
        finally:
            consumer.close()


def _reported(
    refusals: Refusals,
    hand_over: HandOver,
    value: bytes,
    sent: Moment,
    error: KafkaError | None,
    message: Message,
) -> None:
    """A record that its producer gives up is no news here, unless it was refused: what became of it is read in
    the log.
    """
    offset = message.offset()
    if error is not None:
        refusals(error)
    elif offset is not None and offset >= 0:
        hand_over.reported(offset, value, sent)


def is_fatal(error: KafkaError) -> bool:
    """Librdkafka wants a new client after such an error."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's name


def _raise(error: KafkaError) -> None:
    raise KafkaException(error)


def is_gone(error: KafkaError) -> bool:
    """There is no record at the offset."""
    return error.code() in (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own name for it
    )


def _records(batch: list[Message], on_trouble: Callable[[KafkaError], None]) -> list[Record]:
    """Raises OffsetGoneError, and KafkaException for other errors that end the client."""
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
