"""Kafka's clients as simulated processes have them: the topics beside the log, and consumer groups.

Production's readers, writers and elections run with these in place of confluent-kafka's classes. Topics have
one partition each. A group hands it to one member; who was silent for a session loses it, and learns that late.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from stele_simulator.kernel import Kernel, Owner, us
from stele_simulator.network import Network
from stele_simulator.processes.threads import Strand

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine

T = TypeVar("T")

BROKER: Final = Owner("log")
FLOWS: Final = "flows"
"""Target of a block of the topics beside the log."""
RETRY_S: Final = 0.2
MAX_FETCH: Final = 500
COMMIT_S: Final = 3.0
"""How long a commit of offsets is waited for."""

OnRecord = Callable[["Machine", str, str, bytes], None]
"""Sender, topic, key and value."""
OnPartitions = Callable[["Consumer", list[TopicPartition]], None]


class Kept(NamedTuple):
    key: bytes | None
    value: bytes


class FlowTopic:
    """The brokers' content of a topic of one partition."""

    def __init__(self) -> None:
        self.records: list[Kept] = []
        self.readers: dict[Consumer, None] = {}


class Flows:
    """The brokers' topics beside the log. ``on_sent`` is called when a process sends a record, ``on_record``
    when the record is stored.
    """

    def __init__(
        self, kernel: Kernel, network: Network, on_sent: OnRecord, on_record: OnRecord
    ) -> None:
        self.on_sent = on_sent
        self.kernel = kernel
        self.network = network
        self._on_record = on_record
        self._topics: dict[str, FlowTopic] = {}
        self._groups: dict[str, Group] = {}

    def topic(self, name: str) -> FlowTopic:
        return self._topics.setdefault(name, FlowTopic())

    def group(self, name: str) -> "Group":
        if name not in self._groups:
            self._groups[name] = Group(self)
        return self._groups[name]

    def land(self, machine: "Machine", name: str, kept: Kept) -> None:
        topic = self.topic(name)
        topic.records.append(kept)
        self._on_record(machine, name, (kept.key or b"").decode(), kept.value)
        for reader in [*topic.readers]:
            reader.fetch_soon(name)


# -- groups, as the broker has them


class Member:
    """A member of a group: the newest consumer of its name."""

    def __init__(self, member_id: int, topics: Sequence[str], session_us: int, until_us: int):
        self.member_id = member_id
        self.topics = topics
        self.session_us = session_us
        self.until_us = until_us


class Group:
    """Assignments of topics. A member keeps its topic while its heartbeats arrive (sticky)."""

    def __init__(self, flows: Flows) -> None:
        self.offsets: dict[str, int] = {}
        self._flows = flows
        self._members: dict[str, Member] = {}
        self._owners: dict[str, str] = {}
        self._ids = itertools.count(1)
        self._shared_until_us = 0

    def share(self, for_us: int) -> None:
        """For so long each member takes the topics for its own: who had them before is late to learn of it."""
        kernel = self._flows.kernel
        self._shared_until_us = kernel.now_us + for_us
        kernel.at(self._shared_until_us, None, self._end_sharing)

    def _end_sharing(self) -> None:
        """All but the owners learn that they are no members any more, and join again."""
        if self._flows.kernel.now_us < self._shared_until_us:
            return
        owners = {*self._owners.values()}
        self._members = {name: each for name, each in self._members.items() if name in owners}

    def join(self, name: str, topics: Sequence[str], session_us: int) -> int:
        """The member id of the newest consumer under this name. The one before is fenced out."""
        member_id = next(self._ids)
        until_us = self._flows.kernel.now_us + session_us
        self._members[name] = Member(member_id, topics, session_us, until_us)
        return member_id

    def heard(self, name: str, member_id: int) -> "Mine | int":
        """Return this member's assignment, or its error."""
        self._forget_the_silent()
        member = self._members.get(name)
        if member is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        if member.member_id != member_id:
            return KafkaError.FENCED_INSTANCE_ID
        member.until_us = self._flows.kernel.now_us + member.session_us
        for topic in member.topics:
            self._owners.setdefault(topic, name)
        is_shared = self._flows.kernel.now_us < self._shared_until_us
        mine = (topic for topic in member.topics if is_shared or self._owners[topic] == name)
        return Mine({topic: self.offsets.get(topic) for topic in mine})

    def commit(self, name: str, member_id: int, offsets: Iterable[TopicPartition]) -> int:
        """0, or the error that it gets."""
        member = self._members.get(name)
        if member is None or member.member_id != member_id:
            return KafkaError.UNKNOWN_MEMBER_ID
        for each in offsets:
            if self._owners.get(each.topic) != name:
                return KafkaError.ILLEGAL_GENERATION
            self.offsets[each.topic] = each.offset
        return 0

    def _forget_the_silent(self) -> None:
        now_us = self._flows.kernel.now_us
        for name in [name for name, each in self._members.items() if each.until_us < now_us]:
            del self._members[name]
            self._owners = {t: owner for t, owner in self._owners.items() if owner != name}


