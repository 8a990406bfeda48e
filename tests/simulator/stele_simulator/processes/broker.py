"""The simulated broker: the topic of the log as Kafka shows it, with its faults.

Appends are lost, duplicated or late, and go to the current topic of that name. Readers follow by offset
alone. An offset outside of the topic is an error, but only at the next fetch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stele.log.errors import OffsetGoneError
from stele.log.port import Ends, HasRoom, OnDoubt, OnRecords, Record, TopicProbe, always, ignore
from stele_simulator.kernel import Kernel, Owner, us
from stele_simulator.network import Network

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.old_ends import OldEnds

T = TypeVar("T")

BROKER: Final = Owner("log")
EPOCHS: Final = "epochs"
"""Target of a block of the log's records, as when fetches are late. The end of the topic and the other topics
stay available, and the consumer gets no error.
"""
ANSWER_S: Final = 3.0
RETRY_S: Final = 0.2
MAX_BATCH: Final = 16
LATE_US: Final = us(1.0)
"""A writer gives up waiting for records after two seconds."""


class Topic:
    """The content of a topic. ``on_durable`` is called with each record that readers may see."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        topic_id: str,
        on_durable: Callable[[int, bytes], None],
    ) -> None:
        self.topic_id = topic_id
        self.begin = 0
        self.records: list[bytes] = []
        """From offset ``begin`` on."""
        self.high = 0
        self.old_ends: OldEnds | None = None
        self.faulted_us = -us(3600)
        """When something was lost the last time."""
        self.on_late: Callable[[str], None] | None = None
        """Called with the process whose append is lost or late."""
        self.kernel = kernel
        self.network = network
        self._chance = kernel.random("broker").random
        self._on_durable = on_durable
        self._last_arrival_us: dict[str, int] = {}
        self._readers: list[Reading] = []
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

    def value_at(self, offset: int) -> bytes | None:
        return self.records[offset - self.begin] if self.begin <= offset < self.high else None

    def end_for(self, name: str, *, reads: bool) -> int:
        """Return the end of the topic as this process gets it from a query or a second read."""
        if self.old_ends is None:
            return self.high
        return max(self.begin, self.old_ends.end_for(name, self.high, reads=reads))

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
        self.wake()

    def delete_before(self, offset: int) -> None:
        """DeleteRecords."""
        assert offset <= self.high, "brokers refuse it"
        gone = offset - self.begin
        if gone > 0:
            del self.records[:gone]
            self.begin += gone

    def wake(self) -> None:
        for reading in [*self._readers]:
            reading.fetch_soon()

    def follow(self, reading: "Reading") -> None:
        self._readers.append(reading)
        reading.fetch_soon()

    def leave(self, reading: "Reading") -> None:
        if reading in self._readers:
            self._readers.remove(reading)

    # -- what happens to it --

    def change_leader(self, down_s: float) -> None:
        """Elect a new leader. Unreplicated records are lost, appends fail for a while, and readers lose their
        connection.
        """
        del self.records[self.high - self.begin :]
        self._generation += 1
        self.down_until_us = self.kernel.now_us + us(down_s)
        for reading in [*self._readers]:
            reading.doubt("the leader has changed")

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
        if self.old_ends is not None:
            self.old_ends.end()
        for reading in [*self._readers]:
            if silent:
                reading.fetch_soon()
            else:
                reading.doubt("the leader has changed")


