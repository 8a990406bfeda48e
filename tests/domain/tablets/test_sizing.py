"""How many tablets a new table gets, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.schema.facts import TableOptions
from stele.domain.tablets.sizing import Scope, first_count

NINE = {"dc1": Scope(shards=9, replication_factor=3, held=0)}


@pytest.mark.parametrize(
    ("options", "initial", "count", "reason"),
    [
        (TableOptions(), 0, 32, "10 replicas for each of 9 shards of dc1"),
        (TableOptions(), 5, 8, "the keyspace's initial_tablets is 5"),
        (TableOptions(min_tablet_count=100), 0, 128, "min_tablet_count is 100"),
        (TableOptions(expected_data_size_in_gb=1000), 0, 256, "expected_data_size_in_gb is 1000"),
        (TableOptions(expected_data_size_in_gb=20), 1, 4, "expected_data_size_in_gb is 20"),
        (
            TableOptions(min_per_shard_tablet_count=30),
            0,
            128,
            "30 replicas for each of 9 shards of dc1",
        ),
        (TableOptions(max_tablet_count=20), 0, 16, "max_tablet_count is 20"),
        (TableOptions(min_tablet_count=16, max_tablet_count=16), 64, 16, "max_tablet_count is 16"),
    ],
)
def test_the_largest_that_is_asked_for(
    options: TableOptions, initial: int, count: int, reason: str
) -> None:
    found = first_count(options, initial, NINE)
    assert (found.count, found.reason) == (count, reason)


def test_what_nobody_asked_for_leaves_room_for_other_tables() -> None:
    full = {"dc1": Scope(shards=9, replication_factor=3, held=890)}
    found = first_count(TableOptions(), 0, full)
    assert (found.count, found.reason) == (4, "100 replicas of all tables for each shard of dc1")
    assert first_count(TableOptions(), 64, full).count == 64, "what is asked for is given"


def test_the_dc_that_asks_for_most_decides() -> None:
    two = {"dc1": Scope(9, 3, 0), "dc2": Scope(40, 1, 0)}
    assert first_count(TableOptions(), 0, two).count == 512


@given(
    st.builds(
        TableOptions,
        min_tablet_count=st.integers(0, 2000),
        max_tablet_count=st.integers(0, 2000),
        min_per_shard_tablet_count=st.integers(0, 200),
        expected_data_size_in_gb=st.integers(0, 100_000),
    ),
    st.integers(0, 5000),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(0, 100_000),
)
def test_a_power_of_two_within_the_bounds(
    options: TableOptions, initial: int, shards: int, factor: int, held: int
) -> None:
    count = first_count(options, initial, {"dc1": Scope(shards, factor, held)}).count
    assert count & (count - 1) == 0 < count
    most = options.max_tablet_count
    assert not most or count <= most
    assert most or count >= max(options.min_tablet_count, initial)
