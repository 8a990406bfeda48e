"""Polls the health of all services while a page is open, and samples the throughput all the time."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from stele.console.alerts import (
    Alert,
    ClusterStatus,
    ProcessStatus,
    RangeHealth,
    alerts,
    clusters_of,
    newest_of,
    range_health,
    stale_reason,
)
from stele.console.mirror import Mirror
from stele.console.throughput import SAMPLE_S, Throughput, buckets_of
from stele.console.upstream import AwayError, Upstream
from stele.console.views import WaitReport, addresses_of, wait_report
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.session_guard import (
    AGREEMENT_PATH,
    Liveness,
    NodeLiveness,
    SchemaAgreement,
)
from stele.runtime.http import Health

# One stream of the log for all open pages: each gets every event once and in order.
#
# A slow page needs no buffer, because all pages read from one list. A page that is behind
# the list first receives the older epochs.


KEPT: Final = 4096
"""Number of events kept. A page this far behind needs no query to the log."""


class Hub:
    """Events by epoch, without gaps, and a bell for the waiting pages."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._bell = asyncio.Event()
        self.history = 0
        """Increases when the log turns out to be another one. Pages then read everything again."""
        self.readers = 0

    @property
    def newest(self) -> int:
        """The newest epoch that has an event; 0 if there is none."""
        return self._events[-1][0] if self._events else 0

    @property
    def oldest(self) -> int:
        """The oldest epoch that is kept; 0 if there is none."""
        return self._events[0][0] if self._events else 0

    def add(self, epoch: int, event: bytes) -> None:
        """Add the event of the epoch that follows the newest."""
        assert not self._events or epoch == self.newest + 1
        self._events.append((epoch, event))
        self.ring()

    def restart(self) -> None:
        """Drop all events: they are of another history, or a gap follows them."""
        self._events.clear()
        self.history += 1
        self.ring()

    def ring(self) -> None:
        """Wake all waiting pages."""
        # Each ring replaces the bell: a page that takes the new one waits for the next event.
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def after(self, epoch: int, most: int = 256) -> list[tuple[int, bytes]]:
        """Return the kept events after an epoch; none if nothing is new or a gap lies between."""
        if not self._events or epoch + 1 < self.oldest or epoch >= self.newest:
            return []
        first = epoch + 1 - self.oldest
        return [self._events[at] for at in range(first, min(first + most, len(self._events)))]

    def bell(self) -> asyncio.Event:
        """Return the bell that the next event sets. Take it before you check for events."""
        return self._bell


T = TypeVar("T")

LOG: Final = "metadata-log"

_NO_ANSWERS: Final = (msgspec.DecodeError, RecursionError)
"""RecursionError is raised by JSON that nests thousands of levels deep."""
MOST_TEXT: Final = 1000
"""Limit of the text of one process: it goes to every page with each poll."""
LIMIT_S: Final = 2.0
"""A service that takes longer counts as away in this poll."""


class _AnyHealth(Health, frozen=True):
    """Health of any service. The placements service adds the fields below."""

    stopped: dict[str, str] = msgspec.field(default_factory=dict)
    summaries_stopped: dict[str, str] = msgspec.field(default_factory=dict)
    topics_stopped: dict[str, str] = msgspec.field(default_factory=dict)


