"""The simulated brokers: topics with their faults, and consumer groups. ``kafka`` has their clients.

Topics have one partition each. A group assigns it to one member. A member that is silent for a session loses
it, and is notified late. The topic of the log has faults of its own: appends are lost, duplicated or late, and
the topic loses its leader or its end, or is recreated.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, TopicPartition

from stele_simulator.kernel import Kernel, Owner, us
from stele_simulator.network import Network

if TYPE_CHECKING:
    from stele_simulator.processes.kafka import Consumer
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.stale_leaders import StaleLeaders

BROKER: Final = Owner("log")
EPOCHS: Final = "epochs"
"""Target of a block of the log's records, as when fetches are late. The end of the topic and the other topics
stay available, and the consumer gets no error.
"""
FLOWS: Final = "flows"
"""Target of a block of the topics beside the log."""
LATE_US: Final = us(1.0)
"""A writer gives up waiting for records after two seconds."""

OnRecord = Callable[["Machine", str, str, bytes], None]
"""Sender, topic, key and value."""


class Kept(NamedTuple):
    key: bytes | None
    value: bytes


class FlowTopic:
    """A topic beside the log, without faults of its own."""

    block: str = FLOWS
    topic_id = ""
    begin = 0
    has_leader = True

    def __init__(self) -> None:
        self.records: list[Kept] = []
        self.readers: dict[Consumer, None] = {}

    @property
    def high(self) -> int:
        return len(self.records)

    def end_for(self, name: str, *, reads: bool) -> int:
        return self.high

    def kept(self, first: int, last: int) -> list[Kept]:
        return self.records[first:last]


class Kafka:
    """All topics, and the groups that read them. ``on_sent`` is called when a process sends a record to a
    topic beside the log, ``on_record`` when the record is stored.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        log: "LogTopic",
        on_sent: OnRecord,
        on_record: OnRecord,
    ) -> None:
        self.on_sent = on_sent
        self.kernel = kernel
        self.network = network
        self._on_record = on_record
        self._log = log
        self._topics: dict[str, FlowTopic] = {}
        self._groups: dict[str, Group] = {}

    def topic(self, name: str) -> "FlowTopic | LogTopic":
        return self._log if name == self._log.name else self._flow(name)

    def _flow(self, name: str) -> FlowTopic:
        return self._topics.setdefault(name, FlowTopic())

    def group(self, name: str) -> "Group":
        if name not in self._groups:
            self._groups[name] = Group(self)
        return self._groups[name]

    def land(self, machine: "Machine", name: str, kept: Kept) -> None:
        topic = self._flow(name)
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

    def __init__(self, kafka: Kafka) -> None:
        self.offsets: dict[str, int] = {}
        self._kernel = kafka.kernel
        self._members: dict[str, Member] = {}
        self._owners: dict[str, str] = {}
        self._ids = itertools.count(1)
        self._shared_until_us = 0

    def share(self, for_us: int) -> None:
        """For so long each member takes the topics for its own: who had them before is late to learn of it."""
        self._shared_until_us = self._kernel.now_us + for_us
        self._kernel.at(self._shared_until_us, None, self._end_sharing)

    def _end_sharing(self) -> None:
        """All but the owners learn that they are no members any more, and join again."""
        if self._kernel.now_us < self._shared_until_us:
            return
        owners = {*self._owners.values()}
        self._members = {name: each for name, each in self._members.items() if name in owners}

    def join(self, name: str, topics: Sequence[str], session_us: int) -> int:
        """The member id of the newest consumer under this name. The one before is fenced out."""
        member_id = next(self._ids)
        until_us = self._kernel.now_us + session_us
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
        member.until_us = self._kernel.now_us + member.session_us
        for topic in member.topics:
            self._owners.setdefault(topic, name)
        is_shared = self._kernel.now_us < self._shared_until_us
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
        now_us = self._kernel.now_us
        for name in [name for name, each in self._members.items() if each.until_us < now_us]:
            del self._members[name]
            self._owners = {t: owner for t, owner in self._owners.items() if owner != name}


class Mine(NamedTuple):
    """A member's topics, with the offsets that were committed; None: none ever was."""

    offsets: dict[str, int | None]


# -- the topic of the log


