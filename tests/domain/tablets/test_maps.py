"""The tablet of a token, and the range of a tablet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.placement import Placement, ends_of, rows_of
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, RangeReplicas, upper_bound
from stele.domain.ring.ranges import range_of as range_of_row
from stele.domain.tablets.maps import new_map, range_of, ranges, resized, tablet_of

counts = st.integers(0, 10).map(lambda power: 1 << power)


@given(counts)
def test_ranges_are_equal_and_cover_the_ring_in_order(count: int) -> None:
    found = ranges(count)
    assert len(found) == count
    assert found[0].start == found[-1].end == MIN_TOKEN
    widths = [upper_bound(each.end) - each.start for each in found]
    assert sum(widths) == 2**64
    assert max(widths) - min(widths) <= 2, "the ring's ends take one token more or less"
    assert [range_of(count, at) for at in range(count)] == [*found]
    assert [tablet_of(count, each.end) for each in found] == [*range(count)]


@given(counts, st.integers(MIN_TOKEN + 1, MAX_TOKEN))
def test_row_of_a_map_is_found_by_token_and_by_number(count: int, token: int) -> None:
    numbers = np.arange(count, dtype=np.int32)[:, None]
    placement = new_map(numbers, NodeNumbers(tuple(f"n{at}" for at in range(count))))
    assert [range_of_row(row) for row in placement.rows] == [*ranges(count)]
    row = placement.row_for(token)
    tablet = tablet_of(count, row.end)
    assert row.reads == (f"n{tablet}",)
    assert placement.row_for(range_of(count, tablet).end) == row


@pytest.mark.parametrize("tablet", [-1, 8])
def test_tablet_number_out_of_range_is_refused(tablet: int) -> None:
    with pytest.raises(IndexError):
        range_of(8, tablet)


@st.composite
def maps(draw: st.DrawFn, siblings_together: bool) -> Placement:
    """Return a map at rest whose tablets have moved. Siblings are on the same nodes, or each on any nodes."""
    count = 1 << draw(st.integers(1, 4))
    nodes = st.permutations(["a", "b", "c", "d"]).map(lambda order: tuple(order[:3]))
    rows = list[RangeReplicas]()
    for tablet, at in enumerate(ranges(count)):
        where = rows[-1].writes if tablet % 2 and siblings_together else draw(nodes)
        versions = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
        rows.append(RangeReplicas(at.start, at.end, where, where, *versions))
    return Placement.of(rows)


def rows_resized(placement: Placement, count: int) -> tuple[RangeReplicas, ...]:
    rows = resized(placement, count)
    return tuple(rows_of(rows, ends_of(rows.keys), placement.nodes))


@given(maps(siblings_together=False))
def test_split_divides_each_tablet_and_changes_nothing_else(before: Placement) -> None:
    count = 2 * len(before)
    expected = [
        replace(before.rows[tablet // 2], start=at.start, end=at.end)
        for tablet, at in enumerate(ranges(count))
    ]
    assert rows_resized(before, count) == tuple(expected)


@given(maps(siblings_together=True))
def test_merged_tablet_has_the_newest_versions_of_both(before: Placement) -> None:
    expected = list[RangeReplicas]()
    for left, right in zip(before.rows[::2], before.rows[1::2], strict=True):
        versions = {left.version, left.version_before, right.version, right.version_before}
        newest = max(left.version, right.version)
        earlier = max((v for v in versions if v < newest), default=0)
        expected.append(replace(left, end=right.end, version=newest, version_before=earlier))
    assert rows_resized(before, len(before) // 2) == tuple(expected)


@given(maps(siblings_together=False))
def test_merge_reverses_a_split(before: Placement) -> None:
    """Versions before the newest change are lost if they equal it or are later."""
    rows = [replace(row, version_before=0) for row in before.rows]
    split = Placement.of(rows_resized(Placement.of(rows), 2 * len(rows)))
    assert rows_resized(split, len(rows)) == tuple(rows)
