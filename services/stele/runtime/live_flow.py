"""Read one flow of all nodes through Faust: an agent reads raw records inside the service's
event loop.

Every process that reads a flow answers for the whole cluster, so it reads all of it. Its group is
named after the instance and has one static member. The topic itself is the table of the newest
records. At each start and after each rebalance, the reader goes back a bounded number of records
from the end. The reasons are in docs/decisions/004-faust-carries-the-acks.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import faust
import msgspec
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.transport.drivers.aiokafka import Consumer as FaustConsumer
from mode.threads import WorkerThread

from stele.log.brokers import Brokers
from stele.log.deliveries import Refusals, note_start_wait, refusal
from stele.log.ends import resolve
from stele.log.flows import flow_topic
from stele.runtime.logs import get_logger
from stele.runtime.settings import ServiceSettings

# Position of a reader at the tail of a flow, and the time until which it has read every record.
#
# Pure. Each answer to a fetch contains the end of the partition. Once all records up to that end
# were handed on, everything that was in the partition at the answer has been read. Reading is
# confirmed until then. A quiet topic thus confirms as well as a busy one. A reader that is paused,
# cut off or overloaded confirms nothing.


Partition = int


class FetchAnswer(NamedTuple):
    """A partition's newest answer to a fetch. ``mark`` differs from answer to answer."""

    end_offset: int
    mark: object


class _At(msgspec.Struct):
    """State of one partition.

    ``open_end`` is the end in the oldest answer that is not fully read yet. ``open_at_s`` is a time
    before that answer came.
    """

    live_from: int
    next_offset: int
    mark: object = None
    open_end: int | None = None
    open_at_s: float = 0.0
    read_until_s: float | None = None


class Tail:
    """Receives each start of reading, each record and, periodically, the newest answers."""

    def __init__(self) -> None:
        self._at: dict[Partition, _At] = {}
        self._looked_at_s = 0.0
        self.began_s = 0.0
        """Time at which reading began last."""

    def start(
        self, starts: Mapping[Partition, int], ends: Mapping[Partition, int], now_s: float
    ) -> None:
        """Start or restart reading at ``starts``. Records from ``ends`` on are new."""
        self._at = {each: _At(ends[each], start) for each, start in starts.items()}
        self._looked_at_s = self.began_s = now_s

    def take(self, partition: Partition, offset: int) -> bool:
        """Note that a record was handed on. Return False when it is from before reading began."""
        at = self._at.get(partition)
        if at is None:
            return True
        at.next_offset = offset + 1
        return offset >= at.live_from

    def look(self, fetched: Mapping[Partition, FetchAnswer], now_s: float) -> float | None:
        """Return the time until which all partitions were read; None while unknown.

        Call it after ``take`` of all records that had arrived. An answer that the previous look did
        not see came after that look. The time of that look is therefore before the answer.
        """
        for partition, at in self._at.items():
            answer = fetched.get(partition)
            if answer is not None and answer.mark != at.mark:
                at.mark = answer.mark
                if at.open_end is None:
                    at.open_end, at.open_at_s = answer.end_offset, self._looked_at_s
            if at.open_end is not None and at.next_offset >= at.open_end:
                at.open_end, at.read_until_s = None, at.open_at_s
        self._looked_at_s = now_s
        until = [at.read_until_s for at in self._at.values()]
        known = [each for each in until if each is not None]
        return min(known) if known and len(known) == len(until) else None


START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 6.0
"""Less than the service's own deadline."""
LOOK_S: Final = 0.25
"""Interval for checking reading progress, in seconds."""
STALLED_S: Final = 6.0
"""Time without a confirmation after which reading counts as stalled.

Electing a leader takes less.
"""
ASK_WHY_S: Final = 3.0
LOST_LOOKS: Final = 10
"""Stalled looks in a row, ``ASK_WHY_S`` apart, after which the process ends.

In all of them the leaders of all partitions answer, yet no record is read. Looks are counted, not timed, so
a process that was paused gets the same chance.
"""
RESTLESS_STARTS: Final = 4
RESTLESS_S: Final = 30.0
"""One start and one or two rebalances are normal.

``RESTLESS_STARTS`` of them within this time are not.
"""
SESSION_TIMEOUT_S: Final = 10.0
"""Session of the group member.

No process waits for its end: the next start replaces the only member at once.
"""
HEARTBEAT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 10.0
"""Time after which a silent broker is given up. Faust requires at least the session's."""

OnRecord = Callable[[bytes, float], None]
"""Gets a record and its age in seconds: 0 for one sent while this process reads."""
OnReadUntil = Callable[[float, float], None]
"""Gets the time until which all records have been read, and the time since which."""

log = get_logger(__name__)


class LiveFlow(msgspec.Struct, frozen=True):
    """A flow and the service that reads it. ``look_back``: records of each partition to begin with.

    None: all records present, which a compacted topic keeps few.
    """

    service: str
    name: str
    look_back: int | None = None


class FlowLost(Exception):
    """The reader of a flow has ended or hangs. A new process must read the flow."""


