"""Commands that come through Kafka: ``commands`` in, ``outcomes`` out, each keyed by request id.

A consumer group assigns the topic to one instance. An offset is committed only once the outcomes of
all commands before it are on the broker. A command may thus be read twice but is never lost. The
request id ensures that it has one outcome. Malformed records are answered or counted, and never
stop the reading.
"""

import asyncio
import threading
import time
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from structlog.stdlib import BoundLogger

from stele.domain.commands import Envelope, Outcome, Rejection
from stele.log.codec import (
    DecodeError,
    SchemaIds,
    decode_envelope,
    encode_outcome,
    schema_ids,
    unframed,
)
from stele.log.deliveries import DELIVERIES, Refusals
from stele.log.flows import flow_topic
from stele.log.loops import call_in
from stele.log.record_builder import Pending
from stele.metadata_log import metrics
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import BusyError, ReaderStoppedError, Writer
from stele.runtime.group import GroupMembership
from stele.runtime.logs import get_logger
from stele.runtime.settings import ConfigurationError

log: BoundLogger = get_logger(__name__)

MAX_OUTSTANDING: Final = 2000
"""Limit of commands that were read and not answered yet. The rest stays in the topic."""
BATCH: Final = 500
COMMIT_EVERY_S: Final = 0.5
RETRY_BUSY_S: Final = 0.02
IDLE_POLL_S: Final = 0.1
BUSY_POLL_S: Final = 0.01
JOIN_TIMEOUT_S: Final = 10.0
FLUSH_TIMEOUT_S: Final = 3.0
MAX_KEY_CHARS: Final = 128


