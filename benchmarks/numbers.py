"""One measurement, and how latencies become percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Measured(msgspec.Struct, frozen=True):
    """``what`` at ``clients`` in a closed loop: each sends its next one when it has its answer."""

    what: str
    clients: int
    count: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        return self.count / self.seconds


class Rate(msgspec.Struct, frozen=True):
    """How often something can be done in a row, by one thread."""

    what: str
    count: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.count / self.seconds


def measured(what: str, clients: int, latencies_s: Sequence[float], seconds: float) -> Measured:
    ordered = sorted(latencies_s)
    assert ordered, f"{what}: nothing was answered in {seconds:.1f} s"
    return Measured(
        what=what,
        clients=clients,
        count=len(ordered),
        seconds=seconds,
        p50_ms=1000 * ordered[len(ordered) // 2],
        p99_ms=1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    )
