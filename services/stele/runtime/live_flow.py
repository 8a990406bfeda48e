"""What all nodes say in one flow, by Faust: an agent that reads raw records inside the service's event loop.

Every process that reads a flow answers for the whole cluster, so each reads all of it, in a group of its own
that is named after its instance and has one static member. The topic itself is the table of what was said last:
at each start, and whenever its group was rebalanced, the reader goes back a bounded way from the end. Why it is
built like this is in docs/decisions/004-faust-carries-the-acks.md.
"""

import asyncio
import contextlib
import functools
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import faust
import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from faust.transport.drivers.aiokafka import Consumer as FaustConsumer

from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.log.refusals import Refusals, refusal
from stele.runtime.logs import get_logger
from stele.runtime.settings import ServiceSettings
from stele.runtime.tail import Fetched, Tail

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 6.0
"""Below the service's own deadline."""
LOOK_S: Final = 0.25
"""How often it is seen whether reading goes on."""
STALLED_S: Final = 6.0
"""Without a confirmation for this long something is wrong. Electing a leader takes less."""
ASK_WHY_S: Final = 3.0
RESTLESS_STARTS: Final = 4
RESTLESS_S: Final = 30.0
"""A start, and one rebalance or two, are nothing; as many starts as this within this time are."""
SESSION_TIMEOUT_S: Final = 10.0
"""Nobody waits for a session to end: the group has one member, and its next start takes its place at once."""
HEARTBEAT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 10.0
"""After which a broker that is silent is given up; Faust wants it not below the session's."""

OnRecord = Callable[[bytes, float], None]
"""Gets a record and its age in seconds, which is 0 for one that was sent while this process read."""
OnReadUntil = Callable[[float, float], None]
"""Gets until when all records have been read, and since when."""

log = get_logger(__name__)


class LiveFlow(msgspec.Struct, frozen=True):
    """Whose flow is read by which service. ``look_back`` are the records of each partition to begin with; none:
    all that are there, which a compacted topic keeps few.
    """

    service: str
    name: str
    look_back: int | None = None


class FlowLost(Exception):
    """The reader of a flow has ended; what nodes say is not known any more."""


class TailConsumer(FaustConsumer):  # type: ignore[misc]  # Faust has no types
    """Begins so many records before the end of each partition, whatever was read before; commits nothing."""

    def __init__(self, *args: Any, tail: Tail, look_back: int | None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._tail = tail
        self._look_back = look_back

    async def seek_to_committed(self) -> Mapping[Any, int]:
        """Faust calls this wherever reading begins: after each rebalance, before the first record."""
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

    def fetched(self) -> dict[int, Fetched]:
        """The newest answer of each partition that has given one."""
        consumer = self._thread._ensure_consumer()  # noqa: SLF001 - Faust shows it nowhere else
        answers = {}
        for each in consumer.assignment():
            mark, end_offset = consumer.last_poll_timestamp(each), consumer.highwater(each)
            if mark is not None and end_offset is not None:
                answers[each.partition] = Fetched(end_offset, mark)
        return answers


class LiveReader:
    """The Faust application of one process.

    ``trouble`` says why records are not read, empty while they are; ``restless`` why reading begins anew so
    often.
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
        self._starts_s = deque[float](maxlen=RESTLESS_STARTS)
        self.app = self._make_app(settings, datadir)

    async def watch(self) -> None:
        """Note how far reading has come, for ever. Raises FlowLost when it has ended for good."""
        asked_why_s = float("-inf")
        while not (self.app.crashed or self.app.should_stop):
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            self._look(now_s)
            self._note_starts(now_s)
            stalled = now_s - self._read_until_s > STALLED_S
            if not stalled:
                self.trouble = ""
            elif now_s - asked_why_s > ASK_WHY_S:
                self.trouble = await asyncio.to_thread(self._why_stalled)
                log.warning("a flow is not read", flow=self._flow.name, why=self.trouble)
                asked_why_s = time.monotonic()
        why = self.app.crash_reason
        raise FlowLost(f"The reader of {self._flow.name} has ended: {_refused(why) or repr(why)}")

    def _look(self, now_s: float) -> None:
        try:
            fetched = self.app.consumer.fetched()
        except Exception:  # there is no consumer yet, or none any more: nothing is confirmed
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

    def _why_stalled(self) -> str:
        silent = f"The records in {self._topic} are not read since {STALLED_S:g} s or more"
        refusals = Refusals()
        admin = AdminClient(self._brokers.client() | {"error_cb": refusals})
        try:
            topic = admin.list_topics(self._topic, timeout=ASK_WHY_S).topics[self._topic]
        except KafkaException as error:
            return f"{silent}: the brokers do not answer ({refusals.why(error, admin)})."
        if topic.error is None:
            return f"{silent}, though the topic is there."
        if topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return f"{silent}: there is no such topic. Make it with python -m stele.runtime.topics."
        return f"{silent}: {refusal(topic.error) or topic.error.str()}."

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
            message = event.message
            is_new = self._tail.take(message.partition, message.offset)
            self._on_record(event.value, 0.0 if is_new else _age_s(message.timestamp))


def _refused(error: Any) -> str:
    """What the brokers refused, and what to do; aiokafka's errors have Kafka's numbers. Empty for others."""
    code = getattr(error, "errno", 0)
    return refusal(KafkaError(code)) if isinstance(code, int) and code > 0 else ""


def _credentials(brokers: Brokers) -> Any:
    """Faust's own form of them; None where neither side proves who it is."""
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
    """By the clock of the sender, or of the broker; never below what tells it from a new one."""
    return max(0.001, time.time() - sent_at_s)


@asynccontextmanager
async def reading_live(
    settings: ServiceSettings, flow: LiveFlow, on_record: OnRecord, on_read_until: OnReadUntil
) -> AsyncIterator[LiveReader]:
    """Read a flow inside the block; the callbacks must not raise."""
    with tempfile.TemporaryDirectory(prefix=f"stele-{flow.service}-") as datadir:
        reader = LiveReader(settings, flow, datadir, on_record, on_read_until)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await reader.app.start()
            yield reader
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await reader.app.stop()