class Received(NamedTuple):
    """A record of the commands topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes


class PartitionProgress:
    """Tracks up to which offset one partition is answered without a gap.

    Used by the consumer's thread alone.
    """

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()
        self.position = -1
        """The offset to commit, or -1 while there is none."""
        self.committed = -1

    @property
    def outstanding(self) -> int:
        return len(self._taken)

    def take(self, offset: int) -> None:
        self._taken.append(offset)

    def done(self, offset: int) -> None:
        if not self._taken or offset < self._taken[0]:
            return  # an answer for a closed consumer
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            first = self._taken.popleft()
            self._done.discard(first)
            self.position = first + 1


class CommandsTopic:
    """Feeds the writer from the topic. Create and start it in the writer's event loop."""

    def __init__(self, settings: MetadataLogSettings, writer: Writer) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._topic = flow_topic(settings.cluster, "commands")
        self._outcomes = flow_topic(settings.cluster, "outcomes")
        self._progress: dict[int, PartitionProgress] = {}
        self._to_send: list[dict[str, Any]] = []
        self._to_submit: deque[Received] = deque()
        """Records that were read but not submitted to the writer, in order.

        Only the event loop uses it.
        """
        self._settings = settings
        self._schema_ids = _schema_ids(settings)
        self._membership = GroupMembership(self._stop)
        self._refusals = Refusals()
        self._producer = Producer(_producer_settings(settings) | {"error_cb": self._refusals})
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)

    @property
    def failure(self) -> str:
        """Reason why commands are not read. Empty while this or another instance reads them."""
        return self._membership.failure

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_TIMEOUT_S)

    # -- the consumer's thread --

    def _run(self) -> None:
        self._membership.keep(self._read)
        self._producer.flush(FLUSH_TIMEOUT_S)

    def _read(self) -> None:
        """Run one consumer until it ends.

        Raises KafkaException. Commands without an outcome are read again.
        """
        self._progress.clear()
        consumer = Consumer(
            _consumer_settings(self._settings) | {"error_cb": self._membership.refused}
        )
        try:
            consumer.subscribe([self._topic], on_revoke=self._revoked, on_lost=self._lost)
            committed_s = time.monotonic()
            while not self._stop.is_set() and self._writer.failure is None:
                self._read_some(consumer)
                if time.monotonic() - committed_s >= COMMIT_EVERY_S:
                    self._commit(consumer, asynchronous=True)
                    committed_s = time.monotonic()
            # Flush first: only offsets whose outcomes are on the broker are committed.
            self._producer.flush(FLUSH_TIMEOUT_S)
            self._commit(consumer, asynchronous=False)
        finally:
            consumer.close()

    def _read_some(self, consumer: Consumer) -> None:
        self._producer.poll(0)
        outstanding = sum(progress.outstanding for progress in self._progress.values())
        if outstanding >= MAX_OUTSTANDING:
            self._producer.poll(BUSY_POLL_S)
            return
        first = consumer.poll(BUSY_POLL_S if outstanding else IDLE_POLL_S)
        messages = [] if first is None else [first, *consumer.consume(BATCH, 0)]
        self._membership.look_at(consumer, None)
        taken = (self._received(consumer, message) for message in messages)
        batch = [received for received in taken if received is not None]
        if not batch:
            return
        for received in batch:
            self._progress.setdefault(received.partition, PartitionProgress()).take(received.offset)
        call_in(self._loop, self._submit, batch)

    def _received(self, consumer: Consumer, message: Message) -> Received | None:
        """Return the record, or None for a passing error.

        Raises KafkaException for an error that ends the consumer.
        """
        error = message.error()
        if error is not None:
            self._membership.look_at(consumer, error)
            log.warning("reading commands", why=str(error))
            return None
        return Received(
            message.partition() or 0,
            message.offset() or 0,
            message.key(),
            message.value() or b"",
        )

    def _commit(self, consumer: Consumer, *, asynchronous: bool) -> None:
        ready = {n: p for n, p in self._progress.items() if p.position > p.committed}
        if not ready:
            return
        offsets = [TopicPartition(self._topic, n, p.position) for n, p in ready.items()]
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
            else:
                consumer.commit(offsets=offsets, asynchronous=False)
            for progress in ready.values():
                progress.committed = progress.position
        except KafkaException as error:
            log.warning("offsets of commands were not committed", why=str(error))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Commit before the next owner starts, or it reads commands that are answered already.
        self._commit(consumer, asynchronous=False)
        self._lost(consumer, partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._progress.pop(partition.partition, None)

    def _delivered(
        self,
        partition: int,
        offset: int,
        key: str,
        value: bytes,
        error: KafkaError | None,
        _: Message,
    ) -> None:
        """Handle a delivery report.

        Only ``poll`` of the producer calls it, and only this thread calls ``poll``.
        """
        if error is not None:
            DELIVERIES.fail(self._outcomes, error)
            self._refusals(error)
            log.warning(
                "an outcome was not delivered; sending again", request_id=key, why=str(error)
            )
            call_in(self._loop, self._send, partition, offset, key, value)
            return
        progress = self._progress.get(partition)
        if progress is not None:
            progress.done(offset)

    # -- the event loop --

    def _submit(self, batch: list[Received]) -> None:
        """Submit commands in order.

        While the writer is busy, later ones queue behind earlier ones.
        """
        waits = bool(self._to_submit)
        self._to_submit.extend(batch)
        if not waits:
            self._submit_all()

    def _submit_all(self) -> None:
        while self._to_submit:
            try:
                self._submit_one(self._to_submit[0])
            except BusyError:
                self._loop.call_later(RETRY_BUSY_S, self._submit_all)
                return
            except ReaderStoppedError:
                return  # they stay in the topic for an instance that can read the log
            self._to_submit.popleft()

    def _submit_one(self, received: Received) -> None:
        try:
            envelope = decode_envelope(unframed(received.value, self._schema_ids))
        except DecodeError as error:
            self._refuse(received, error)
            return
        pending = self._writer.submit(envelope)
        pending.add_done_callback(partial(self._reply, received.partition, received.offset))

    def _reply(self, partition: int, offset: int, pending: Pending) -> None:
        if pending.cancelled():
            return
        error = pending.exception()
        if error is not None:
            # The command stays in the topic, for an instance that can read the log.
            if not isinstance(error, ReaderStoppedError):
                log.error("a command has no outcome", offset=offset, exc_info=error)
            return
        outcome = pending.result()
        if (
            len(outcome.request_id) > MAX_KEY_CHARS
        ):  # not an id of ours, and echoing it may exceed limits
            outcome = msgspec.structs.replace(
                outcome, request_id=outcome.request_id[:MAX_KEY_CHARS]
            )
        self._send(partition, offset, outcome.request_id, encode_outcome(outcome))

    def _refuse(self, received: Received, error: DecodeError) -> None:
        """Answer a record that is no command, if its key can be a request id.

        It never blocks the topic.
        """
        request_id = _text(received.key)
        metrics.malformed_commands.labels("yes" if request_id else "no").inc()
        log.warning(
            "a record of the commands topic is no command",
            offset=received.offset,
            request_id=request_id,
            why=str(error),
        )
        code = "unknown_schema" if error.unknown_schema else "malformed_command"
        rejection = Rejection(
            code,
            f"The record at offset {received.offset} of the commands topic is no command: {error}.",
            "Encode commands as Avro with this cluster's schema of Envelope.",
            {"offset": str(received.offset)},
        )
        image = self._writer.image
        outcome = Outcome(
            request_id=request_id,
            applied=False,
            epoch=image.epoch,
            state_id=image.state_id,
            rejection=rejection,
            log_id=image.log_id,
            taken=False,
        )
        metrics.rejections.labels(code).inc()
        self._send(received.partition, received.offset, request_id, encode_outcome(outcome))

    def _send(self, partition: int, offset: int, key: str, value: bytes) -> None:
        if not self._to_send:
            self._loop.call_soon(self._produce)
        on_delivery = partial(self._delivered, partition, offset, key, value)
        self._to_send.append({"value": value, "key": key.encode(), "callback": on_delivery})

    def _produce(self) -> None:
        """Hand over the outcomes of one turn of the loop as one batch. The rest is retried."""
        batch, self._to_send = self._to_send, []
        if self._producer.produce_batch(self._outcomes, batch) < len(batch):
            left = [message for message in batch if message.pop("_error", None) is not None]
            self._loop.call_later(RETRY_BUSY_S, self._produce_again, left)

    def _produce_again(self, messages: list[dict[str, Any]]) -> None:
        if not self._to_send:
            self._loop.call_soon(self._produce)
        self._to_send.extend(messages)


def _schema_ids(settings: MetadataLogSettings) -> SchemaIds:
    """Parse the schema ids of the settings. Raises ConfigurationError."""
    try:
        return schema_ids(settings.command_schema_ids, Envelope.__name__)
    except ValueError as error:
        raise ConfigurationError(f"STELE_COMMAND_SCHEMA_IDS: {error}") from error


def _text(key: bytes | None) -> str:
    """Return the key as a request id; empty when it cannot be one."""
    text = (key or b"").decode(errors="replace")
    return text if len(text) <= MAX_KEY_CHARS else ""


def _consumer_settings(settings: MetadataLogSettings) -> dict[str, Any]:
    session_ms = int(settings.commands_session_timeout_s * 1000)
    return {
        **settings.brokers.client(),
        "group.id": f"stele.{settings.cluster}.metadata-log",
        # A restart under the same name takes its partition back at once.
        "group.instance.id": settings.instance_id,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 4,
        "enable.auto.commit": False,
        # A group that never committed, or whose offset has expired, must not miss what is there.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
        "fetch.min.bytes": 1,
        "fetch.error.backoff.ms": 50,
    }


def _producer_settings(settings: MetadataLogSettings) -> dict[str, Any]:
    return {
        **settings.brokers.client(),
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0,
        # Outcomes that arrive while a batch is in flight form the next batch: a fifth more under
        # load.
        "max.in.flight": 1,
        "delivery.timeout.ms": int(settings.kafka_timeout_s * 1000),
        "partitioner": "murmur2_random",
    }
