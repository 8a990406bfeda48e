"""Orders of the coordinator: which are refused, which are work that runs already, which are new work.

An order may be lost, doubled, late, or of a coordinator that was replaced. The work itself is named by
``Order.work``: it runs once at a time, and whoever orders it again hears how it stands.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.evolve import Delta
from stele.domain.features.messages import REPORT_SOURCES
from stele.domain.image import Image
from stele.domain.messages import Order, Report, StreamedFrom, WorkKey
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.topology.wanted import is_wanted
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger

READ_LIMIT_S: Final = 10.0
"""An order whose epoch does not come within this is dropped; the coordinator repeats it."""
REPORT_INTERVAL_S: Final = 0.5
REMEMBERED: Final = 32
"""Finished pieces of work whose result is kept to answer with."""

log = get_logger(__name__)


class OrderProgress:
    """How far a piece of work is; the work adds to it. ``sources``: by node, what came from it."""

    def __init__(self) -> None:
        self.bytes_done = 0
        self.bytes_total = 0
        self.keys_done = 0
        self.bytes_compared = 0
        self.sources: dict[str, StreamedFrom] = {}
        self.manifest = ""
        """The hash of what was written for a snapshot."""

    def add(self, size_bytes: int, keys: int, source: str = "") -> None:
        """Data that turned up after the total was asked raises the total."""
        self.bytes_done += size_bytes
        self.keys_done += keys
        self.bytes_total = max(self.bytes_total, self.bytes_done)
        self._came(source, size_bytes, keys, 0)

    def add_compared(self, size_bytes: int, source: str) -> None:
        """Rows that a source has as this node has them."""
        self.bytes_compared += size_bytes
        self._came(source, 0, 0, size_bytes)

    def _came(self, source: str, size_bytes: int, keys: int, compared_bytes: int) -> None:
        if source:
            known = self.sources.get(source, StreamedFrom(node_id=source))
            self.sources[source] = StreamedFrom(
                node_id=source,
                bytes_done=known.bytes_done + size_bytes,
                keys_done=known.keys_done + keys,
                bytes_compared=known.bytes_compared + compared_bytes,
            )


OrderHandler = Callable[[Order, OrderProgress], Awaitable[None]]
"""Carries an order out; returns when all is done, and raises with a sentence why it is not."""


class NotWanted(Exception):
    """The order's session is not open, or not any more."""


class _RunningOrder:
    """A piece of work and the newest order for it, whose term and index its reports carry."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.progress = OrderProgress()
        self.status = ReportStatus.RUNNING
        self.error = ""
        self.task: asyncio.Task[None] | None = None


class OrderExecutor:
    """Takes a node's orders in, and gives its reports out."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        handlers: Mapping[OrderKind, OrderHandler],
        send_report: Callable[[Report], None],
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._handlers = handlers
        self._send_report = send_report
        self._term = 0
        self._index = 0
        self._running: dict[WorkKey, _RunningOrder] = {}
        self._tasks = set[asyncio.Task[None]]()
        follower.listen(self._on_epoch)

    async def close(self) -> None:
        running = [*self._tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def offer(self, order: Order) -> None:
        """Take an order of the flow; those of other nodes are not ours."""
        if order.node_id == self._node_id:
            self._spawn(self._take(order))

    async def _take(self, order: Order) -> None:
        try:
            image = await self._follower.wait_for_epoch(order.epoch, READ_LIMIT_S)
            if order.term > image.topology.coordinator.term:  # claimed behind it, or never
                image = await self._follower.wait_for_end(READ_LIMIT_S)
        except (TimeoutError, LogError, KafkaException) as error:
            log.warning("order dropped", kind=order.kind, term=order.term, why=str(error))
            return
        if not self._accepts(order, image):
            log.info("order refused", kind=order.kind, term=order.term, index=order.index)
            return
        self._term, self._index = order.term, order.index
        running = self._running.get(order.work())
        if running is None or running.status is ReportStatus.FAILED:
            self._start(order)
        else:
            running.order = order
            self._report(running)

    def _accepts(self, order: Order, image: Image) -> bool:
        """Orders are of the log's term, and their indices only go up within it. A term that the log does not
        have is nobody's: whoever went by it would refuse all orders that follow.
        """
        if order.term != image.topology.coordinator.term:
            return False
        return order.term > self._term or order.index > self._index

    def _start(self, order: Order) -> None:
        running = _RunningOrder(order)
        self._running.pop(order.work(), None)
        self._running[order.work()] = running
        finished = [w for w, j in self._running.items() if j.status is not ReportStatus.RUNNING]
        for work in finished[:-REMEMBERED]:
            del self._running[work]
        running.task = self._spawn(self._run(running))
        running.task.add_done_callback(partial(self._ended, running))
        self._spawn(self._keep_reporting(running))

    async def _run(self, running: _RunningOrder) -> None:
        log.info("order begun", kind=running.order.kind, session=running.order.session)
        _check_wanted(self._follower.image, running.order)
        await self._older_ended(running)
        await self._handlers[running.order.kind](running.order, running.progress)

    def _ended(self, running: _RunningOrder, task: asyncio.Task[None]) -> None:
        """Not within the work: what is cancelled before its first step runs no line of its own."""
        if task.cancelled():
            running.status, running.error = ReportStatus.FAILED, "stopped: the session has closed"
        elif error := task.exception():  # whatever stops the work is the coordinator's to know
            running.status, running.error = ReportStatus.FAILED, str(error) or repr(error)
        else:
            running.status = ReportStatus.SUCCESS
        self._report(running)
        log.info(
            "order ended",
            kind=running.order.kind,
            status=running.status,
            error=running.error,
            bytes_done=running.progress.bytes_done,
            keys_done=running.progress.keys_done,
        )

    async def _keep_reporting(self, running: _RunningOrder) -> None:
        while running.status is ReportStatus.RUNNING:
            self._report(running)
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _report(self, running: _RunningOrder) -> None:
        order, progress = running.order, running.progress
        says_sources = REPORT_SOURCES in self._follower.image.features.enabled
        self._send_report(
            Report(
                node_id=self._node_id,
                term=order.term,
                index=order.index,
                kind=order.kind,
                session=order.session,
                request_id=order.request_id,
                status=running.status,
                bytes_done=progress.bytes_done,
                bytes_total=progress.bytes_total,
                keys_done=progress.keys_done,
                bytes_compared=progress.bytes_compared,
                error=running.error,
                at_ms=time.time_ns() // 1_000_000,
                log_id=order.log_id,
                manifest=progress.manifest,
                sources=tuple(progress.sources.values()) if says_sources else (),
            )
        )

    async def _older_ended(self, running: _RunningOrder) -> None:
        """Work of sessions that have closed must have ended: it may be on the same ranges."""
        image = self._follower.image
        older = [
            other.task
            for other in self._running.values()
            if other is not running and other.task is not None and not is_wanted(image, other.order)
        ]
        if older:
            await asyncio.wait(older, timeout=READ_LIMIT_S)
            if any(not task.done() for task in older):
                raise TimeoutError("work under a session that has closed does not end")

    def _on_epoch(self, image: Image, _: Delta) -> None:
        """Work that is not wanted any more ends at once."""
        for running in self._running.values():
            if running.task is not None and not is_wanted(image, running.order):
                running.task.cancel()

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _check_wanted(image: Image, order: Order) -> None:
    """Raises NotWanted."""
    if not is_wanted(image, order):
        raise NotWanted(f"session {order.session or '(none)'} is not open")
