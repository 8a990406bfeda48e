"""Kafka's clients as simulated processes have them, in place of confluent-kafka's classes."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

from stele_simulator.kernel import us
from stele_simulator.processes.broker import (
    BROKER,
    EPOCHS,
    FLOWS,
    FlowTopic,
    Kafka,
    Kept,
    LogTopic,
    Mine,
)
from stele_simulator.processes.threads import Strand

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine

T = TypeVar("T")

RETRY_S: Final = 0.2
MAX_FETCH: Final = 500
MAX_BATCH: Final = 16
"""Most records of the log in one fetch of a follower: a replay is interrupted by other events."""
COMMIT_S: Final = 3.0
"""How long a commit of offsets is waited for."""
FOLLOWS: Final = "log-"
READS: Final = "read-"
"""Beginnings of the names of ``KafkaLog``'s threads: the one that follows, and the one of repeated reads."""

OnPartitions = Callable[["Consumer", list[TopicPartition]], None]


class Message:
    def __init__(
        self, offset: int, key: bytes | None, value: bytes, error: KafkaError | None = None
    ):
        self._offset = offset
        self._key = key
        self._value = value
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return self._value


class _Client:
    """A client of one life of a machine's process."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._incarnation = machine.incarnation
        self._kafka: Kafka = machine.world.kafka
        self._kernel = self._kafka.kernel

    @property
    def _lives(self) -> bool:
        return self._machine.alive and self._machine.incarnation == self._incarnation

    def _delay_us(self) -> int:
        network = self._kafka.network
        return network.delay_us(network.chance(BROKER.name, self._machine.name))

    def _reaches(self, block: str = FLOWS) -> bool:
        network, name = self._kafka.network, self._machine.name
        return network.reaches(name, BROKER.name) and network.reaches(name, block)

    def _is_reached(self, block: str = FLOWS) -> bool:
        network, name = self._kafka.network, self._machine.name
        return network.reaches(BROKER.name, name) and network.reaches(block, name)

    def _ask(
        self, find: Callable[[], T | None], then: Callable[[T], None], block: str = FLOWS
    ) -> None:
        """Call ``then`` in the process with the brokers' answer, or never. None: no broker answers."""

        def arrive() -> None:
            found = find()
            if found is not None and self._is_reached(block) and self._lives:
                self._kernel.at(self._kernel.now_us + self._delay_us(), self._machine, then, found)

        if self._reaches(block):
            self._kernel.at(self._kernel.now_us + self._delay_us(), None, arrive)

    def _wait_for(self, find: Callable[[], T | None], timeout_s: float, block: str = FLOWS) -> T:
        """Raises KafkaException when no answer comes in time."""
        strand, answers = Strand.running, list[T]()
        assert strand is not None, "a call that blocks is made in a thread"

        def answered(found: T) -> None:
            answers.append(found)
            strand.wake()

        self._ask(find, answered, block)
        deadline_us = self._kernel.now_us + us(timeout_s)
        while not answers and self._kernel.now_us < deadline_us:
            strand.wait_until(deadline_us)
        if not answers:
            self._machine.world.read_availability.cuts(self._machine.name, self._kernel.now_us)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return answers[0]


class Described(NamedTuple):
    topic_id: str


class AdminClient(_Client):
    """As ``confluent_kafka.admin.AdminClient``. A call returns when its futures are done."""

    def __init__(self, machine: "Machine", _: Mapping[str, Any]) -> None:
        super().__init__(machine)

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float
    ) -> dict[str, Future[Described]]:
        (name,) = topics.topic_names
        topic, answer = self._kafka.topic(name), Future[Described]()
        try:
            found = self._wait_for(lambda: Described(topic.topic_id), request_timeout, topic.block)
            answer.set_result(found)
        except KafkaException as error:
            answer.set_exception(error)
        return {name: answer}

    def poll(self, timeout: float) -> int:
        return 0


class _Sent(NamedTuple):
    topic: str
    kept: Kept
    until_us: int
    callback: Callable[[KafkaError | None, Message], None] | None


