"""The number of tablets of a new table, and its reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.model.schema import TableOptions
from stele.domain.tablets.sizing import Goals, Present, ReplicaScope, fewest, first_count, most

GOALS = Goals(target_bytes=1000, target_rate=0)
DEFAULT = Goals()
NINE = {"dc1": ReplicaScope(shards=9, replication_factor=3, held=0)}


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
def test_largest_requested_count_decides(
    options: TableOptions, initial: int, count: int, reason: str
) -> None:
    found = first_count(options, initial, NINE, DEFAULT)
    assert (found.count, found.reason) == (count, reason)


def test_default_count_leaves_room_for_other_tables() -> None:
    full = {"dc1": ReplicaScope(shards=9, replication_factor=3, held=890)}
    found = first_count(TableOptions(), 0, full, GOALS)
    assert (found.count, found.reason) == (4, "100 replicas of all tables for each shard of dc1")
    assert first_count(TableOptions(), 64, full, GOALS).count == 64, "what is asked for is given"


def test_dc_with_the_largest_count_decides() -> None:
    two = {"dc1": ReplicaScope(9, 3, 0), "dc2": ReplicaScope(40, 1, 0)}
    assert first_count(TableOptions(), 0, two, GOALS).count == 512


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
def test_first_count_is_a_power_of_two_within_the_bounds(
    options: TableOptions, initial: int, shards: int, factor: int, held: int
) -> None:
    scopes = {"dc1": ReplicaScope(shards, factor, held)}
    count = first_count(options, initial, scopes, GOALS).count
    assert count & (count - 1) == 0 < count
    most = options.max_tablet_count
    assert not most or count <= most
    assert most or count >= max(options.min_tablet_count, initial)


@pytest.mark.parametrize(
    ("mean", "resizing_to", "fewest_", "most_"),
    [
        (2000, 0, 64, 64),
        (2001, 0, 65, 64),
        (9000, 0, 288, 64),
        (1999, 128, 128, 64),
        (1000, 128, 128, 64),
        (999, 128, 32, 64),
        (500, 0, 16, 64),
        (499, 0, 16, 32),
        (0, 0, 1, 1),
        (1000, 32, 32, 32),
        (1001, 32, 33, 64),
    ],
)
def test_size_splits_above_twice_the_target_and_merges_below_half(
    mean: int, resizing_to: int, fewest_: int, most_: int
) -> None:
    """A split or merge continues until the target itself is passed, so that varying sizes do not reverse it."""
    about = (TableOptions(), 1, NINE, Present(64, 64.0 * mean, resizing_to), GOALS)
    assert (fewest(*about).count, most(*about).count) == (fewest_, most_)


@pytest.mark.parametrize(
    ("options", "initial", "present", "fewest_", "most_"),
    [
        (TableOptions(), 0, Present(256), 30, 256),
        (TableOptions(), 0, Present(16), 30, 32),
        (TableOptions(), 24, Present(32, 0.0), 24, 32),
        (TableOptions(min_tablet_count=512), 0, Present(512, 0.0), 512, 512),
        (TableOptions(max_tablet_count=2, expected_data_size_in_gb=10**5), 0, Present(2), 2, 2),
        (TableOptions(expected_data_size_in_gb=10**6), 0, Present(2), 2**20, 2**20),
    ],
)
def test_requested_count_is_independent_of_size_within_the_limit(
    options: TableOptions, initial: int, present: Present, fewest_: int, most_: int
) -> None:
    about = (options, initial, NINE, present, GOALS)
    assert (fewest(*about).count, most(*about).count) == (fewest_, most_)
