"""Reports what a node's tablets and disk hold: the store measures it, the balancer receives it.

A report also follows soon after the node's tablets change. No failure here stops the node: it is
logged once, and the report is tried again.
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
"""Minimum time between two reports, and before a retry, in seconds."""
MUTE_S: Final = 0.5
"""Interval for checking whether the node may send messages, in seconds."""
MEASURING_PART: Final = 0.1
"""Largest part of a node's time that is spent on measuring, however often its tablets change."""

log = get_logger(__name__)


class HeldTablets(NamedTuple):
    """The tablets of one table that a node has, of ``of`` tablets in all."""

    data_id: str
    of: int
    tablets: tuple[int, ...]


class Disk(NamedTuple):
    """The bytes that data may take in all, and the bytes that are free."""

    total_bytes: int
    free_bytes: int


def held_of(image: Image, node_id: str) -> tuple[HeldTablets, ...]:
    """Return the tablets to measure: a node has a tablet once it serves the tablet's reads."""
    return tuple(
        HeldTablets(data.data_id, count, tuple(tablets))
        for data, count, tablets in read_from(image, node_id)
    )


def disk_of(
    folder: Path,
    held_bytes: int,
    capacity_bytes: int,
    reusable_bytes: Callable[[], int] = lambda: 0,
) -> Disk:
    """Return the space of the folder's file system, or of ``capacity_bytes`` in it (0: all of it).

    ``held_bytes`` of that capacity are taken. ``reusable_bytes`` returns the room inside the
    store's files that new data takes before the files grow. It counts as free. Otherwise a node
    whose files never shrink would lose capacity when it gives data away.
    """
    usage = shutil.disk_usage(folder)
    free = min(usage.total, usage.free + reusable_bytes())
    if not capacity_bytes:
        return Disk(usage.total, free)
    left = max(0, capacity_bytes - held_bytes)
    return Disk(capacity_bytes, min(left, free))


def still_held(
    tables: Sequence[TabletSizes], held: Sequence[HeldTablets]
) -> tuple[TabletSizes, ...]:
    """Return the sizes of tablets that the node still has.

    A tablet that moved away during the measurement may be half deleted.
    """
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


def resized(before: Sequence[HeldTablets], now: Sequence[HeldTablets]) -> tuple[HeldTablets, ...]:
    """Return the tables of ``before`` whose number of tablets has changed since.

    Their tablet numbers now name other tablets.
    """
    counts = {each.data_id: each.of for each in now}
    return tuple(each for each in before if counts.get(each.data_id, each.of) != each.of)


Measure = Callable[[Image, HeldTablets], Awaitable[Sequence[int]]]
"""Measures the current sizes in bytes of these tablets of this node."""
AddRates = Callable[[Sequence[TabletSizes]], tuple[TabletSizes, ...]]
"""Receives the tables of the next report, and returns them with rates where those are counted."""


class LoadReporter:
    """Measures and sends the load. ``run`` it until it is cancelled."""

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
        self._told: tuple[HeldTablets, ...] = ()
        self._sick = False
        self._outrun = False
        """True if the last measurement was not reported, because a table was resized meanwhile."""
        self._epochs = asyncio.Event()
        agent.follower.listen(self._on_epoch)

    async def run(self) -> None:
        """Report at the interval, and soon after tablets change, until cancelled."""
        while True:
            if not self._agent.may_acknowledge():
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
        """Measure and report once. Return False if that failed."""
        try:
            await self._report()
        except Exception as error:
            self._on_failure()
            if not self._sick:
                log.warning("the load cannot be reported; it is retried", why=repr(error))
            self._sick = True
            return False
        self._sick = False
        return True

    async def _report(self) -> None:
        """Measure the tablets and send one report."""
        image, agent = self._agent.image, self._agent
        held = await self._held(image)
        tables = tuple([await self._sizes_of(image, each) for each in held])
        newest = agent.image
        if newest is not image:
            now = await self._held(newest)
            changed = resized(held, now)
            if changed and not self._outrun:
                self._outrun = True
                return  # measured again: the sizes are of other tablets than now
            # The second time the earlier tablets are reported. Otherwise a node whose tables grow
            # would never report any.
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

    async def _sizes_of(self, image: Image, held: HeldTablets) -> TabletSizes:
        sizes = await self._measure(image, held)
        return TabletSizes(
            data_id=held.data_id,
            tablet_count=held.of,
            tablets=held.tablets,
            sizes_bytes=tuple(sizes),
        )

    async def _held(self, image: Image) -> tuple[HeldTablets, ...]:
        """Return ``held_of`` an image. It examines each table, so it runs in a thread."""
        return await asyncio.to_thread(held_of, image, self._agent.node_id)

    async def _until_due(self, due_s: float) -> None:
        """Wait until ``due_s``, or until the node has other tablets than in its last report."""
        while (left_s := due_s - time.monotonic()) > 0:
            # Clear before the comparison: an epoch that comes after it then ends the wait.
            self._epochs.clear()
            if await self._held(self._agent.image) != self._told:
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
    """Report the load inside the block."""
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