class Reading:
    """One follower of the topic: where it stands."""

    def __init__(
        self,
        topic: Topic,
        machine: "Machine",
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt,
        has_room: HasRoom,
    ) -> None:
        self._topic = topic
        self._machine = machine
        self._incarnation = machine.incarnation
        self._offset = offset
        self._on_records = on_records
        self._on_error = on_error
        self._on_doubt = on_doubt
        self._has_room = has_room
        self._fetching = False
        self._was_cut = False
        self.over = False

    def stop(self) -> None:
        self.over = True
        self._topic.leave(self)

    def fetch_soon(self) -> None:
        if not self._fetching:
            self._fetching = True
            self._at(self._topic.network.delay_us(self._luck()), self._fetch)

    def doubt(self, why: str) -> None:
        """Report a doubt to the consumer after a delay. Then it fetches."""
        self._at(self._topic.network.delay_us(self._luck()), self._say_doubt, why)

    def _say_doubt(self, why: str) -> None:
        if self._lives():
            self._call(self._on_doubt, why)
            self.fetch_soon()

    def _fetch(self) -> None:
        topic = self._topic
        self._fetching = False
        if not self._lives():
            self.stop()
            return
        is_cut = not topic.network.reaches(BROKER.name, self._machine.name)
        is_deaf = not topic.network.reaches(EPOCHS, self._machine.name)
        if is_cut or is_deaf or not self._has_room():
            self._was_cut |= is_cut
            self._fetching = True
            self._at(us(RETRY_S), self._fetch)
            return
        if self._was_cut:
            self._was_cut = False
            self._call(self._on_doubt, "the consumer was cut off")
        if not topic.begin <= self._offset <= topic.high:
            self.stop()
            text = f"the topic has {topic.begin} to {topic.high}. Begin with a snapshot."
            self._call(self._on_error, OffsetGoneError(self._offset, text))
            return
        if self._offset == topic.high:
            return
        last = min(topic.high, self._offset + 1 + int(self._luck()() * MAX_BATCH))
        batch = [
            Record(offset, topic.records[offset - topic.begin])
            for offset in range(self._offset, last)
        ]
        self._offset = last
        self._call(self._on_records, batch)
        self.fetch_soon()

    def _lives(self) -> bool:
        machine = self._machine
        return not self.over and machine.alive and machine.incarnation == self._incarnation

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        self._machine.turn(callback, *args)

    def _at(self, delay_us: int, call: Callable[..., None], *args: Any) -> None:
        self._topic.kernel.at(self._topic.kernel.now_us + delay_us, None, call, *args)

    def _luck(self) -> Callable[[], float]:
        return self._topic.network.chance(BROKER.name, self._machine.name)


class TopicLog:
    """One process's access to the topic: the production port of the log."""

    def __init__(self, topic: Topic, machine: "Machine") -> None:
        self._topic = topic
        self._machine = machine
        self._reading: Reading | None = None
        self._closed = False

    def append(self, value: bytes, key: bytes | None = None) -> None:
        if not self._closed:
            self._machine.world.releases.appends(self._machine, value)
            self._topic.append(self._machine, value)

    async def end_offset(self) -> int:
        return await self._ask(self._end)

    async def ends(self) -> Ends:
        return await self._ask(lambda: Ends(self._topic.begin, self._end()))

    async def look(self, offset: int | None) -> TopicProbe:
        if self._closed:
            raise TimeoutError("reading was ended")

        def seen() -> TopicProbe:
            topic, end = self._topic, self._end()
            if offset is None or offset >= end:
                return TopicProbe(topic.topic_id, end, None)
            value = topic.value_at(offset)
            return TopicProbe(topic.topic_id, end, value, topic.begin if value is None else 0)

        return await self._ask(seen)

    def follow(
        self,
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt = ignore,
        has_room: HasRoom = always,
    ) -> None:
        self._reading = Reading(
            self._topic, self._machine, offset, on_records, on_error, on_doubt, has_room
        )
        self._topic.follow(self._reading)

    async def read(self, offset: int, limit: int) -> list[Record]:
        def found() -> list[Record]:
            topic = self._topic
            if offset < topic.begin:
                raise OffsetGoneError(offset, f"the topic begins at {topic.begin}.")
            last = min(self._end(reads=True), offset + limit)
            return [Record(at, topic.records[at - topic.begin]) for at in range(offset, last)]

        return await self._ask(found)

    def _end(self, *, reads: bool = False) -> int:
        return self._topic.end_for(self._machine.name, reads=reads)

    async def close(self) -> None:
        self._closed = True
        if self._reading is not None:
            self._reading.stop()

    async def _ask(self, find: Callable[[], T]) -> T:
        """Return the leader's answer at the time when the request arrives. Raises TimeoutError, and the
        errors of ``find``.
        """
        return await self._machine.ask_broker(self._topic, find, ANSWER_S)
