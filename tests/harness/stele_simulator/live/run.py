"""A run on real processes from beginning to end: load, requests and faults, rest, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from stele.domain.commands import CreateKeyspace
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.names import NodeState, RequestKind, RequestStatus
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.brokers import Brokers
from stele.log.codec import decode_ack
from stele.log.commander import Commander
from stele.log.ends import read_topic
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.log.port import Record
from stele.runtime.kafka import ACKS_SEGMENT_MS
from stele_simulator.live.admin import Admin
from stele_simulator.live.admins import Admins
from stele_simulator.live.checks import Checked, LogRead, check_all
from stele_simulator.live.clients import KEYSPACE, SCRATCH, DataClients
from stele_simulator.live.command_sender import CommandSender, holds_within
from stele_simulator.live.convergence import Rest, converge, members_of
from stele_simulator.live.faults import Fault, Role, plan
from stele_simulator.live.history import DataOp, Event, History, Question
from stele_simulator.live.injector import FaultInjector
from stele_simulator.live.scratch import ScratchAdmin
from stele_simulator.live.site import CLUSTER, NODES, Site
from stele_simulator.live.topology import TopologyAdmin
from stele_simulator.live.watchers import probe, read_states, watch
from stele_simulator.result import Failure
from stele_simulator.violation import Violation

ACKS: Final = flow_topic(CLUSTER, "acks")
ADMINS: Final = 3
MEMBERS_WITHIN_S: Final = 180.0
LAST_WRITES_S: Final = 5.0
"""Time for which clients continue after the faults."""
REAP_AFTER_S: Final = 3.0
READ_RECORDS: Final = 5000
EVENTS_SHOWN: Final = 20
READ_ACKS_EVERY_S: Final = 60.0
"""With the longest outage of all brokers, shorter than acks are kept; see ``_keep_each_ack``."""
ADMIN_TIMEOUT_S: Final = 60.0


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Faults and checks of a run. ``history`` is the file with every record."""

    seed: int
    minutes: float
    failure: Failure | None
    checked: Checked | None
    faults: int
    connections: int
    disturbed: int
    """Pieces of data that had to be sent again."""
    commands: int
    unanswered: int
    writes: int
    reads: int
    unknown: int
    refused: int
    longest_gap_s: float
    rest_s: float
    requests: dict[str, int]
    """Topology requests that were done, by kind."""
    history: str

    @property
    def passed(self) -> bool:
        return self.failure is None


