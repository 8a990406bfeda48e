"""Truncated registers: what clients saw between two truncations is a register by itself.

Writes acknowledged before a truncation began are gone when it is done, and later writes are there. A write
that overlaps it, or has an unknown outcome, may be on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import msgspec

from stele_simulator.live.clients import keyspace_of
from stele_simulator.live.history import DataOp, Truncation


class Pause(msgspec.Struct, frozen=True):
    """From the end of one truncation, which began at ``since``, to the begin of the next; in seconds of the
    history.
    """

    since: float
    began: float
    ended: float


def pauses(truncations: Iterable[Truncation]) -> list[Pause]:
    """The times in which a keyspace was not being truncated, in order; the first begins with the run."""
    found, since, began = list[Pause](), -inf, -inf
    for truncation in sorted(truncations, key=lambda each: each.began):
        found.append(Pause(since, began, truncation.began))
        since = truncation.began
        began = truncation.ended if truncation.done else inf
    return [*found, Pause(since, began, inf)]


def registers(
    operations: Sequence[DataOp], truncations: Sequence[Truncation]
) -> list[list[DataOp]]:
    """The operations by the pause that they tell of; last those since each keyspace was truncated last, or
    from the beginning.
    """
    by_keyspace: dict[str, list[Truncation]] = {}
    for each in truncations:
        by_keyspace.setdefault(each.keyspace, []).append(each)
    last = [op for op in operations if keyspace_of(op.key) not in by_keyspace]
    earlier = list[list[DataOp]]()
    for keyspace, found in sorted(by_keyspace.items()):
        mine = [op for op in operations if keyspace_of(op.key) == keyspace]
        *before, newest = [_within(mine, pause) for pause in pauses(found)]
        earlier += [_named(part, number) for number, part in enumerate(before)]
        last += newest
    return [*earlier, last]


def _within(operations: Iterable[DataOp], pause: Pause) -> list[DataOp]:
    found = list[DataOp]()
    for op in operations:
        if not op.write:
            if pause.began <= op.began and op.ended <= pause.ended:
                found.append(op)
        elif op.began >= pause.ended or (op.known and op.ended <= pause.since):
            continue
        elif op.began < pause.began:
            found.append(msgspec.structs.replace(op, done=False, known=False))
        else:
            found.append(op)
    return found


def _named(operations: Iterable[DataOp], number: int) -> list[DataOp]:
    named = msgspec.structs.replace
    return [named(op, key=f"{op.key} before truncation {number + 1}") for op in operations]