class Stall(NamedTuple):
    """The reason why no records are read, and whether the brokers are ready to serve them."""

    why: str
    is_readable: bool = False


class ReaderThread(WorkerThread):  # type: ignore[misc]  # mode has no types
    """The thread of Faust's consumer. It never keeps the process from ending.

    Faust leaves the thread running when the process is asked to stop while the consumer starts.
    """

    def __init__(self, service: Any, **more: Any) -> None:
        super().__init__(service, **more)
        self.daemon = True

    def stop(self) -> None:
        """Wait for the end of the thread, at most ``STOP_TIMEOUT_S``: the event loop waits too."""
        self.is_stopped.wait(STOP_TIMEOUT_S)


class TailConsumer(FaustConsumer):  # type: ignore[misc]  # Faust has no types
    """Begins ``look_back`` records before the end of each partition, whatever was read before.

    Never commits.
    """

    def __init__(self, *args: Any, tail: Tail, look_back: int | None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._tail = tail
        self._look_back = look_back

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return AIOKafkaConsumerThread(self, loop=self.loop, beacon=self.beacon, Worker=ReaderThread)

    async def seek_to_committed(self) -> Mapping[Any, int]:
        """Seek to the start of reading.

        Faust calls this after each rebalance, before the first record.
        """
        partitions = self.assignment()
        ends = await self.highwaters(*partitions)
        begins = await self.earliest_offsets(*partitions)
        starts = {each: self._start(begins[each], ends[each]) for each in partitions}
        await self.seek_wait(starts)
        by_number = {each.partition: ends[each] for each in partitions}
        at = {each.partition: start for each, start in starts.items()}
        self._tail.start(at, by_number, time.monotonic())
        return starts

    def _start(self, begin: int, end: int) -> int:
        return begin if self._look_back is None else max(begin, end - self._look_back)

    async def _commit(self, _offsets: Mapping[Any, int]) -> bool:
        return True

    def fetched(self) -> dict[int, FetchAnswer]:
        """Return the newest answer of each partition that has answered."""
        consumer = self._thread._ensure_consumer()  # noqa: SLF001 - Faust shows it nowhere else
        answers = {}
        for each in consumer.assignment():
            mark, end_offset = consumer.last_poll_timestamp(each), consumer.highwater(each)
            if mark is not None and end_offset is not None:
                answers[each.partition] = FetchAnswer(end_offset, mark)
        return answers


class LiveReader:
    """The Faust application of one process.

    ``trouble`` is why records are not read; empty while they are. ``restless`` is why reading
    restarts often.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        flow: LiveFlow,
        datadir: str,
        on_record: OnRecord,
        on_read_until: OnReadUntil,
    ) -> None:
        self.trouble = ""
        self.restless = ""
        self._flow = flow
        self._brokers = settings.brokers
        self._topic = flow_topic(settings.cluster, flow.name)
        self._on_record = on_record
        self._on_read_until = on_read_until
        self._tail = Tail()
        self._read_until_s = time.monotonic()
        self._records = 0
        self._starts_s = deque[float](maxlen=RESTLESS_STARTS)
        self.app = self._make_app(settings, datadir)

    async def watch(self) -> None:
        """Track the progress of reading, forever.

        Raises FlowLost when reading has ended or hangs. After brokers hung or were replaced, Faust
        may wait forever for an answer to its fetch.
        """
        asked_why_s, hanging, records = float("-inf"), 0, 0
        while not (self.app.crashed or self.app.should_stop):
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            self._look(now_s)
            self._note_starts(now_s)
            stalled = now_s - self._read_until_s > STALLED_S
            if not stalled:
                self.trouble, hanging = "", 0
            elif now_s - asked_why_s > ASK_WHY_S:
                stall = await asyncio.to_thread(self._why_stalled)
                self.trouble = stall.why
                log.warning("a flow is not read", flow=self._flow.name, why=self.trouble)
                asked_why_s = time.monotonic()
                hanging = hanging + 1 if stall.is_readable and records == self._records else 0
                records = self._records
                if hanging > LOST_LOOKS:
                    raise FlowLost(
                        f"The reader of {self._flow.name} hangs: the brokers answer, and it has read nothing in"
                        f" {hanging} looks. This process ends, so that a new one reads."
                    )
        why = self.app.crash_reason
        raise FlowLost(f"The reader of {self._flow.name} has ended: {_refused(why) or repr(why)}")

    def _look(self, now_s: float) -> None:
        try:
            fetched = self.app.consumer.fetched()
        except Exception:  # no consumer exists now, so nothing is confirmed
            return
        until_s = self._tail.look(fetched, now_s)
        if until_s is not None and until_s > self._read_until_s:
            self._read_until_s = until_s
            self._on_read_until(until_s, self._tail.began_s)

    def _note_starts(self, now_s: float) -> None:
        began_s = self._tail.began_s
        if began_s > (self._starts_s[-1] if self._starts_s else 0.0):
            self._starts_s.append(began_s)
        lately = sum(now_s - start_s < RESTLESS_S for start_s in self._starts_s)
        self.restless = (
            f"reading of {self._flow.name} began {lately} times within {RESTLESS_S:g} s."
            " If another process has the same STELE_INSTANCE_ID, give each its own"
            if lately >= RESTLESS_STARTS
            else ""
        )

    def _why_stalled(self) -> Stall:
        silent = f"The records in {self._topic} are not read since {STALLED_S:g} s or more"
        refusals = Refusals()
        settings = {"error_cb": refusals, "group.id": "stele-unused"}
        consumer = Consumer(self._brokers.client() | settings)
        try:
            topic = consumer.list_topics(self._topic, timeout=ASK_WHY_S).topics[self._topic]
            if topic.error is None:
                leaderless = [each.id for each in topic.partitions.values() if each.leader < 0]
                if leaderless:
                    return Stall(f"{silent}: partitions {leaderless} have no leader.")
                # A broker that answers may name a leader that hangs. Only the leaders themselves
                # show that the records can be read.
                ends = [TopicPartition(self._topic, each, OFFSET_END) for each in topic.partitions]
                resolve(consumer, ends, ASK_WHY_S)
                return Stall(
                    f"{silent}, though the leaders of all partitions answer.", is_readable=True
                )
        except (KafkaException, TimeoutError) as error:
            return Stall(f"{silent}: the brokers do not answer ({refusals.why(error, consumer)}).")
        finally:
            consumer.close()
        if topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            make = "Make it with python -m stele.runtime.topics."
            return Stall(f"{silent}: there is no such topic. {make}")
        return Stall(f"{silent}: {refusal(topic.error) or topic.error.str()}.")

    def _make_app(self, settings: ServiceSettings, datadir: str) -> Any:
        app = faust.App(
            f"stele.{settings.cluster}.{self._flow.service}.{settings.instance_id}",
            broker=[f"kafka://{server}" for server in settings.brokers.servers.split(",")],
            autodiscover=False,
            broker_credentials=_credentials(settings.brokers),
            broker_heartbeat_interval=HEARTBEAT_S,
            broker_request_timeout=REQUEST_TIMEOUT_S,
            broker_session_timeout=SESSION_TIMEOUT_S,
            consumer_auto_offset_reset="latest",
            consumer_group_instance_id=settings.instance_id,
            datadir=datadir,
            key_serializer="raw",
            store="memory://",
            topic_allow_declare=False,
            topic_disable_leader=True,
            value_serializer="raw",
            web_enabled=False,
            worker_redirect_stdouts=False,
        )
        app.transport.Consumer = functools.partial(
            TailConsumer, tail=self._tail, look_back=self._flow.look_back
        )
        raw = {"key_type": bytes, "value_type": bytes}
        topic = app.topic(self._topic, key_serializer="raw", value_serializer="raw", **raw)
        app.agent(topic, concurrency=1, name=self._flow.name)(self._read)
        return app

    async def _read(self, stream: Any) -> None:
        async for event in stream.events():
            self._records += 1
            message = event.message
            is_new = self._tail.take(message.partition, message.offset)
            self._on_record(event.value, 0.0 if is_new else _age_s(message.timestamp))


def _refused(error: Any) -> str:
    """Return what the brokers refused and what to do; empty for other errors. aiokafka uses
    Kafka's numbers.
    """
    code = getattr(error, "errno", 0)
    return refusal(KafkaError(code)) if isinstance(code, int) and code > 0 else ""


def _credentials(brokers: Brokers) -> Any:
    """Return the credentials in Faust's form; None when neither side authenticates."""
    context = None if brokers.tls is None else brokers.tls.context()
    if brokers.login is not None:
        return faust.SASLCredentials(
            username=brokers.login.username,
            password=brokers.login.password.reveal(),
            mechanism=brokers.login.mechanism,
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context)


def _age_s(sent_at_s: float) -> float:
    """Return the age by the sender's or the broker's clock, always above 0, which marks new
    records.
    """
    return max(0.001, time.time() - sent_at_s)


@asynccontextmanager
async def reading_live(
    settings: ServiceSettings, flow: LiveFlow, on_record: OnRecord, on_read_until: OnReadUntil
) -> AsyncIterator[LiveReader]:
    """Read a flow inside the block. The callbacks must not raise.

    Waits for the brokers without a time limit.
    """
    note_start_wait(f"The reader of {flow.name} has not started yet.")
    with tempfile.TemporaryDirectory(prefix=f"stele-{flow.service}-") as datadir:
        while True:
            reader = LiveReader(settings, flow, datadir, on_record, on_read_until)
            try:
                if await _is_started(reader):
                    yield reader
                    return
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_TIMEOUT_S):
                        await reader.app.stop()
            log.warning("the reader of a flow has not started", flow=flow.name)


async def _is_started(reader: LiveReader) -> bool:
    """Return whether the reader starts within ``START_TIMEOUT_S``."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await reader.app.start()
    except TimeoutError:
        return False
    return True
