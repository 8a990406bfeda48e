"""Which tablet a token is in, and which range a tablet has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import upper_bound
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.domain.tablets.maps import new_map
from stele.domain.tablets.ranges import range_of, ranges, tablet_of

counts = st.integers(0, 10).map(lambda power: 1 << power)


@given(counts)
def test_the_ranges_are_equal_and_cover_the_ring_in_order(count: int) -> None:
    found = ranges(count)
    assert len(found) == count
    assert found[0].start == found[-1].end == MIN_TOKEN
    widths = [upper_bound(each.end) - each.start for each in found]
    assert sum(widths) == 2**64
    assert max(widths) - min(widths) <= 2, "the ring's ends take one token more or less"
    assert [range_of(count, at) for at in range(count)] == [*found]
    assert [tablet_of(count, each.end) for each in found] == [*range(count)]


@given(counts, st.integers(MIN_TOKEN + 1, MAX_TOKEN))
def test_a_row_of_a_map_is_found_by_its_token_and_by_its_number(count: int, token: int) -> None:
    placement = Placement.of(new_map([[f"n{at}"] for at in range(count)]))
    row = placement.row_for(token)
    tablet = tablet_of(count, row.end)
    assert row.reads == (f"n{tablet}",)
    assert placement.row_for(range_of(count, tablet).end) == row


@pytest.mark.parametrize("tablet", [-1, 8])
def test_there_are_no_others(tablet: int) -> None:
    with pytest.raises(IndexError):
        range_of(8, tablet)