def shortened(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."


class HealthPoll(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one poll of all services."""

    at_ms: int = 0
    epoch: int = 0
    trouble: str = ""
    heard_ms_ago: int = 0
    processes: tuple[ProcessStatus, ...] = ()
    liveness: tuple[NodeLiveness, ...] = ()
    schema_behind: tuple[str, ...] = ()
    """Live members that have not applied the newest schema."""
    progress: Progress | None = None
    why: WaitReport = WaitReport(lines=(), by_request={}, streamed={})
    alerts: tuple[Alert, ...] = ()
    ranges: RangeHealth = RangeHealth()
    pages: int = 0


class Watch:
    """Polls the services. ``latest_poll`` is the newest result; the hub's bell rings after each."""

    def __init__(self, upstream: Upstream, mirror: Mirror, hub: Hub, every_s: float) -> None:
        self._upstream = upstream
        self._mirror = mirror
        self._hub = hub
        self._every_s = every_s
        self.latest_poll = HealthPoll()
        self.throughput = Throughput()
        self.number = 0
        """Number of the newest poll. It increases by one."""
        self._polled_epoch = -1
        """Epoch at the previous poll."""

    async def run(self) -> None:
        """Poll until cancelled, while any page is open."""
        while True:
            if self._hub.readers:
                self.latest_poll = await self._poll()
                self.number += 1
                self._hub.ring()
            await asyncio.sleep(self._every_s)

    async def sample(self) -> None:
        """Sample the throughput until cancelled, so that a page begins with the past half hour."""
        while True:
            urls = self._upstream.services[LOG]
            texts = await asyncio.gather(*map(self._metrics, urls))
            try:
                buckets = buckets_of(texts)
            except ValueError:  # no instance of this project answers there
                buckets = {}
            epoch, at_ms = self._mirror.image.epoch, time.time_ns() // 1_000_000
            self.throughput.add(time.monotonic(), at_ms, epoch, buckets)
            await asyncio.sleep(SAMPLE_S)

    async def _metrics(self, url: str) -> str:
        """Return the metrics of one instance as text; empty if it does not answer."""
        return (await self._upstream.body(f"{url}/metrics", LIMIT_S)).decode(errors="replace")

    async def _poll(self) -> HealthPoll:
        processes, liveness, agreement, progress = await asyncio.gather(
            self._processes(),
            self._answer("session-guard", "/v1/nodes", list[NodeLiveness]),
            self._answer("session-guard", AGREEMENT_PATH, SchemaAgreement),
            self._answer("coordinator", "/v1/progress", Progress),
        )
        image, silent_s = self._mirror.image, self._mirror.silent_s()
        trouble = self._mirror.trouble or stale_reason(image.epoch, silent_s, processes)
        self.leave_stuck_stream(image.epoch, processes)
        down = {row.node_id for row in liveness or () if row.liveness is Liveness.DOWN}

        def derive() -> tuple[WaitReport, RangeHealth, tuple[Alert, ...]]:
            ranges = range_health(image, down)
            found = alerts(image, trouble, processes, liveness or (), progress, ranges)
            return wait_report(image, progress), ranges, found

        # In a thread: with thousands of requests and tables the sentences take 0.1 s.
        why, ranges, found = await asyncio.to_thread(derive)
        return HealthPoll(
            at_ms=time.time_ns() // 1_000_000,
            epoch=image.epoch,
            trouble=trouble,
            heard_ms_ago=round(1000 * silent_s),
            processes=processes,
            liveness=tuple(liveness or ()),
            schema_behind=() if agreement is None else agreement.behind,
            progress=progress,
            why=why,
            alerts=found,
            ranges=ranges,
            pages=self._hub.readers,
        )

    def leave_stuck_stream(self, epoch: int, processes: Iterable[ProcessStatus]) -> None:
        """Switch to another stream when the followed one is stuck.

        It is stuck if a healthy metadata-log had newer epochs and none arrived since the previous
        poll.
        """
        if self._polled_epoch == epoch < newest_of(processes):
            self._mirror.leave()
        self._polled_epoch = epoch

    async def _processes(self) -> tuple[ProcessStatus, ...]:
        nodes = addresses_of(self._mirror.image)
        wanted = [
            *((name, url) for name, urls in self._upstream.services.items() for url in urls),
            *((f"node {node_id}", url) for node_id, url in nodes.items()),
        ]
        return tuple(await asyncio.gather(*(self._process(*each) for each in wanted)))

    async def _process(self, service: str, url: str) -> ProcessStatus:
        began_s = time.perf_counter()
        try:
            answer = await self._upstream.one(f"{url}/healthz", LIMIT_S)
            health = msgspec.json.decode(answer.body, type=_AnyHealth)
        except AwayError as error:
            why = str(error).partition("does not answer: ")[2]
            return ProcessStatus(service=service, url=url, up=False, ok=False, reason=why)
        except _NO_ANSWERS:
            why = "its answer is none of a service of this project"
            return ProcessStatus(service=service, url=url, up=True, ok=False, reason=why)
        return ProcessStatus(
            service=service,
            url=url,
            up=True,
            ok=health.ok,
            epoch=health.epoch,
            lag=max(0, self._mirror.image.epoch - health.epoch) if health.epoch else None,
            reason=shortened(health.reason),
            clusters=await self._clusters(
                service,
                url,
                {**health.summaries_stopped, **health.topics_stopped, **health.stopped},
            ),
            answered_ms=round(1000 * (time.perf_counter() - began_s), 1),
        )

    async def _clusters(
        self, service: str, url: str, stopped: dict[str, str]
    ) -> tuple[ClusterStatus, ...]:
        """Return the clusters of the placements service; for other services, none.

        Without its metrics, quarantined clusters are still known from ``stopped``.
        """
        if service != "placements":
            return ()
        try:
            return clusters_of(await self._metrics(url), stopped)
        except ValueError:
            return clusters_of("", stopped)

    async def _answer(self, service: str, path: str, kind: type[T]) -> T | None:
        """Return the decoded answer, or None if no instance sends a valid one."""
        try:
            answer = await self._upstream.ask(service, path, limit_s=LIMIT_S)
            return msgspec.json.decode(answer.body, type=kind) if answer.ok else None
        except (AwayError, *_NO_ANSWERS):
            return None