class Producer(_Client):
    """As ``confluent_kafka.Producer``: in order, each once, or given up after its time limit. Records of the
    log have the faults of ``LogTopic`` instead.
    """

    def __init__(self, machine: "Machine", settings: Mapping[str, Any]) -> None:
        super().__init__(machine)
        self._limit_us = us(float(settings["delivery.timeout.ms"]) / 1000)
        self._limit_bytes = int(settings.get("message.max.bytes", 1_000_000))
        self._waiting: list[_Sent] = []
        self._under_way: list[_Sent] = []
        self._reports: deque[tuple[_Sent, KafkaError | None]] = deque()
        self._poller: Strand | None = None

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        callback: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        """Raises KafkaException."""
        if len(value) > self._limit_bytes:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if not self._lives:
            return
        log = self._kafka.topic(topic)
        if isinstance(log, LogTopic):
            self._machine.world.releases.appends(self._machine, value)
            log.append(self._machine, value)
            return
        until_us = self._kernel.now_us + self._limit_us
        self._kafka.on_sent(self._machine, topic, (key or b"").decode(), value)
        self._waiting.append(_Sent(topic, Kept(key, value), until_us, callback))
        if not self._under_way:
            self._send()

    def produce_batch(
        self, topic: str, messages: Sequence[Mapping[str, Any]], partition: int = -1
    ) -> int:
        for each in messages:
            self.produce(topic, each["value"], each.get("key"), each.get("callback"))
        return len(messages)

    def poll(self, timeout: float = 0.0) -> int:
        """Calls back in the thread that polls."""
        deadline_us, strand = self._kernel.now_us + us(timeout), Strand.running
        while not self._reports and strand is not None and self._kernel.now_us < deadline_us:
            self._poller = strand
            strand.wait_until(deadline_us)
            self._poller = None
        served = len(self._reports)
        for _ in range(served):
            sent, error = self._reports.popleft()
            if sent.callback is not None:
                sent.callback(error, Message(0, sent.kept.key, sent.kept.value))
        return served

    def flush(self, timeout: float = 0.0) -> int:
        deadline_us = self._kernel.now_us + us(timeout)
        while self._left() and Strand.running is not None and self._kernel.now_us < deadline_us:
            self.poll((deadline_us - self._kernel.now_us) / 1e6)
        return self._left()

    def _left(self) -> int:
        return len(self._waiting) + len(self._under_way) + len(self._reports)

    def _send(self) -> None:
        """One request at a time, with all that waits."""
        self._under_way, self._waiting = self._waiting, []
        if self._under_way:
            self._try()

    def _try(self) -> None:
        if not self._lives:
            return
        now_us = self._kernel.now_us
        if not self._reaches():
            late = [sent for sent in self._under_way if sent.until_us <= now_us]
            self._under_way = [sent for sent in self._under_way if sent.until_us > now_us]
            self._report(late, KafkaError(KafkaError._MSG_TIMED_OUT))
            if self._under_way:
                self._kernel.at(now_us + us(RETRY_S), self._machine, self._try)
            else:
                self._send()
            return
        self._kernel.at(now_us + self._delay_us(), None, self._land, self._under_way)

    def _land(self, batch: list[_Sent]) -> None:
        for sent in batch:
            self._kafka.land(self._machine, sent.topic, sent.kept)
        if self._lives:
            self._kernel.at(
                self._kernel.now_us + self._delay_us(), self._machine, self._acknowledged
            )

    def _acknowledged(self) -> None:
        """Return a stored record without an acknowledgement, which is sent again and recognised as a
        duplicate.
        """
        if not self._is_reached():
            self._kernel.at(self._kernel.now_us + us(RETRY_S), self._machine, self._acknowledged)
            return
        self._report(self._under_way, None)
        self._send()

    def _report(self, batch: list[_Sent], error: KafkaError | None) -> None:
        self._reports.extend((sent, error) for sent in batch if sent.callback is not None)
        if self._reports and self._poller is not None:
            self._poller.wake()


class Partition(NamedTuple):
    id: int = 0


class TopicMetadata(NamedTuple):
    partitions: dict[int, Partition]
    error: KafkaError | None = None


class ClusterMetadata(NamedTuple):
    topics: dict[str, TopicMetadata]


