"""Wishes and weights of a group of co-located tables."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.schema.model import TableOptions
from stele.domain.tablets.groups import combined, summed
from stele.domain.tablets.sizing import hottest_of
from stele.domain.tablets.tablet_stats import COLUMNS, LOWER, READS, SIZE, WRITES, TabletStats

NAN = float("nan")


def stats(*tablets: tuple[float, float, float, float]) -> TabletStats:
    """Bytes, reads, writes and those in the lower half, of each tablet."""
    return TabletStats(np.array(tablets, np.float64).T)


def test_a_group_asks_for_what_any_of_its_tables_asks_for() -> None:
    base = TableOptions(
        min_tablet_count=4,
        max_tablet_count=64,
        expected_data_size_in_gb=100,
        auto_repair_enabled="on",
        auto_repair_threshold=60,
    )
    view = TableOptions(min_tablet_count=8, max_tablet_count=32, min_per_shard_tablet_count=2)
    assert combined([base, view]) == TableOptions(
        min_tablet_count=8,
        max_tablet_count=32,
        min_per_shard_tablet_count=2,
        expected_data_size_in_gb=200,  # 100 GB each, on average of those who say it
        auto_repair_enabled="on",
        auto_repair_threshold=60,
    )
    sized = [TableOptions(expected_data_size_in_gb=size) for size in (10, 21, 0)]
    assert combined(sized).expected_data_size_in_gb == 47, "three of 15.5 each, rounded up"
    assert combined([base]) == base and combined([TableOptions()] * 3) == TableOptions()


def test_a_tablet_weighs_what_it_has_of_all_tables() -> None:
    found = summed([stats((10, 4, 2, 3), (1, 0, 0, 0)), stats((5, 1, 1, 1), (2, 7, 0, 0))])
    assert found.columns[SIZE].tolist() == [15, 3]
    assert found.rates.tolist() == [8, 7]
    assert found.lower.tolist() == [4, 0]
    assert not found.uncounted


def test_a_new_table_keeps_what_is_known_of_the_others_and_its_missing_rates_are_named() -> None:
    known, new = stats((10, 4, 2, 3), (1, 0, 0, 0)), stats(*[(NAN, NAN, NAN, NAN)] * 2)
    found = summed([known, new])
    assert found.columns.tolist() == known.columns.tolist()
    whole, partly = hottest_of(known), hottest_of(found)
    assert whole is not None and not whole.uncounted
    assert partly is not None and partly.uncounted == 2
    assert partly.by_count == whole.by_count
    assert np.isnan(summed([new, new]).columns).all()


def test_of_halves_that_are_counted_in_one_table_alone_nothing_is_known() -> None:
    """Else all of the other's would seem to be in the upper one, and a split of no help be made."""
    found = summed([stats((1, 100, 0, 50)), stats((1, 60, 0, NAN))])
    assert found.rates.tolist() == [160] and np.isnan(found.lower).all()


@given(
    st.integers(1, 4).flatmap(
        lambda tables: st.lists(
            st.lists(
                st.tuples(st.sampled_from((0.0, 3.0, NAN)), st.sampled_from((0.0, 8.0, NAN))),
                min_size=tables,
                max_size=tables,
            ),
            min_size=1,
            max_size=3,
        )
    )
)
def test_sums_are_those_of_what_is_known(tablets: list[list[tuple[float, float]]]) -> None:
    """By tablet and table: the bytes, and the reads, all of them in the lower half."""
    each = [
        stats(*[(size, reads, 0 * reads, reads) for size, reads in row])
        for row in zip(*tablets, strict=True)
    ]
    found = summed(each).columns
    assert found.shape == (COLUMNS, len(tablets))
    for tablet, rows in enumerate(tablets):
        for columns, at in (((SIZE,), 0), ((READS, LOWER), 1)):
            known = [row[at] for row in rows if not np.isnan(row[at])]
            for column in columns:
                wanted = sum(known) if known else NAN
                assert np.array_equal(found[column, tablet], wanted, equal_nan=True)
        assert np.isnan(found[WRITES, tablet]) == np.isnan(found[READS, tablet])
