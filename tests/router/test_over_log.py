"""A router that reads the log itself from a broker that returns few records at a time and fails at times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec.structs import replace

from stele.domain.commands import SetSetting
from stele.domain.model.features import REPORT_SOURCES
from stele.domain.registry import KNOWN_FEATURES
from stele.log.codec import encode_epoch
from stele.log.errors import OffsetGoneError
from stele.log.port import Ends, HasRoom, OnDoubt, OnRecords, TopicProbe, always, ignore
from stele.log.reader import TopicReader
from stele.router import NotReady, Router, over_kafka
from stele.router.over_kafka import log_router
from stele.runtime.catch_up import CatchUp
from tests.domain.history import History, three_nodes
from tests.log.memory import MemoryLog, MemoryPartition
from tests.node.world import KEYSPACE
from tests.polling import until

WITHIN_S = 240.0


class Broker:
    """A partition, the opened logs, and the failures of the next calls."""

    def __init__(self, history: History) -> None:
        self.partition = MemoryPartition()
        self.opened = list[SlowLog]()
        self.fails_to_open = list[Exception]()
        self.fails_to_look = list[Exception]()
        self.fails_to_tell_its_ends = list[Exception]()
        self.batch = 5
        self.give(history, len(history.epochs))

    def give(self, history: History, count: int) -> None:
        """Append records up to this number of epochs."""
        for epoch in history.epochs[len(self.partition.records) : count]:
            self.partition.append(encode_epoch(epoch))

    def lose_the_topic(self) -> None:
        """Recreate the topic, and inform its readers."""
        self.partition.recreate()
        self.opened[-1].on_error(OffsetGoneError(9, "it is gone"))

    def open(self) -> SlowLog:
        if self.fails_to_open:
            raise self.fails_to_open.pop(0)
        self.opened.append(SlowLog(self))
        return self.opened[-1]

    @asynccontextmanager
    async def router(
        self, supported: Set[str] = KNOWN_FEATURES, ready_s: float = WITHIN_S
    ) -> AsyncIterator[Router]:
        opened = log_router(self.open, lambda: CatchUp(()), "demo", ready_s, supported)
        async with opened as router:
            yield router


class SlowLog(MemoryLog):
    """A log that returns a batch at a time."""

    PAUSE_S = 0.01
    reader: TopicReader
    on_error: Callable[[Exception], None]

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.partition)
        self._broker = broker
        self._giving: asyncio.Task[None] | None = None

    async def ends(self) -> Ends:
        if self._broker.fails_to_tell_its_ends:
            raise self._broker.fails_to_tell_its_ends.pop(0)
        return await super().ends()

    async def look(self, offset: int | None) -> TopicProbe:
        if self._broker.fails_to_look:
            raise self._broker.fails_to_look.pop(0)
        return await super().look(offset)

    def follow(
        self,
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt = ignore,
        has_room: HasRoom = always,
    ) -> None:
        self.reader = on_records.__self__  # type: ignore[attr-defined]
        self.on_error = on_error

        async def give() -> None:
            at = offset
            while True:
                records = self._partition.records[at : at + self._broker.batch]
                if records:
                    on_records(records)
                at += len(records)
                await asyncio.sleep(self.PAUSE_S)

        self._giving = asyncio.create_task(give())

    async def close(self) -> None:
        if self._giving is not None:
            self._giving.cancel()


@pytest.fixture
def history() -> History:
    return three_nodes()[0]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_kafka, "RETRY_S", 0.1)
    monkeypatch.setattr(over_kafka, "TROUBLE_EVERY_S", 0.02)


def no_answer() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TRANSPORT))


async def test_router_is_ready_once_the_log_is_read_to_its_end(history: History) -> None:
    async with Broker(history).router() as router:
        assert router.epoch == len(history.epochs)
        assert router.lookup(KEYSPACE, b"k").reads


async def test_reading_the_log_may_take_several_waits_for_its_end(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_kafka, "END_S", 0.05)
    broker = Broker(history)
    broker.batch = 1
    with pytest.raises(NotReady, match="the log is being read, and is at epoch"):
        async with broker.router(ready_s=0.1):
            pass
    broker.opened.clear()
    async with broker.router() as router:
        assert router.epoch == len(history.epochs)
    assert len(broker.opened) == 1


async def test_restarting_router_uses_its_old_state_until_the_end_is_read(
    history: History,
) -> None:
    broker, epochs = Broker(history), set[int]()
    broker.batch = 1
    async with broker.router() as router:
        broker.opened[-1].on_error(OffsetGoneError(9, "the reader was left behind"))
        await until(lambda: "left behind" in router.trouble, "the router to notice", WITHIN_S)
        while router.trouble:
            epochs.add(router.epoch)
            assert router.lookup(KEYSPACE, b"k").reads
            await asyncio.sleep(0.005)
        assert epochs == {len(history.epochs)} and len(broker.opened) == 2
        assert history.apply(SetSetting("colour", "blue")) is None
        broker.give(history, len(history.epochs))
        await router.wait_for_epoch(len(history.epochs), WITHIN_S)


async def test_router_without_a_required_feature_keeps_its_state_and_retries(
    history: History,
) -> None:
    broker, known = Broker(history), len(history.epochs)
    async with broker.router(KNOWN_FEATURES - {REPORT_SOURCES}) as router:
        history.enable(REPORT_SOURCES)
        assert history.apply(SetSetting("colour", "blue")) is None
        history.epochs[known] = replace(history.epochs[known], required_features=(REPORT_SOURCES,))
        broker.give(history, len(history.epochs))
        await until(lambda: REPORT_SOURCES in router.trouble, "the router to say why", WITHIN_S)
        for _ in range(150):
            assert router.epoch == known and router.lookup(KEYSPACE, b"k").reads
            assert REPORT_SOURCES in router.trouble
            await asyncio.sleep(0.01)
        assert 3 <= len(broker.opened) <= 5
    with pytest.raises(NotReady, match=REPORT_SOURCES):
        async with broker.router(KNOWN_FEATURES - {REPORT_SOURCES}, 0.5):
            pass


@pytest.mark.parametrize("which", ("open", "look", "ends"))
async def test_failed_call_to_a_broker_is_retried(history: History, which: str) -> None:
    broker = Broker(history)
    match which:
        case "open":
            broker.fails_to_open = [no_answer()]
        case "look":
            broker.fails_to_look = [no_answer(), TimeoutError("too late")]
        case _:
            broker.fails_to_tell_its_ends = [no_answer(), TimeoutError("too late")]
    async with broker.router() as router:
        assert history.apply(SetSetting("colour", "blue")) is None
        broker.give(history, len(history.epochs))
        await router.wait_for_epoch(len(history.epochs), WITHIN_S)
        await until(lambda: not router.trouble, "the trouble to end", WITHIN_S)


async def test_recreated_empty_topic_keeps_the_state_of_the_router(
    history: History,
) -> None:
    broker = Broker(history)
    async with broker.router() as router:
        broker.lose_the_topic()
        await until(lambda: router.trouble == "the log is empty", "the log to be read", WITHIN_S)
        assert router.lookup(KEYSPACE, b"k").reads
        broker.give(history, len(history.epochs))
        await until(lambda: not router.trouble, "the log to be read again", WITHIN_S)


async def test_router_does_not_switch_to_a_newly_founded_cluster(
    history: History,
) -> None:
    """The new cluster has no data that the client has read or written."""
    broker = Broker(history)
    async with broker.router() as router:
        broker.lose_the_topic()
        anew = three_nodes(cluster_id="demo/2")[0]
        broker.give(anew, 3)
        await until(lambda: "is of cluster" in router.trouble, "the router to notice", WITHIN_S)
        broker.give(anew, len(anew.epochs))
        await asyncio.sleep(10 * SlowLog.PAUSE_S)
        assert router.image.cluster_id == "demo/1" and router.epoch == len(history.epochs)
        assert "create a new router" in router.trouble


async def test_each_replaced_reader_is_stopped(history: History) -> None:
    broker = Broker(history)
    async with broker.router() as router:
        broker.opened[-1].on_error(OffsetGoneError(9, "the reader was left behind"))
        await until(lambda: len(broker.opened) == 2, "the router to begin anew", WITHIN_S)
        await until(lambda: not router.trouble, "the log to be read", WITHIN_S)
    assert [log.reader._stopped for log in broker.opened] == [True, True]
