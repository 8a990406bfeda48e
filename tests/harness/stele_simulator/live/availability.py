"""Missing answers: a metadata-log that no fault affects answers every read.

The permanent loss of one broker of three affects no process once another broker leads its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stele_simulator.live.faults import FaultKind, Role
from stele_simulator.live.history import AnyRecord, Hit, StateRead
from stele_simulator.violation import require

SETTLED_S: Final = 20.0
"""Time after which a fault is over: restarts, elections, timeouts and their pauses included."""

_GONE_KINDS: Final = (FaultKind.KILL, FaultKind.GONE)


class AnswersDue(msgspec.Struct, frozen=True):
    """How many reads had to be answered, and were; how many of them while a broker was gone."""

    reads: int
    without_a_broker: int


def check_availability(records: Sequence[AnyRecord]) -> AnswersDue:
    """I10 during the faults. Raises Violation for the first read that was owed an answer and got none."""
    hits = [r for r in records if isinstance(r, Hit)]
    reads = [r for r in records if isinstance(r, StateRead)]
    disturbed = {name: _disturbed(hits, name) for name in {read.through for read in reads}}
    owed = [
        read
        for read in reads
        if not _meet(disturbed[read.through], read.began - SETTLED_S, read.ended)
    ]
    for read in owed:
        require(
            read.answered,
            "I10",
            f"{read.through}, which no fault has hit for {SETTLED_S:g} s, answers reads at level {read.level}",
            f"one from {read.began:.1f} s to {read.ended:.1f} s had no answer: {read.answer}",
        )
    gone = [(hit.began, hit.ended) for hit in hits if hit.kind is FaultKind.GONE]
    return AnswersDue(len(owed), sum(_meet(gone, read.began, read.ended) for read in owed))


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