class Consumer(_Client):
    """As ``confluent_kafka.Consumer``, with chosen partitions or those assigned by a group."""

    def __init__(self, machine: "Machine", settings: Mapping[str, Any]) -> None:
        super().__init__(machine)
        self._thread = "" if Strand.running is None else Strand.running.name
        self._on_error: Callable[[KafkaError], None] | None = settings.get("error_cb")
        self._logger = settings.get("logger")
        self._group = self._kafka.group(settings["group.id"])
        self._name = str(settings.get("group.instance.id", ""))
        self._session_us = us(float(settings.get("session.timeout.ms", 45_000)) / 1000)
        self._beat_us = us(float(settings.get("heartbeat.interval.ms", 3000)) / 1000)
        self._from_beginning = settings.get("auto.offset.reset") == "earliest"
        self._positions: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._paused: set[str] = set()
        self._fetching: set[str] = set()
        self._queue: deque[Message] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._poller: Strand | None = None
        self._closed = False
        self._topics: list[str] = []
        self._member_id = 0
        self._owned: set[str] = set()
        self._heard_us = 0
        self._on: dict[str, OnPartitions | None] = {}

    # -- reading

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
        """Raises KafkaException."""
        return self._wait_for(
            lambda: ClusterMetadata({topic: TopicMetadata({0: Partition()})}),
            timeout,
            self._kafka.topic(topic).block,
        )

    def offsets_for_times(
        self, wanted: Sequence[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """Return the first offset or the end of one topic. Raises KafkaException."""
        (asked,) = wanted
        topic, reads = self._kafka.topic(asked.topic), self._thread.startswith(READS)

        def found() -> int | None:
            if asked.offset != OFFSET_BEGINNING:
                return topic.end_for(self._machine.name, reads=reads)
            return topic.begin if topic.has_leader else None

        offset = self._wait_for(found, timeout, topic.block)
        return [TopicPartition(asked.topic, asked.partition, offset)]

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.unassign()
        self.incremental_assign([each for each in partitions if each.partition == 0])

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            topic = self._kafka.topic(each.topic)
            self._positions[each.topic] = max(0, each.offset)
            self._topic_ids[each.topic] = topic.topic_id
            topic.readers[self] = None
            self.fetch_soon(each.topic)

    def unassign(self) -> None:
        """Drop the fetched records. Errors are still delivered, as librdkafka does."""
        for name in self._positions:
            self._kafka.topic(name).readers.pop(self, None)
        self._positions = {}
        self._queue = deque(message for message in self._queue if message.error() is not None)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(each.topic for each in partitions)

    def poll(self, timeout: float) -> Message | None:
        """Calls back in the thread that polls."""
        strand, deadline_us = Strand.running, self._kernel.now_us + us(timeout)
        while True:
            while self._calls:
                self._calls.popleft()()
            if self._queue:
                return self._queue.popleft()
            if strand is None or self._kernel.now_us >= deadline_us:
                return None
            self._poller = strand
            strand.wait_until(deadline_us)
            self._poller = None

    def consume(self, most: int, timeout: float) -> list[Message]:
        return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def close(self) -> None:
        """A member with a name does not leave its group."""
        self._closed = True
        self.unassign()

    def fetch_soon(self, name: str) -> None:
        if name not in self._fetching and name not in self._paused:
            self._fetching.add(name)
            self._kernel.at(self._kernel.now_us + self._delay_us(), None, self._fetch, name)

    def disconnect(self, name: str) -> None:
        """The leader of the topic closes the connection. The consumer reports it and connects again."""
        self._kernel.at(self._kernel.now_us + self._delay_us(), None, self._report_disconnect)
        self.fetch_soon(name)

    def _report_disconnect(self) -> None:
        self._call_back(self._on_error, KafkaError(KafkaError._TRANSPORT, "disconnected"))

    def _call_back(self, callback: Callable[..., None] | None, *args: Any) -> None:
        """Have the thread that polls call this."""
        if callback is not None and not self._closed and self._lives:
            self._calls.append(partial(callback, *args))
            self._wake()

    def _fetch(self, name: str) -> None:
        self._fetching.discard(name)
        topic = self._kafka.topic(name)
        if self._closed or not self._lives or name not in self._positions:
            topic.readers.pop(self, None)
            return
        if name in self._paused:
            return
        is_cut = not (self._reaches(topic.block) and self._is_reached(topic.block))
        if is_cut or self._is_deaf() or not topic.has_leader:
            if is_cut:
                self._report_disconnect()
            self._fetching.add(name)
            self._kernel.at(self._kernel.now_us + us(RETRY_S), None, self._fetch, name)
            return
        first = self._positions[name]
        if topic.topic_id != self._topic_ids[name]:
            self._find_topic_again(name, topic.topic_id)
        elif not topic.begin <= first <= topic.high:
            gone = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range")
            del self._positions[name]
            self._queue.append(Message(first, None, b"", gone))
            self._wake()
        else:
            found = topic.kept(first, first + self._fetch_size(topic))
            self._positions[name] = first + len(found)
            self._queue.extend(Message(first + i, *kept) for i, kept in enumerate(found))
            if found:
                self._wake()
                self.fetch_soon(name)

    def _is_deaf(self) -> bool:
        """Whether fetches of the log are late. Looks and repeated reads have consumers of their own."""
        network, name = self._kafka.network, self._machine.name
        return self._thread.startswith(FOLLOWS) and not network.reaches(EPOCHS, name)

    def _fetch_size(self, topic: FlowTopic | LogTopic) -> int:
        if isinstance(topic, FlowTopic) or self._thread.startswith(READS):
            return MAX_FETCH
        return 1 + int(self._kafka.network.chance(BROKER.name, self._machine.name)() * MAX_BATCH)

    def _find_topic_again(self, name: str, topic_id: str) -> None:
        """Continue at the same offset of another topic with this name. Only a log line reports it."""
        known, self._topic_ids[name] = self._topic_ids[name], topic_id
        if self._logger is not None:
            line = f"Topic {name} changed id from {known} to {topic_id}"
            self._call_back(self._logger.log, logging.DEBUG, "%s [%s] %s", "METADATA", "", line)
        self.fetch_soon(name)

    def _wake(self) -> None:
        if self._poller is not None:
            self._poller.wake()

    # -- in a group

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        self._topics = [*topics]
        self._on = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._heard_us = self._kernel.now_us
        self._join()
        self._kernel.at(self._kernel.now_us + self._beat_us, self._machine, self._beat)

    def memberid(self) -> str:
        """Empty while it is in no group."""
        return str(self._member_id or "")

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        """Raises KafkaException when it waits and is refused."""
        commit = lambda: self._group.commit(self._name, self._member_id, offsets)  # noqa: E731
        if asynchronous or Strand.running is None:
            self._ask(commit, lambda code: None)
            return
        code = self._wait_for(commit, COMMIT_S)
        if code:
            raise KafkaException(KafkaError(code))

    def _join(self) -> None:
        self._member_id = 0

        def joined(member_id: int) -> None:
            if self._member_id < member_id:
                self._member_id = member_id
                self._say()

        self._ask(lambda: self._group.join(self._name, self._topics, self._session_us), joined)

    def _beat(self) -> None:
        if self._closed:
            return
        now_us = self._kernel.now_us
        if self._member_id and now_us - self._heard_us > self._session_us:
            self._lose_all()
        elif self._member_id:
            self._say()
        else:
            self._join()
        self._kernel.at(now_us + self._beat_us, self._machine, self._beat)

    def _say(self) -> None:
        member_id = self._member_id
        self._ask(
            lambda: self._group.heard(self._name, member_id),
            partial(self._answered, member_id),
        )

    def _answered(self, member_id: int, answer: Mine | int) -> None:
        if self._closed or member_id != self._member_id:
            return
        if answer == KafkaError.FENCED_INSTANCE_ID:
            fenced = KafkaError(KafkaError._FATAL, "fenced by its name", fatal=True)
            self._queue.append(Message(0, None, b"", fenced))
            self._closed = True
            self._wake()
        elif isinstance(answer, int):
            self._lose_all()
        else:
            self._heard_us = self._kernel.now_us
            for topic in sorted(answer.offsets.keys() - self._owned):
                self._owned.add(topic)
                self._calls.append(lambda topic=topic: self._assigned(topic, answer))  # type: ignore[misc]
                self._wake()

    def _assigned(self, topic: str, answer: Mine) -> None:
        known = answer.offsets[topic]
        last = 0 if self._from_beginning else len(self._kafka.topic(topic).records)
        partitions = [TopicPartition(topic, 0, last if known is None else known)]
        on_assign = self._on["assign"]
        if on_assign is not None:
            on_assign(self, partitions)
        else:
            self.incremental_assign(partitions)

    def _lose_all(self) -> None:
        """Lose all partitions after a silence of a session: another member has them."""
        lost, self._owned = sorted(self._owned), set()
        self._calls.append(lambda: self._lost(lost))
        self._wake()
        self._heard_us = self._kernel.now_us
        self._join()

    def _lost(self, topics: list[str]) -> None:
        on_lost = self._on["lost"] or self._on["revoke"]
        if topics and on_lost is not None:
            on_lost(self, [TopicPartition(topic, 0) for topic in topics])
        for topic in topics:
            self._positions.pop(topic, None)
        self._queue = deque(message for message in self._queue if message.error() is not None)
