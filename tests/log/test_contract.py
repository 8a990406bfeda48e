"""The log's contract (see ``stele.log.port``), checked for each adapter."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stele.log import kafka as log_kafka
from stele.log.brokers import Brokers
from stele.log.errors import OffsetGoneError
from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog, TopicMissingError
from stele.log.port import Log, Record, TopicProbe
from stele.runtime.kafka import ensure_topics
from stele_harness.stack.ports import LOOPBACK, free_port
from tests.log.memory import MemoryLog, MemoryPartition
from tests.polling import wait_until

DEADLINE_S = 240.0

Open = Callable[[], Log]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
async def open_log(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Yields a function that makes logs over one fresh partition. All are closed afterwards."""
    async with AsyncExitStack() as closing:
        if request.param == "memory":
            partition = MemoryPartition()

            def make() -> Log:
                return MemoryLog(partition)

        else:
            bootstrap = request.getfixturevalue("kafka")
            topic = flow_topic(request.getfixturevalue("topics"), "epochs")

            def make() -> Log:
                return KafkaLog(Brokers(bootstrap), topic)

        def opened() -> Log:
            log = make()
            closing.push_async_callback(log.close)
            return log

        yield opened


class Reader:
    """The records of one follower."""

    def __init__(self, log: Log, offset: int = 0) -> None:
        self.has_room = True
        self.records: list[Record] = []
        self._came = asyncio.Event()
        self.error: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        log.follow(
            offset,
            self._on_records,
            self.error.set_result,
            has_room=lambda: self.has_room,
        )

    def _on_records(self, records: list[Record]) -> None:
        self.records.extend(records)
        self._came.set()

    async def wait_for(self, count: int) -> list[bytes]:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while len(self.records) < count:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise AssertionError(f"{len(self.records)} of {count} records came") from None
        return [record.value for record in self.records]


async def test_a_follower_sees_appended_records_in_order(open_log: Open) -> None:
    reader, writer = Reader(open_log()), open_log()
    values = [b"%d" % n for n in range(500)]
    for value in values:
        writer.append(value)
    assert await reader.wait_for(500) == values
    offsets = [record.offset for record in reader.records]
    assert offsets == sorted(set(offsets))


async def test_all_followers_see_one_order_of_several_writers(open_log: Open) -> None:
    first, second = open_log(), open_log()
    readers = Reader(first), Reader(second)
    for n in range(100):
        first.append(b"a%d" % n)
        second.append(b"b%d" % n)
    seen = [await reader.wait_for(200) for reader in readers]
    assert seen[0] == seen[1]
    for prefix in (b"a", b"b"):
        own = [value for value in seen[0] if value.startswith(prefix)]
        assert own == [prefix + b"%d" % n for n in range(100)]


async def test_records_are_not_prefetched_for_a_reader_without_room(open_log: Open) -> None:
    """Records that it does not accept stay with the broker, and not in its memory."""
    writer, values = open_log(), [b"%d" % n for n in range(10_000)]
    for value in values:
        writer.append(value)
    await Reader(open_log()).wait_for(len(values))
    slow = Reader(open_log())
    slow.has_room = False
    await Reader(open_log()).wait_for(len(values))
    came = len(slow.records)
    assert came <= 5000
    await Reader(open_log()).wait_for(len(values))
    assert len(slow.records) <= came + 4 * 501
    slow.has_room = True
    assert await slow.wait_for(len(values)) == values


async def test_follow_begins_at_the_given_offset(open_log: Open) -> None:
    log = open_log()
    for n in range(10):
        log.append(b"%d" % n)
    records = await Reader(log).wait_for(10)
    assert len(records) == 10
    later = Reader(open_log(), 7)
    assert await later.wait_for(3) == [b"7", b"8", b"9"]


async def test_read_returns_a_part_up_to_the_end(open_log: Open) -> None:
    log = open_log()
    for n in range(10):
        log.append(b"%d" % n)
    await Reader(log).wait_for(10)
    reader = open_log()
    assert [record.value for record in await reader.read(3, 4)] == [b"3", b"4", b"5", b"6"]
    assert [record.offset for record in await reader.read(8, 100)] == [8, 9]
    assert await reader.read(10, 100) == []