class Mine(NamedTuple):
    """A member's topics, with the offsets that were committed; None: none ever was."""

    offsets: dict[str, int | None]


# -- clients


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
        self._flows: Flows = machine.world.flows
        self._kernel = self._flows.kernel

    @property
    def _lives(self) -> bool:
        return self._machine.alive and self._machine.incarnation == self._incarnation

    def _delay_us(self) -> int:
        network = self._flows.network
        return network.delay_us(network.chance(BROKER.name, self._machine.name))

    def _reaches(self) -> bool:
        network, name = self._flows.network, self._machine.name
        return network.reaches(name, BROKER.name) and network.reaches(name, FLOWS)

    def _is_reached(self) -> bool:
        network, name = self._flows.network, self._machine.name
        return network.reaches(BROKER.name, name) and network.reaches(FLOWS, name)

    def _ask(self, find: Callable[[], T], then: Callable[[T], None]) -> None:
        """``then`` is called in the process with what the brokers say, or nothing comes."""

        def arrive() -> None:
            found = find()
            if self._is_reached() and self._lives:
                self._kernel.at(self._kernel.now_us + self._delay_us(), self._machine, then, found)

        if self._reaches():
            self._kernel.at(self._kernel.now_us + self._delay_us(), None, arrive)

    def _wait_for(self, find: Callable[[], T], timeout_s: float) -> T:
        """Raises KafkaException when no answer comes in time."""
        strand, answers = Strand.running, list[T]()
        assert strand is not None, "a call that blocks is made in a thread"

        def answered(found: T) -> None:
            answers.append(found)
            strand.wake()

        self._ask(find, answered)
        deadline_us = self._kernel.now_us + us(timeout_s)
        while not answers and self._kernel.now_us < deadline_us:
            strand.wait_until(deadline_us)
        if not answers:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return answers[0]


class _Sent(NamedTuple):
    topic: str
    kept: Kept
    until_us: int
    callback: Callable[[KafkaError | None, Message], None] | None


class Producer(_Client):
    """As ``confluent_kafka.Producer``: in order, each once, or given up after its time limit."""

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
        until_us = self._kernel.now_us + self._limit_us
        self._flows.on_sent(self._machine, topic, (key or b"").decode(), value)
        self._waiting.append(_Sent(topic, Kept(key, value), until_us, callback))
        if not self._under_way:
            self._send()

    def produce_batch(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> int:
        for each in messages:
            self.produce(topic, each["value"], each["key"], each.get("callback"))
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
            self._flows.land(self._machine, sent.topic, sent.kept)
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
        self._group = self._flows.group(settings["group.id"])
        self._name = str(settings.get("group.instance.id", ""))
        self._session_us = us(float(settings.get("session.timeout.ms", 45_000)) / 1000)
        self._beat_us = us(float(settings.get("heartbeat.interval.ms", 3000)) / 1000)
        self._from_beginning = settings.get("auto.offset.reset") == "earliest"
        self._positions: dict[str, int] = {}
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
            lambda: ClusterMetadata({topic: TopicMetadata({0: Partition()})}), timeout
        )

    def offsets_for_times(
        self, wanted: Sequence[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """Raises KafkaException."""

        def found() -> list[TopicPartition]:
            return [
                TopicPartition(
                    each.topic,
                    each.partition,
                    0
                    if each.offset == OFFSET_BEGINNING
                    else len(self._flows.topic(each.topic).records),
                )
                for each in wanted
            ]

        return self._wait_for(found, timeout)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions = {}
        self.incremental_assign([each for each in partitions if each.partition == 0])

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._positions[each.topic] = max(0, each.offset)
            self._flows.topic(each.topic).readers[self] = None
            self.fetch_soon(each.topic)

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
        for name in self._positions:
            self._flows.topic(name).readers.pop(self, None)

    def fetch_soon(self, name: str) -> None:
        if name not in self._fetching and name not in self._paused:
            self._fetching.add(name)
            self._kernel.at(self._kernel.now_us + self._delay_us(), None, self._fetch, name)

    def _fetch(self, name: str) -> None:
        self._fetching.discard(name)
        topic = self._flows.topic(name)
        if self._closed or not self._lives or name not in self._positions:
            topic.readers.pop(self, None)
            return
        if name in self._paused:
            return
        if not (self._reaches() and self._is_reached()):
            self._fetching.add(name)
            self._kernel.at(self._kernel.now_us + us(RETRY_S), None, self._fetch, name)
            return
        first = self._positions[name]
        found = topic.records[first : first + MAX_FETCH]
        self._positions[name] = first + len(found)
        self._queue.extend(Message(first + i, *kept) for i, kept in enumerate(found))
        if found:
            self._wake()
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
            lambda answer: self._answered(member_id, answer),
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
        last = 0 if self._from_beginning else len(self._flows.topic(topic).records)
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
