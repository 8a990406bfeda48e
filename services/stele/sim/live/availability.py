"""Who owed an answer and gave none: a metadata-log that no fault hits answers every read.

One broker of three that is gone for good hits nobody, once another leads its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from stele.sim.live.faults import FaultKind, Role
from stele.sim.live.history import AnyRecord, Hit, StateRead
from stele.sim.violation import require

SETTLED_S: Final = 20.0
"""After which a fault is over for those whom it hit: restarts, elections, time-outs and their pauses."""

_GONE_KINDS: Final = (FaultKind.KILL, FaultKind.GONE)


class Owed(msgspec.Struct, frozen=True):
    """How many reads had to be answered, and were; how many of them while a broker was gone."""

    reads: int
    without_a_broker: int


def check_availability(records: Iterable[AnyRecord]) -> Owed:
    """I10 during the faults. Raises Violation for the first read that was owed an answer and got none."""
    known = list(records)
    hits = [r for r in known if isinstance(r, Hit)]
    reads = sorted((r for r in known if isinstance(r, StateRead)), key=lambda read: read.through)
    gone = [(h.began, h.ended) for h in hits if h.kind is FaultKind.GONE]
    owed = without = 0
    for name, asked in groupby(reads, key=lambda read: read.through):
        disturbed = _disturbed(hits, name)
        for read in asked:
            if _meet(disturbed, read.began - SETTLED_S, read.ended):
                continue
            owed += 1
            without += _meet(gone, read.began, read.ended)
            require(
                read.answered,
                "I10",
                f"{name}, which no fault has hit for {SETTLED_S:g} s, answers reads at level {read.level}",
                f"one from {read.began:.1f} s to {read.ended:.1f} s had no answer: {read.answer}",
            )
    return Owed(owed, without)


def _disturbed(hits: Sequence[Hit], name: str) -> list[tuple[float, float]]:
    """The times in which ``name`` may fail."""
    found = list[tuple[float, float]]()
    for hit in hits:
        if hit.role is Role.BROKER and hit.kind in _GONE_KINDS:
            found += [(hit.began, hit.began), (hit.ended, hit.ended)]
        elif hit.role in (Role.BROKER, Role.EVERYBODY) or hit.name == name:
            found.append((hit.began, hit.ended))
    return found


def _meet(times: Iterable[tuple[float, float]], began: float, ended: float) -> bool:
    return any(first <= ended and began <= last for first, last in times)
