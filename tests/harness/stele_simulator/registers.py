"""Decide whether observations of each key are possible for a register whose requests take effect at one
instant.

Every write has a unique value, so each read names its write, and the question is decided exactly in O(n log
n) by zones: P. Gibbons and E. Korach, "Testing Shared Memories", SIAM J. Comput. 26(4), 1997. The zone of a
value lies between the first end and the last begin of the operations that wrote or read it. When the end
comes first, the value was there all that time (a forward zone), and two of these must not overlap; otherwise
all its operations share a moment within the zone (a backward zone), which must not lie within a forward zone
of another value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Protocol

import msgspec

from stele_simulator.violation import require

NAME = "quorum requests are linearizable"


class Operation(Protocol):
    """A write or read of ``key`` through ``node`` between two times of one clock, in seconds.

    ``value`` is None for a missing key. ``known`` is False for a write of unknown outcome, which may also
    take effect later.
    """

    @property
    def began(self) -> float: ...
    @property
    def ended(self) -> float: ...
    @property
    def node(self) -> str: ...
    @property
    def write(self) -> bool: ...
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def known(self) -> bool: ...


class Zone(msgspec.Struct, frozen=True):
    """The zone of a value: the first end and the last begin of its operations."""

    value: str | None
    first_end: float
    last_begin: float

    @property
    def forward(self) -> bool:
        return self.first_end < self.last_begin


def check_registers(operations: Iterable[Operation]) -> int:
    """Raises Violation. Operations that surely were not done are left out; the number checked otherwise."""
    by_key = defaultdict[str, list[Operation]](list)
    for operation in operations:
        if operation.done or (operation.write and not operation.known):
            by_key[operation.key].append(operation)
    for key, found in sorted(by_key.items()):
        _check_zones(key, _zones(key, found))
    return sum(len(found) for found in by_key.values())


def _zones(key: str, operations: list[Operation]) -> list[Zone]:
    writes = {op.value: op for op in operations if op.write}
    reads = defaultdict[str | None, list[Operation]](list)
    for op in operations:
        if not op.write:
            reads[op.value].append(op)
    zones = list[Zone]()
    for value, readers in reads.items():
        write = writes.get(value)
        require(
            write is not None or value is None,
            NAME,
            f"reads of {key} give what was written",
            f"'{value}' was read through {readers[0].node} and never written",
        )
        if write is None:
            zones.append(Zone(None, -inf, max(op.began for op in readers)))
            continue
        early = min(readers, key=lambda op: op.ended)
        require(
            early.ended > write.began,
            NAME,
            f"'{value}' of {key} is read after it was written, from {write.began:.3f} s on",
            f"it was read through {early.node} until {early.ended:.3f} s",
        )
        ends = [op.ended for op in readers] + ([write.ended] if write.done else [])
        zones.append(Zone(value, min(ends), max([write.began, *(op.began for op in readers)])))
    for value, write in writes.items():
        if write.done and value not in reads:
            zones.append(Zone(value, write.ended, write.began))
    return zones


def _check_zones(key: str, zones: list[Zone]) -> None:
    forward = sorted((z for z in zones if z.forward), key=lambda zone: zone.first_end)
    for one, two in pairwise(forward):
        require(
            one.last_begin <= two.first_end,
            NAME,
            f"'{one.value}' of {key} was there until {one.last_begin:.3f} s, when its last read began",
            f"'{two.value}' was there already at {two.first_end:.3f} s, when its first request was over",
        )
    begins = [zone.first_end for zone in forward]
    for zone in zones:
        at = bisect_right(begins, zone.last_begin) - 1
        if zone.forward or at < 0:
            continue
        around = forward[at]
        inside = around.first_end < zone.last_begin and zone.first_end < around.last_begin
        require(
            not inside,
            NAME,
            f"'{around.value}' of {key} was there from {around.first_end:.3f} to {around.last_begin:.3f} s",
            f"'{zone.value}' was written or read wholly within, {zone.last_begin:.3f} to"
            f" {zone.first_end:.3f} s",
        )
