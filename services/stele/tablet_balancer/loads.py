"""The loads of nodes, from their reports: the newest ones, and the history of the last day.

The topic is read from its beginning and keeps the reports of the last hour, so a balancer that has
just started has these, too.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from stele.domain.balancer.load import LoadTable, with_heat
from stele.domain.image import Image
from stele.domain.messages import Load
from stele.log.codec import DecodeError, decode_load
from stele.runtime.answers.tablet_balancer import LoadHistory, LoadSample
from stele.runtime.live_flow import LiveFlow
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.tablet_balancer import metrics

LOADS: Final = LiveFlow("tablet-balancer", "load")
MOST_CELLS: Final = 72_000
"""Largest number of moments times nodes of a span. With many nodes the moments are farther
apart.
"""
HOLDS_MS: Final = 150_000
"""Time for which a report counts until the next one: two of a node's intervals, and one late
report.
"""

log = get_logger(__name__)


class Loads:
    """The fold of reports over an image, without input or output.

    ``table`` may run in another thread than ``on_record``, in one at a time.
    """

    def __init__(self) -> None:
        self._reports = deque[tuple[Load, float]]()
        self._table = LoadTable()
        self.histories = Histories()
        self.read = asyncio.Event()
        """Set once the reports that were in the topic at the start have been read."""

    def on_record(self, value: bytes, age_s: float) -> None:
        """Note one record. A record that cannot be decoded is counted and skipped."""
        try:
            load = decode_load(value)
        except DecodeError as error:
            metrics.unreadable.inc()
            log.warning("left out a record", error=str(error))
            return
        self._reports.append((load, time.monotonic() - age_s))

    def on_read_until(self, _at_s: float, _began_s: float) -> None:
        self.read.set()

    def table(self, image: Image) -> LoadTable:
        """Return the loads that count for an image.

        The image includes all epochs that existed at the start.
        """
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        now_s = time.monotonic()
        for load, at_s in reports:
            # Records wait for the image, because only a caught-up one has the log id to compare
            # with.
            if load.log_id == image.log_id:
                metrics.loads.inc()
                self._table = self._table.with_load(load, at_s)
                self.histories.note(image, load, now_s - at_s)
            else:
                foreign_messages.labels("load").inc()
        self._table = self._table.current(image)
        if reports:
            self._table = with_heat(image, self._table)
        return self._table


# --- history


class HistorySpan(StrEnum):
    """The length of the history."""

    HOUR = "hour"
    DAY = "day"


class _Length(NamedTuple):
    span_ms: int
    every_ms: int


_LENGTHS: Final = {
    HistorySpan.HOUR: _Length(3_600_000, 15_000),
    HistorySpan.DAY: _Length(86_400_000, 300_000),
}


class _Weight(NamedTuple):
    rate: int | None
    size_bytes: int
    tablets: int


class Histories:
    """One history for each span. Reports may be noted in any order of their times."""

    def __init__(self) -> None:
        self._spans = _begun()
        self._cluster_id = ""

    def note(self, image: Image, load: Load, age_s: float) -> None:
        """Note a report of the age ``age_s``.

        Reports of nodes that the image does not contain are ignored.

        The histories are kept when the log is recovered, and start again for another cluster.
        """
        if image.cluster_id != self._cluster_id:
            self._spans, self._cluster_id = _begun(), image.cluster_id
        if load.node_id not in image.membership.nodes:
            return
        now_ms = time.time_ns() // 1_000_000
        for moments in self._spans.values():
            moments.note(now_ms, now_ms - round(1000 * age_s), load.node_id, _weight(load))

    def answer(self, span: HistorySpan) -> LoadHistory:
        moments = self._spans[span]
        samples = tuple(moments.samples(time.time_ns() // 1_000_000))
        return LoadHistory(span_ms=moments.span_ms, every_ms=moments.every_ms, samples=samples)


class _Moments:
    """The last report of each node within each step of time."""

    def __init__(self, span_ms: int, every_ms: int) -> None:
        self.span_ms = span_ms
        self.every_ms = every_ms
        self._steps = dict[int, dict[str, _Weight]]()
        self._cells = 0

    def note(self, now_ms: int, at_ms: int, node_id: str, weight: _Weight) -> None:
        if at_ms <= now_ms - self.span_ms:
            return
        step = self._steps.setdefault(at_ms // self.every_ms, {})
        self._cells += node_id not in step
        step[node_id] = weight
        if self._cells > MOST_CELLS:
            self._forget(now_ms)
        while self._cells > MOST_CELLS and len(self._steps) > 1:
            self._thin_out()

    def samples(self, now_ms: int) -> Iterator[LoadSample]:
        """Yield the samples, the oldest first.

        Without a report in a step, the last one counts for ``HOLDS_MS``.
        """
        self._forget(now_ms)
        last = dict[str, tuple[int, _Weight]]()
        for step in range(min(self._steps, default=0), max(self._steps, default=-1) + 1):
            at_ms = step * self.every_ms
            last |= {node: (at_ms, weight) for node, weight in self._steps.get(step, {}).items()}
            known = {n: w for n, (since, w) in last.items() if at_ms - since <= HOLDS_MS}
            yield LoadSample(
                at_ms=at_ms,
                rates={n: w.rate for n, w in known.items() if w.rate is not None},
                sizes={n: w.size_bytes for n, w in known.items()},
                tablets={n: w.tablets for n, w in known.items()},
            )

    def _forget(self, now_ms: int) -> None:
        """Remove reports that are too old, and those of the future after the clock was set back."""
        first, last = (now_ms - self.span_ms) // self.every_ms, now_ms // self.every_ms
        self._keep({at: step for at, step in self._steps.items() if first < at <= last})

    def _thin_out(self) -> None:
        """Merge pairs of steps. Each node's newer report remains."""
        self.every_ms *= 2
        steps = dict[int, dict[str, _Weight]]()
        for at in sorted(self._steps):
            steps.setdefault(at // 2, {}).update(self._steps[at])
        self._keep(steps)

    def _keep(self, steps: dict[int, dict[str, _Weight]]) -> None:
        self._steps, self._cells = steps, sum(map(len, steps.values()))


def _begun() -> dict[HistorySpan, _Moments]:
    return {span: _Moments(*length) for span, length in _LENGTHS.items()}


def _weight(load: Load) -> _Weight:
    counted = [each for t in load.tables for each in (*t.reads_per_s, *t.writes_per_s) if each >= 0]
    return _Weight(
        rate=sum(counted) if counted else None,
        size_bytes=sum(sum(table.sizes_bytes) for table in load.tables),
        tablets=sum(len(table.tablets) for table in load.tables),
    )
