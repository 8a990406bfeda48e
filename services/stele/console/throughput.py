"""Commits per second and the latency of commands, sampled from the metadata-logs' metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

LATENCY: Final = "stele_log_commit_seconds"
SAMPLE_S: Final = 5.0
KEPT: Final = 360
"""Samples that are kept: half an hour."""

Buckets = Mapping[float, float]
"""Number of commands by upper bound of their latency in seconds. Each bucket includes the lower ones."""


class Sample(msgspec.Struct, frozen=True):
    """The interval that ended at ``at_ms``. None: unknown, or no command was answered in it."""

    at_ms: int
    commits_per_s: float | None
    p50_ms: float | None
    p99_ms: float | None


def buckets_of(metrics: Iterable[str]) -> dict[float, float]:
    """Return the latency buckets of the ``/metrics`` answers of all instances together.

    Raises ValueError.
    """
    found: dict[float, float] = {}
    for text in metrics:
        for family in text_string_to_metric_families(text):
            if family.name != LATENCY:
                continue
            for sample in family.samples:
                if "le" in sample.labels:
                    bound = float(sample.labels["le"])
                    found[bound] = found.get(bound, 0.0) + sample.value
    return found


def quantile_s(part: float, before: Buckets, after: Buckets) -> float | None:
    """Return the latency below which ``part`` of the commands between two readings stayed; seconds.

    It is interpolated inside its bucket, as by Prometheus' ``histogram_quantile``. None: there was
    no command, or an instance was restarted in between.
    """
    bounds = sorted(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0 or min(counts) < 0:
        return None
    wanted = part * counts[-1]
    at = bisect_left(counts, wanted)
    low, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    if bounds[at] == float("inf"):  # slower than the highest bound: that is all that is known
        return low
    return low + (bounds[at] - low) * (wanted - below) / (counts[at] - below)


class Throughput:
    """The newest samples, the oldest first."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self._before: tuple[float, int, dict[float, float]] | None = None

    def add(self, now_s: float, at_ms: int, epoch: int, buckets: dict[float, float]) -> None:
        """Take a reading. ``now_s`` is monotonic; ``epoch`` is the newest epoch, 0 if unknown."""
        before, self._before = self._before, (now_s, epoch, buckets)
        if before is None:
            return
        then_s, epoch_before, earlier = before
        known = 0 < epoch_before <= epoch
        rate = (epoch - epoch_before) / (now_s - then_s) if known else None
        p50, p99 = (quantile_s(part, earlier, buckets) for part in (0.5, 0.99))
        self.samples.append(Sample(at_ms, rate, _ms(p50), _ms(p99)))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)