async def test_ends_cover_all_seen_records(open_log: Open) -> None:
    log = open_log()
    assert await log.ends() == (0, 0)
    reader = Reader(log)
    for n in range(5):
        log.append(b"%d" % n)
    await reader.wait_for(5)
    assert await open_log().ends() == (0, 5)


async def test_look_returns_topic_id_end_and_record(open_log: Open) -> None:
    log = open_log()
    empty = await log.look(None)
    assert (empty.end, empty.value) == (0, None)
    assert empty.topic_id
    reader = Reader(log)
    for n in range(5):
        log.append(b"%d" % n)
    await reader.wait_for(5)
    assert await log.look(3) == TopicProbe(empty.topic_id, 5, b"3")
    assert await log.look(4) == TopicProbe(empty.topic_id, 5, b"4")
    assert (await open_log().look(5)).value is None


async def test_a_record_of_eight_mebibytes_fits(open_log: Open) -> None:
    log = open_log()
    reader = Reader(log)
    value = b"x" * (8 * 1024 * 1024 - 4096)
    log.append(value)
    log.append(b"after")
    assert [len(found) for found in await reader.wait_for(2)] == [len(value), 5]
    assert len((await log.read(0, 1))[0].value) == len(value)


async def test_close_ends_following_and_keeps_appended_records(open_log: Open) -> None:
    log, other = open_log(), open_log()
    reader, witness = Reader(log), Reader(other)
    log.append(b"first")
    await reader.wait_for(1)
    log.append(b"last")
    await log.close()
    assert await witness.wait_for(2) == [b"first", b"last"]
    seen = len(reader.records)
    other.append(b"later")
    await witness.wait_for(3)
    assert len(reader.records) == seen


@pytest.mark.broker
async def test_deleted_offset_raises_an_error(kafka: str, topics: str) -> None:
    topic = flow_topic(topics, "epochs")
    log = KafkaLog(Brokers(kafka), topic)
    try:
        for n in range(10):
            log.append(b"%d" % n)
        await Reader(log).wait_for(10)
        admin = AdminClient({"bootstrap.servers": kafka})
        gone = admin.delete_records([TopicPartition(topic, 0, 5)])
        for future in gone.values():
            await asyncio.to_thread(future.result, DEADLINE_S)
        with pytest.raises(OffsetGoneError):
            await log.read(2, 3)
        assert [record.value for record in await log.read(5, 2)] == [b"5", b"6"]
        assert ((await log.look(4)).value, (await log.look(5)).value) == (None, b"5")
        reader = Reader(log, 2)
        assert isinstance(await asyncio.wait_for(reader.error, DEADLINE_S), OffsetGoneError)
        assert reader.records == []
    finally:
        await log.close()


