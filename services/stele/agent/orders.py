"""Execution of orders: each is refused, joined to running work, or started.

An order may be lost, repeated, late, or sent by a replaced coordinator. ``Order.work`` names the
work itself. It runs once at a time, and a repeated order receives its state (docs/design.md, rule
43).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.messages import Order, Report, StreamedFrom, WorkKey
from stele.domain.model.features import REPORT_SOURCES
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.topology.live_copies import is_wanted
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger

READ_LIMIT_S: Final = 10.0
"""Time to read an order's epoch, in seconds.

After it the order is dropped; the coordinator repeats it.
"""
REPORT_INTERVAL_S: Final = 0.5
REMEMBERED: Final = 32
"""How many results of finished work are kept for repeated orders."""

log = get_logger(__name__)


class OrderProgress:
    """The progress of a piece of work, which the work itself updates.

    ``sources`` holds the received data by source node.
    """

    def __init__(self) -> None:
        self.bytes_done = 0
        self.bytes_total = 0
        self.keys_done = 0
        self.bytes_compared = 0
        self.sources: dict[str, StreamedFrom] = {}
        self.manifest = ""
        """SHA-256 of the manifest that was written for a table snapshot."""

    def add(self, size_bytes: int, keys: int, source: str = "") -> None:
        """Add received data. Data that appeared after the total was measured raises the total."""
        self.bytes_done += size_bytes
        self.keys_done += keys
        self.bytes_total = max(self.bytes_total, self.bytes_done)
        self._came(source, size_bytes, keys, 0)

    def add_compared(self, size_bytes: int, source: str) -> None:
        """Add rows that are equal at the source and at this node."""
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
"""Executes an order. It returns when all is done, and otherwise raises with the reason."""


MayStore = Callable[[float], Awaitable[None]]
"""Waits until data of all creations that were read may be stored, for at most that many seconds.

Raises TimeoutError.
"""


async def at_once(_: float) -> None:
    """Return at once, for work that stores nothing."""


class NotWanted(Exception):
    """The order's session is not open."""


class _RunningOrder:
    """A piece of work and its newest order. Reports carry that order's term and index."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.progress = OrderProgress()
        self.status = ReportStatus.RUNNING
        self.error = ""
        self.task: asyncio.Task[None] | None = None


class OrderExecutor:
    """Receives the orders of one node and sends its reports."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        handlers: Mapping[OrderKind, OrderHandler],
        send_report: Callable[[Report], None],
        may_store: MayStore = at_once,
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._handlers = handlers
        self._send_report = send_report
        self._may_store = may_store
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
        """Accept an order from the topic. Orders of other nodes are ignored."""
        if order.node_id == self._node_id:
            self._spawn(self._take(order))

    async def _take(self, order: Order) -> None:
        """Read the log up to the order. Then refuse it, join running work, or start work."""
        try:
            image = await self._follower.wait_for_epoch(order.epoch, READ_LIMIT_S)
            # the term was claimed after that epoch, or never
            if order.term > image.topology.coordinator.term:
                image = await self._follower.wait_for_end(READ_LIMIT_S)
        except (TimeoutError, LogError, KafkaException) as error:
            log.warning("order dropped", kind=order.kind, term=order.term, why=str(error))
            return
        if not self._accepts(order, image):
            log.info("order refused", kind=order.kind, term=order.term, index=order.index)
            return
        # No ``await`` since the check: two orders cannot both pass it with the same index.
        self._term, self._index = order.term, order.index
        running = self._running.get(order.work())
        if running is None or running.status is ReportStatus.FAILED:
            self._start(order)
        else:
            running.order = order
            self._report(running)

    def _accepts(self, order: Order, image: Image) -> bool:
        """Return whether the order has the log's term and a newer index of that term.

        An order of a term that the log lacks must not count. It would raise ``_term``, and all
        later orders would be refused.
        """
        if order.term != image.topology.coordinator.term:
            return False
        return order.term > self._term or order.index > self._index

    def _start(self, order: Order) -> None:
        running = _RunningOrder(order)
        # Insert at the end of the dict: results are forgotten in the order of their starts.
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
        # Two pieces of work on one range would mix the effects of two sessions (rule 42).
        await self._older_ended(running)
        await self._may_store(READ_LIMIT_S)
        await self._handlers[running.order.kind](running.order, running.progress)

    def _ended(self, running: _RunningOrder, task: asyncio.Task[None]) -> None:
        """Record the result and report it.

        This is a callback, because a task that is cancelled before its first step runs no code of
        its coroutine.
        """
        if task.cancelled():
            running.status, running.error = ReportStatus.FAILED, "stopped: the session has closed"
        elif error := task.exception():  # the coordinator must receive every failure
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
        """Wait until work of closed sessions has ended, since it may use the same ranges.

        Raises TimeoutError.
        """
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
        """Cancel work whose session has closed."""
        for running in self._running.values():
            if running.task is not None and not is_wanted(image, running.order):
                running.task.cancel()

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _check_wanted(image: Image, order: Order) -> None:
    """Raise NotWanted if the order's session is not open."""
    if not is_wanted(image, order):
        raise NotWanted(f"session {order.session or '(none)'} is not open")