class LogTopic:
    """The topic of the log. ``on_durable`` is called with each record that readers may see."""

    block: str = BROKER.name

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        name: str,
        topic_id: str,
        on_durable: Callable[[int, bytes], None],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.begin = 0
        self.records: list[bytes] = []
        """From offset ``begin`` on."""
        self.high = 0
        self.stale_leaders: StaleLeaders | None = None
        self.faulted_us = -us(3600)
        """When something was lost the last time."""
        self.on_late: Callable[[str], None] | None = None
        """Called with the process whose append is lost or late."""
        self.kernel = kernel
        self.network = network
        self._chance = kernel.random("broker").random
        self._on_durable = on_durable
        self._last_arrival_us: dict[str, int] = {}
        self.readers: dict[Consumer, None] = {}
        self.down_until_us = 0
        """No leader takes anything until then."""
        self._generation = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.records)

    def lay_down(self, records: list[bytes]) -> None:
        """Add the initial records."""
        for value in records:
            self.records.append(value)
            self.high += 1
            self._on_durable(self.high - 1, value)

    def kept(self, first: int, last: int) -> list[Kept]:
        until = min(last, self.high) - self.begin
        return [Kept(None, value) for value in self.records[first - self.begin : until]]

    @property
    def has_leader(self) -> bool:
        return self.kernel.now_us >= self.down_until_us

    def end_for(self, name: str, *, reads: bool) -> int | None:
        """Return the end that a leader, maybe an old one, reports to this process's query or repeated read."""
        old = None if self.stale_leaders is None else self.stale_leaders.end_for(name, reads=reads)
        if old is None:
            return self.high if self.has_leader else None
        return max(self.begin, min(self.high, old))

    # -- what processes do --

    def append(self, machine: "Machine", value: bytes) -> None:
        weather, draw = self.network.weather, self.network.chance(machine.name, BROKER.name)
        if not self.network.reaches(machine.name, BROKER.name) or draw() < weather.append_loss:
            self._is_late(machine)
            return
        arrival = self.kernel.now_us + self.network.delay_us(draw)
        if draw() < weather.append_tail:
            arrival += us(weather.tail_s * draw())
        arrival = max(arrival, self._last_arrival_us.get(machine.name, 0))
        self._last_arrival_us[machine.name] = arrival
        if arrival > self.kernel.now_us + LATE_US:
            self._is_late(machine)
        self.kernel.at(arrival, None, self.land, value)
        if draw() < weather.append_duplicate:
            self.kernel.at(arrival + self.network.delay_us(draw), None, self.land, value)

    def _is_late(self, machine: "Machine") -> None:
        if self.on_late is not None:
            self.on_late(machine.name)

    def land(self, value: bytes) -> None:
        """A record is at the leader."""
        if self.kernel.now_us < self.down_until_us:
            return
        self.records.append(value)
        later = self.kernel.now_us + self.network.delay_us(self._chance)
        self.kernel.at(later, None, self._replicated, self._generation, self.end)

    def _replicated(self, generation: int, end: int) -> None:
        if generation != self._generation:
            return
        while self.high < end:
            offset, self.high = self.high, self.high + 1
            self._on_durable(offset, self.records[offset - self.begin])
        self._wake_readers()

    def delete_before(self, offset: int) -> None:
        """DeleteRecords."""
        assert offset <= self.high, "brokers refuse it"
        gone = offset - self.begin
        if gone > 0:
            del self.records[:gone]
            self.begin += gone

    # -- what happens to it --

    def change_leader(self, down_s: float) -> None:
        """Elect a new leader. Unreplicated records are lost, and readers lose their connection. Until the
        election ends, appends fail, and no leader answers.
        """
        del self.records[self.high - self.begin :]
        self._generation += 1
        self.down_until_us = self.kernel.now_us + us(down_s)
        self._disconnect_readers()

    def roll_back(self, end: int, *, silent: bool) -> None:
        """Records from ``end`` on were never there: a volume of yesterday, or an unclean election. With
        ``silent`` readers learn it by their offsets alone.
        """
        self.faulted_us = self.kernel.now_us
        end = max(self.begin, min(end, self.high))
        del self.records[end - self.begin :]
        self.high = end
        self._generation += 1
        self._after_fault(silent=silent)

    def make_anew(self, topic_id: str, *, silent: bool) -> None:
        """The topic is deleted, and there is one of its name with nothing in it."""
        self.faulted_us = self.kernel.now_us
        self.topic_id = topic_id
        self.records, self.begin, self.high = [], 0, 0
        self._generation += 1
        self._after_fault(silent=silent)

    def _after_fault(self, *, silent: bool) -> None:
        if self.stale_leaders is not None:
            self.stale_leaders.end()
        if silent:
            self._wake_readers()
        else:
            self._disconnect_readers()

    def _wake_readers(self) -> None:
        for reader in [*self.readers]:
            reader.fetch_soon(self.name)

    def _disconnect_readers(self) -> None:
        for reader in [*self.readers]:
            reader.disconnect(self.name)