@pytest.mark.broker
async def test_missing_topic_raises_and_a_recreated_one_has_another_id(
    kafka: str, topics: str
) -> None:
    topic = flow_topic(topics, "epochs")
    log = KafkaLog(Brokers(kafka), topic)
    try:
        log.append(b"first")
        await Reader(log).wait_for(1)
        before = await log.look(0)
        admin = AdminClient({"bootstrap.servers": kafka})
        await asyncio.to_thread(admin.delete_topics([topic])[topic].result, DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            while await _is_there(log):  # a broker learns of it after the controller that answered
                pass
        with pytest.raises(TopicMissingError, match=f"the topic {topic} is not there"):
            await log.look(0)
        await asyncio.to_thread(ensure_topics, Brokers(kafka), topics)
        after = await log.look(0)
        assert (after.end, after.value) == (0, None)
        assert after.topic_id != before.topic_id
    finally:
        await log.close()


@pytest.mark.broker
async def test_records_of_a_recreated_topic_come_only_after_a_doubt(
    kafka: str, topics: str
) -> None:
    """The consumer finds the new topic without an error, and continues at its old offset."""
    topic, read, doubts, early = flow_topic(topics, "epochs"), list[Record](), list[str](), [b""]
    log, admin = KafkaLog(Brokers(kafka), topic), AdminClient({"bootstrap.servers": kafka})
    others = Producer({"bootstrap.servers": kafka})

    def on_records(records: list[Record]) -> None:
        read.extend(records)
        if not doubts:
            early.extend(record.value for record in records)

    try:
        log.follow(0, on_records, lambda error: doubts.append(str(error)), doubts.append)
        for n in range(20):
            log.append(b"%d" % n)
            await asyncio.to_thread(wait_until, partial(lambda n: len(read) > n, n), f"record {n}")
        assert doubts == []
        await asyncio.to_thread(admin.delete_topics([topic])[topic].result, DEADLINE_S)
        made = admin.create_topics([NewTopic(topic, 1, 1)])
        await asyncio.to_thread(made[topic].result, DEADLINE_S)
        others.produce_batch(topic, [{"value": b"another"}] * 20, partition=0)
        await asyncio.to_thread(others.flush, DEADLINE_S)
        log.append(b"to the new topic")
        await asyncio.to_thread(wait_until, lambda: doubts, "a doubt")
        before, after = early[:21], early[21:]
        assert before == [b"", *(b"%d" % n for n in range(20))]
        # A broker that does not know the new topic yet adds records to the old one.
        sent = [b"another"] * 20 + [b"to the new topic"]
        async with asyncio.timeout(DEADLINE_S):
            while sorted(after + await _values(log)) != sent:
                pass
    finally:
        await log.close()


async def _values(log: Log) -> list[bytes]:
    return [record.value for record in await log.read(0, 100)]


@pytest.fixture
def admins(monkeypatch: pytest.MonkeyPatch) -> list[AdminClient]:
    """Return the list of all clients that are made."""
    made = list[AdminClient]()

    def make(settings: dict[str, Any]) -> AdminClient:
        made.append(AdminClient(settings))
        return made[-1]

    monkeypatch.setattr(log_kafka, "AdminClient", make)
    return made


@pytest.mark.broker
async def test_looks_share_one_client(kafka: str, topics: str, admins: list[AdminClient]) -> None:
    """Each process looks every two seconds, and each client has threads and connections."""
    log = KafkaLog(Brokers(kafka), flow_topic(topics, "epochs"))
    try:
        for _ in range(5):
            await log.look(None)
    finally:
        await log.close()
    assert len(admins) == 1


@pytest.mark.broker
async def test_looks_at_a_missing_topic_share_one_client(
    kafka: str, cluster: str, admins: list[AdminClient]
) -> None:
    """It may be missing for hours, with several looks a second."""
    log = KafkaLog(Brokers(kafka), flow_topic(cluster, "epochs"))
    try:
        for _ in range(5):
            with pytest.raises(TopicMissingError):
                await log.look(0)
    finally:
        await log.close()
    assert len(admins) == 1


async def _is_there(log: Log) -> bool:
    try:
        await log.look(0)
    except (KafkaException, TimeoutError):
        return False
    return True


@pytest.mark.broker
async def test_read_after_a_failure_asks_the_brokers_again_and_blocks_no_look(
    kafka: str, topics: str
) -> None:
    """The old client may keep to a dead leader, and a barrier waits for a look."""
    log = KafkaLog(Brokers(kafka), flow_topic(topics, "epochs"))
    try:
        log.append(b"first")
        await Reader(log).wait_for(1)
        dead = {"bootstrap.servers": f"{LOOPBACK}:{free_port()}", "group.id": "stele-unused"}
        log._reader = Consumer(dead)
        reading = asyncio.create_task(log.read(0, 1))
        assert (await log.look(0)).value == b"first"
        assert not reading.done()
        with pytest.raises((KafkaException, TimeoutError)):
            await reading
        assert [record.value for record in await log.read(0, 1)] == [b"first"]
    finally:
        await log.close()
