"""Folding one cluster's epochs into rows: which ranges came and went. Pure.

Facts carry their results, so a row needs no strategy code; a change is checked where it changes.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from stele.domain.facts import PlacementChanged, PlacementDropped
from stele.domain.ring.ranges import Placement, PlacementError, Range, RangeReplicas, upper_bound


class EpochChanges(msgspec.Struct, frozen=True):
    """A winner, and what it changes in placements, in the order of its facts."""

    epoch: int
    state_id: bytes
    facts: tuple[PlacementChanged | PlacementDropped, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """A current row and the epoch that it came in."""

    row: RangeReplicas
    from_epoch: int


HeldRows = dict[int, Held]
"""The rows of one placement by their start."""


class PastRow(msgspec.Struct, frozen=True):
    """A row from ``from_epoch`` on and before ``to_epoch``."""

    placement: str
    row: RangeReplicas
    from_epoch: int
    to_epoch: int


Key = tuple[str, int]
"""Placement and start of a row."""

FIRST: Final = EpochChanges(0, bytes(16))


class ClusterFold:
    """The placements of one cluster at ``last``. ``apply`` brings the next epoch."""

    def __init__(self, placements: dict[str, HeldRows], last: EpochChanges = FIRST) -> None:
        self.placements = placements
        self.last = last

    def apply(self, epoch: EpochChanges) -> tuple[list[PastRow], set[Key]]:
        """The rows that went, and the keys that differ. Raises PlacementError; the fold is lost then."""
        assert epoch.epoch == self.last.epoch + 1
        went: list[PastRow] = []
        touched: set[Key] = set()
        for fact in epoch.facts:
            for held in self._take(fact):
                touched.add((fact.placement, held.row.start))
                if held.from_epoch != epoch.epoch:  # came and went within one epoch: it never was
                    went.append(PastRow(fact.placement, held.row, held.from_epoch, epoch.epoch))
            if isinstance(fact, PlacementChanged):
                rows = self.placements.setdefault(fact.placement, {})
                for row in fact.added:
                    rows[row.start] = Held(row, epoch.epoch)
                    touched.add((fact.placement, row.start))
        self.last = epoch
        return went, touched

    def get(self, key: Key) -> Held | None:
        """The row at a key now; None when it is gone."""
        return self.placements.get(key[0], {}).get(key[1])

    def _take(self, fact: PlacementChanged | PlacementDropped) -> list[Held]:
        """Remove what a fact removes, once all of it fits."""
        rows = self.placements.get(fact.placement)
        if isinstance(fact, PlacementDropped):
            return list(self.placements.pop(fact.placement, {}).values())
        if rows is None:
            Placement.of(fact.added)
            return []
        _check_fits(rows, fact)
        return [rows.pop(range_.start) for range_ in fact.removed]


def _check_fits(rows: HeldRows, fact: PlacementChanged) -> None:
    """What is removed are rows, and what is added covers the same tokens. Raises PlacementError."""
    for range_ in fact.removed:
        held = rows.get(range_.start)
        if held is None or held.row.end != range_.end:
            raise PlacementError(f"Range ({range_.start}, {range_.end}] of it is no row.")
    if _spans(fact.removed) != _spans(fact.added):
        raise PlacementError("What is added does not cover what is removed.")


def _spans(ranges: Iterable[Range] | Sequence[RangeReplicas]) -> list[tuple[int, int]]:
    """The tokens of the ranges as intervals that do not touch. Raises PlacementError on an overlap."""
    ends = sorted((range_.start, upper_bound(range_.end)) for range_ in ranges)
    if any(end > start for (_, end), (start, _) in pairwise(ends)):
        raise PlacementError("Two of its ranges overlap.")
    spans: list[tuple[int, int]] = []
    for start, end in ends:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans
