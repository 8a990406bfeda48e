"""Differences between placements, compared with the sets of all their rows."""

import random
from itertools import pairwise

import pytest

from stele.domain.model.ring import differences
from stele.domain.ring.columns import CHUNK_ROWS
from stele.domain.ring.placement import Placement, apply
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas, range_of

NODES = ("n1", "n2", "n3", "n4")


def ring(tokens: int) -> Placement:
    bounds = (MIN_TOKEN, *range(0, tokens * 10, 10), MIN_TOKEN)
    return Placement.of(RangeReplicas(a, b, NODES[:2], NODES[:3]) for a, b in pairwise(bounds))


def changed(placement: Placement, chance: random.Random) -> Placement:
    """Return the placement with a row split, two rows merged, or other replicas of a row."""
    rows = placement.rows
    at = chance.randrange(len(rows) - 1) if len(rows) > 1 else 0
    row, other = rows[at], rows[(at + 1) % len(rows)]
    nodes = tuple(chance.sample(NODES, 3))
    kind = chance.choice(("cut", "join", "replace"))
    if kind == "join" and row is not other:
        joined = RangeReplicas(row.start, other.end, nodes, nodes)
        return apply(placement, (range_of(row), range_of(other)), (joined,))
    if kind == "cut" and row.start != MIN_TOKEN and row.end - row.start > 1:
        low = RangeReplicas(row.start, row.start + 1, nodes, nodes)
        high = RangeReplicas(row.start + 1, row.end, row.reads, row.writes)
        return apply(placement, (range_of(row),), (low, high))
    new = RangeReplicas(row.start, row.end, nodes[:2], nodes, row.version + 1, row.version)
    return apply(placement, (range_of(row),), (new,))


@pytest.mark.parametrize("seed", range(12))
def test_differences_equal_those_of_all_rows(seed: int) -> None:
    chance = random.Random(seed)
    before = ring(chance.choice((1, 5, CHUNK_ROWS * 4)))
    after = before
    for _ in range(chance.randrange(6)):
        after = changed(after, chance)
    removed, added = differences(before, after)
    were, are = set(before.rows), set(after.rows)
    assert removed == tuple(row for row in before.rows if row not in are)
    assert added == tuple(row for row in after.rows if row not in were)


def test_missing_placement_has_no_rows() -> None:
    placement = ring(3)
    assert differences(None, placement) == ((), placement.rows)
    assert differences(placement, None) == (placement.rows, ())
    assert differences(placement, placement) == ((), ())


def test_shared_chunks_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ring(CHUNK_ROWS * 20)
    row = before.row_for(77)
    after = apply(before, (range_of(row),), (RangeReplicas(row.start, row.end, (), ()),))
    looked: list[Range] = []
    overlapping = Placement.overlapping

    def counted(self: Placement, range_: Range) -> tuple[RangeReplicas, ...]:
        looked.append(range_)
        return overlapping(self, range_)

    monkeypatch.setattr(Placement, "overlapping", counted)
    assert differences(before, after)[0] == (row,)
    assert len(looked) == 2
