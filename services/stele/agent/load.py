"""What a node's tablets and its disk hold: measured now and then by the store, and told to the balancer.

It is told again soon after the node has other tablets. Nothing that goes wrong here stops the node: it is
logged once, and tried again.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from stele.agent.agent import Agent
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.messages import Load, TabletSizes
from stele.domain.tablets.maps import read_from
from stele.log.brokers import Brokers
from stele.log.codec import encode_load
from stele.log.flows import FlowWriter, flow_topic
from stele.runtime.kafka import LOAD_MAX_MESSAGE_BYTES
from stele.runtime.logs import get_logger
from stele.runtime.service import wait_at_most

SOON_S: Final = 5.0
"""Between two reports of a node whose tablets change all the time, and before another try."""
MUTE_S: Final = 0.5
"""Between two looks whether the node may speak."""
MEASURING_PART: Final = 0.1
"""Of a node's time that may go into measuring, however often its tablets change."""

log = get_logger(__name__)


class Held(NamedTuple):
    """The tablets of a table that a node has, ``of`` so many."""

    data_id: str
    of: int
    tablets: tuple[int, ...]


class Disk(NamedTuple):
    """Bytes that data may take in all, and those that are left."""

    total_bytes: int
    free_bytes: int


def held_of(image: Image, node_id: str) -> tuple[Held, ...]:
    """What there is to measure: who comes to a tablet has it once it serves its reads."""
    return tuple(
        Held(data.data_id, count, tuple(tablets))
        for data, count, tablets in read_from(image, node_id)
    )


def disk_of(folder: Path, held_bytes: int, capacity_bytes: int) -> Disk:
    """The folder's file system, or ``capacity_bytes`` of it, 0: all, of which ``held_bytes`` are taken."""
    usage = shutil.disk_usage(folder)
    if not capacity_bytes:
        return Disk(usage.total, usage.free)
    left = max(0, capacity_bytes - held_bytes)
    return Disk(capacity_bytes, min(left, usage.free))


def still_held(tables: Sequence[TabletSizes], held: Sequence[Held]) -> tuple[TabletSizes, ...]:
    """Without tablets that were given away while they were measured: their data may be gone by half."""
    has = {each.data_id: frozenset(each.tablets) for each in held}
    found = list[TabletSizes]()
    for table in tables:
        kept = [
            pair
            for pair in zip(table.tablets, table.sizes_bytes, strict=True)
            if pair[0] in has.get(table.data_id, ())
        ]
        tablets, sizes = zip(*kept, strict=True) if kept else ((), ())
        found.append(msgspec.structs.replace(table, tablets=tablets, sizes_bytes=sizes))
    return tuple(found)


def resized(before: Sequence[Held], now: Sequence[Held]) -> tuple[Held, ...]:
    """As they were before, tables whose number of tablets has changed, so that their numbers mean others."""
    counts = {each.data_id: each.of for each in now}
    return tuple(each for each in before if counts.get(each.data_id, each.of) != each.of)


Measure = Callable[[Image, Sequence[Held]], Awaitable[tuple[TabletSizes, ...]]]
"""The bytes of these tablets of this node, as they are now."""
AddRates = Callable[[Sequence[TabletSizes]], tuple[TabletSizes, ...]]
"""What is about to be told: gives it back, with rates where they are counted."""


class LoadReporter:
    """Measures and sends. ``run`` it until it is cancelled."""

    def __init__(
        self,
        agent: Agent,
        measure: Measure,
        told: AddRates,
        send: Callable[[Load], None],
        disk: Callable[[int], Disk],
        interval_s: float,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._agent = agent
        self._measure = measure
        self._on_told = told
        self._on_failure = on_failure
        self._send = send
        self._disk = disk
        self._interval_s = interval_s
        self._sequence = 0
        self._told: tuple[Held, ...] = ()
        self._sick = False
        self._outrun = False
        """The last measurement was not told, since a table was resized meanwhile."""
        self._epochs = asyncio.Event()
        agent.follower.listen(self._on_epoch)

    async def run(self) -> None:
        while True:
            if not self._agent.may_speak():
                await asyncio.sleep(min(MUTE_S, self._interval_s))
                continue
            began_s = time.monotonic()
            reported = await self._try()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(self._soon_s, took_s / MEASURING_PART))
            if reported:
                await self._until_due(began_s + self._interval_s)

    @property
    def _soon_s(self) -> float:
        return min(SOON_S, self._interval_s)

    async def _try(self) -> bool:
        """False: it failed."""
        try:
            await self._report()
        except Exception as error:
            self._on_failure()
            if not self._sick:
                log.warning("the load cannot be told; it is tried again", why=repr(error))
            self._sick = True
            return False
        self._sick = False
        return True

    async def _report(self) -> None:
        image, agent = self._agent.image, self._agent
        held = held_of(image, agent.node_id)
        tables = await self._measure(image, held)
        if self._agent.image is not image:
            now = held_of(self._agent.image, agent.node_id)
            changed = resized(held, now)
            if changed and not self._outrun:
                self._outrun = True
                return  # it is measured anew, since it has not told of these tablets
            # the second time the tablets of before are told, or a node whose tables grow never told any
            tables = still_held(tables, (*now, *changed))
        self._outrun = False
        held_bytes = sum(sum(table.sizes_bytes) for table in tables)
        disk = await asyncio.to_thread(self._disk, held_bytes)
        tables = self._on_told(tables)
        self._sequence += 1
        self._send(
            Load(
                node_id=agent.node_id,
                host_id=agent.host_id,
                boot_id=agent.boot_id,
                sequence=self._sequence,
                epoch=image.epoch,
                at_ms=time.time_ns() // 1_000_000,
                disk_total_bytes=disk.total_bytes,
                disk_free_bytes=disk.free_bytes,
                tables=tables,
                log_id=image.log_id,
            )
        )
        self._told = held

    async def _until_due(self, due_s: float) -> None:
        """Until then, or until the node has other tablets than it told of."""
        while (left_s := due_s - time.monotonic()) > 0:
            self._epochs.clear()
            if held_of(self._agent.image, self._agent.node_id) != self._told:
                return
            await wait_at_most(self._epochs, left_s)
            await asyncio.sleep(min(self._soon_s, 1.0))  # more epochs may be on their way

    def _on_epoch(self, _image: Image, _delta: Delta) -> None:
        self._epochs.set()


@asynccontextmanager
async def reporting_load(
    brokers: Brokers,
    cluster: str,
    agent: Agent,
    measure: Measure,
    told: AddRates,
    disk: Callable[[int], Disk],
    interval_s: float,
    on_failure: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Report inside the block."""
    topic = flow_topic(cluster, "load")
    loads = FlowWriter(brokers, topic, LOAD_MAX_MESSAGE_BYTES)

    def send(load: Load) -> None:
        loads.send(load.node_id, encode_load(load))

    reporter = LoadReporter(agent, measure, told, send, disk, interval_s, on_failure)
    reports = asyncio.create_task(reporter.run(), name="load")
    try:
        yield
    finally:
        reports.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reports
        await loads.close()