class Live:
    """One run. ``tell`` is given each event as it happens, with its time in seconds."""

    def __init__(
        self, directory: Path, seed: int, minutes: float, tell: Callable[[float, str], None]
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._minutes = minutes
        self._tell = tell

    async def run(self) -> LiveResult:
        """To the end, whatever is found. Raises what keeps the stack from starting."""
        stack = self._directory / "stack"
        shutil.rmtree(stack, ignore_errors=True)
        site = Site(stack, self._seed)
        history = History(self._directory / "history.jsonl", self._tell)
        injector = FaultInjector(site, history)
        try:
            history.event("brokers, Redis and services start")
            await site.start()
            clients, rest, log, acks = await self._act(site, history, injector)
        finally:
            await site.stop()
            history.close()
        history.event("the history is checked")
        checked, failure = None, None
        try:
            checked = check_all(history.records, log, acks, rest)
        except Violation as violation:
            failure = _failure(violation, history)
        data, questions = history.of(DataOp), history.of(Question)
        return LiveResult(
            seed=self._seed,
            minutes=self._minutes,
            failure=failure,
            checked=checked,
            faults=injector.done,
            connections=site.proxies.connections,
            disturbed=site.proxies.lost,
            commands=len(questions),
            unanswered=sum(1 for q in questions if q.outcome is None),
            writes=sum(1 for op in data if op.write and op.done),
            reads=sum(1 for op in data if not op.write and op.done),
            unknown=sum(1 for op in data if not op.known),
            refused=sum(1 for op in data if op.known and not op.done),
            longest_gap_s=round(clients.longest_gap_s, 2),
            rest_s=round(rest.took_s, 2),
            requests={str(kind): _done(log.image, kind) for kind in OPERATIONS},
            history=str(history.path),
        )

    async def _act(
        self, site: Site, history: History, injector: FaultInjector
    ) -> tuple[DataClients, Rest, LogRead, list[Ack]]:
        """Load and faults for the run's minutes, then rest; what was seen and what the log holds."""
        log = KafkaLog(site.kafka, flow_topic(CLUSTER, "epochs"))
        async with (
            aiohttp.ClientSession() as http,
            Commander(site.kafka, CLUSTER) as commander,
            _following(log) as follower,
        ):

            def members() -> dict[str, str]:
                return members_of(follower.image)

            def image() -> Image:
                return follower.image

            metadata_logs = {name: site.url(name) for name in site.names(Role.METADATA_LOG)}
            urls = list(metadata_logs.values())
            sender = CommandSender(http, commander, urls, history, self._seed)
            clients, acks = DataClients(http, history, members, self._seed), set[Ack]()
            await asyncio.to_thread(_keep_each_ack, site.kafka)
            if not await holds_within(lambda: len(members()) == NODES, MEMBERS_WITHIN_S):
                raise TimeoutError(f"the first nodes did not join within {MEMBERS_WITHIN_S:g} s")
            for keyspace in (KEYSPACE, SCRATCH):
                await sender.ask(CreateKeyspace(keyspace, {"dc1": 3}), "the data")
            await clients.fill()
            admins: list[Admin] = [
                *[Admins(sender, image, self._seed)] * ADMINS,
                TopologyAdmin(sender, image, site, history, self._seed),
                ScratchAdmin(sender, image, history, self._seed),
            ]
            onlookers = (
                *(watch(http, url, number, history) for number, url in enumerate(urls)),
                *(
                    read_states(http, name, url, history, self._seed)
                    for name, url in metadata_logs.items()
                ),
                probe(http, members, image, history, self._seed),
                _reap(site, history, follower),
                _keep_acks(site.kafka, acks),
            )
            async with _running(onlookers):
                history.event(f"{len(members())} nodes serve; faults begin")
                await self._disturb(history, injector, clients, admins)
                rest = await converge(site, history, http, follower, clients)
            acks.update(await asyncio.to_thread(_acks, site.kafka))
            return clients, rest, LogRead(await _everything(log)), [*acks]

    async def _disturb(
        self,
        history: History,
        injector: FaultInjector,
        clients: DataClients,
        admins: Sequence[Admin],
    ) -> None:
        """Clients, admins and faults for the run's minutes; then no fault holds any more."""
        start_s, seconds = history.now(), self._minutes * 60
        faults: list[Fault] = [
            msgspec.structs.replace(fault, at_s=fault.at_s + start_s)
            for fault in plan(self._seed, seconds)
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(clients.work())
            for admin in admins:
                group.create_task(admin.work())
            await injector.make(faults)
            await asyncio.sleep(max(0.0, start_s + seconds - history.now()))
            await injector.end()
            history.event("faults end")
            await asyncio.sleep(LAST_WRITES_S)
            for admin in admins:
                admin.running = False
            clients.stop()


@asynccontextmanager
async def _following(log: KafkaLog) -> AsyncIterator[LogFollower]:
    follower = LogFollower(log)
    follower.start()
    try:
        yield follower
    finally:
        await log.close()


@asynccontextmanager
async def _running(works: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run tasks until the end of the block. Raises the first exception of one of them."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ended:
        if not isinstance(end, asyncio.CancelledError):
            raise RuntimeError("an onlooker ended early") from end


async def _reap(site: Site, history: History, follower: LogFollower) -> None:
    """Stop the processes of nodes that have left, a while after."""
    while True:
        await asyncio.sleep(REAP_AFTER_S)
        for name in site.names(Role.NODE):
            node = follower.image.node(name)
            if node is not None and node.state is NodeState.LEFT:
                history.event(f"{name} has left and is stopped")
                await site.stop_node(name)


def _keep_each_ack(brokers: Brokers) -> None:
    """Have the topic keep each ack for the longest time that its settings allow."""
    lag = ConfigEntry(
        "min.compaction.lag.ms",
        str(ACKS_SEGMENT_MS),
        incremental_operation=AlterConfigOpType.SET,
    )
    topic = ConfigResource(ResourceType.TOPIC, ACKS, incremental_configs=[lag])
    admin = AdminClient(brokers.client())
    admin.incremental_alter_configs([topic])[topic].result(ADMIN_TIMEOUT_S)


async def _keep_acks(brokers: Brokers, acks: set[Ack]) -> None:
    """Add all acks of the run to the set, before compaction removes them."""
    while True:
        with contextlib.suppress(KafkaException, TimeoutError):  # the next time may succeed
            acks.update(await asyncio.to_thread(_acks, brokers))
        await asyncio.sleep(READ_ACKS_EVERY_S)


def _acks(brokers: Brokers) -> list[Ack]:
    """Return the acks that the topic holds."""
    found = read_topic(brokers, ACKS)
    return [decode_ack(value) for _, value in found if value is not None]


async def _everything(log: KafkaLog) -> list[Record]:
    records = list[Record]()
    while found := await log.read(records[-1].offset + 1 if records else 0, READ_RECORDS):
        records += found
    return records


def _done(image: Image, kind: RequestKind) -> int:
    requests = image.requests.requests.values()
    return sum(1 for r in requests if r.kind is kind and r.status is RequestStatus.DONE)


def _failure(violation: Violation, history: History) -> Failure:
    before = [f"{event.ended:8.2f} s  {event.text}" for event in history.of(Event)]
    return Failure(
        invariant=violation.invariant,
        expected=violation.expected,
        found=violation.found,
        at_s=history.now(),
        before=tuple(before[-EVENTS_SHOWN:]),
    )
