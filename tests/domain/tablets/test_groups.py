"""Options and loads of a group of co-located tables."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.model.schema import TableOptions
from stele.domain.model.tablet_stats import COLUMNS, LOWER, READS, SIZE, WRITES, TabletStats
from stele.domain.tablets.maps import combined, summed
from stele.domain.tablets.sizing import hottest_of

NAN = float("nan")


def stats(*tablets: tuple[float, float, float, float]) -> TabletStats:
    """Return stats with bytes, reads, writes and lower-half operations of each tablet."""
    return TabletStats(np.array(tablets, np.float64).T)


def test_options_of_a_group_combine_those_of_its_tables() -> None:
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
        expected_data_size_in_gb=200,  # 100 GB each, on average of the tables that set it
        auto_repair_enabled="on",
        auto_repair_threshold=60,
    )
    sized = [TableOptions(expected_data_size_in_gb=size) for size in (10, 21, 0)]
    assert combined(sized).expected_data_size_in_gb == 47, "three of 15.5 each, rounded up"
    assert combined([base]) == base and combined([TableOptions()] * 3) == TableOptions()


def test_load_of_a_tablet_is_the_sum_over_all_tables() -> None:
    found = summed([stats((10, 4, 2, 3), (1, 0, 0, 0)), stats((5, 1, 1, 1), (2, 7, 0, 0))])
    assert found.columns[SIZE].tolist() == [15, 3]
    assert found.rates.tolist() == [8, 7]
    assert found.lower.tolist() == [4, 0]
    assert not found.uncounted


def test_new_table_keeps_known_loads_and_reports_missing_rates() -> None:
    known, new = stats((10, 4, 2, 3), (1, 0, 0, 0)), stats(*[(NAN, NAN, NAN, NAN)] * 2)
    found = summed([known, new])
    assert found.columns.tolist() == known.columns.tolist()
    whole, partly = hottest_of(known), hottest_of(found)
    assert whole is not None and not whole.uncounted
    assert partly is not None and partly.uncounted == 2
    assert partly.by_count == whole.by_count
    assert np.isnan(summed([new, new]).columns).all()


def test_lower_half_is_unknown_if_one_table_does_not_count_it() -> None:
    """Otherwise the other table's operations would seem to be in the upper half, and a split useful."""
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
def test_sums_include_only_known_values(tablets: list[list[tuple[float, float]]]) -> None:
    """Each tablet has for each table its bytes and its reads, all of them in the lower half."""
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
