"""The newest loads of all nodes, and the sizes of tablets that follow from them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.balancer.load import LoadTable
from stele.domain.commands import Leave, Truncate
from stele.domain.model.tablet_stats import Reals
from stele.domain.tablets.maps import read_from
from tests.coordinator.test_tablets import with_table
from tests.coordinator.world import World
from tests.domain.load_of import IDLE, TOTAL_BYTES, Rate, even, load_of, loads_of, table_of

NAN = float("nan")


def stats(**by_node: dict[int, int]) -> LoadTable:
    """Return reports of nodes with sizes of tablets of a map of four."""
    table = LoadTable()
    for name, sizes in by_node.items():
        table = table.with_load(load_of(name, table_of("t", 4, sizes)), 0.0)
    return table


def sizes(table: LoadTable, count: int = 4, data_id: str = "t") -> Reals:
    return table.stats(data_id, count).sizes


def test_size_is_the_mean_over_known_replicas() -> None:
    table = stats(n1={0: 10, 1: 20}, n2={0: 30, 3: 5})
    np.testing.assert_array_equal(sizes(table), [20, 20, NAN, 5])
    assert table.stats("t", 4).size_bytes() is None
    assert stats(n1={0: 1, 1: 2, 2: 3, 3: 4}, n2={0: 3}).stats("t", 4).size_bytes() == 2 + 2 + 3 + 4
    np.testing.assert_array_equal(sizes(table, 2, "other"), [NAN, NAN])


def test_capacity_is_the_free_space_plus_the_tablets() -> None:
    table = stats(n1={0: 10, 1: 20})
    assert table.capacity_bytes("n1") == TOTAL_BYTES
    assert table.capacity_bytes("n2") is None
    other = load_of("n1", table_of("t", 4, {0: 7}), disk_free_bytes=100, sequence=2)
    assert table.with_load(other, 0.0).capacity_bytes("n1") == 107


@pytest.mark.parametrize(
    ("changes", "at_s", "newer"),
    [
        ({"sequence": 6}, 0.0, True),
        ({"sequence": 5}, 99.0, False),
        ({"sequence": 4}, 99.0, False),
        ({"sequence": 1, "boot_id": "boot-6"}, 0.0, True),
        ({"sequence": 9, "boot_id": "boot-4"}, 0.0, False),
        ({"sequence": 1, "boot_id": "boot-4"}, 99.0, True),
        ({"sequence": 1, "boot_id": "boot-4", "log_id": b"other"}, 0.0, True),
    ],
)
def test_newest_report_of_a_node_counts(
    changes: dict[str, object], at_s: float, newer: bool
) -> None:
    first = load_of("n1", table_of("t", 1, {0: 10}), sequence=5, boot_id="boot-5")
    second = load_of("n1", table_of("t", 1, {0: 20}), **{"boot_id": "boot-5", **changes})
    table = LoadTable().with_load(first, 0.0).with_load(second, at_s)
    np.testing.assert_array_equal(sizes(table, 1), [20 if newer else 10])


def test_split_halves_sizes_and_a_merge_adds_them() -> None:
    table = stats(n1={0: 10, 1: 20, 2: 30, 3: 40}, n2={2: 50, 3: 60})
    np.testing.assert_array_equal(sizes(table, 8), [5, 5, 10, 10, 20, 20, 25, 25])
    np.testing.assert_array_equal(sizes(table, 2), [30, 90])
    np.testing.assert_array_equal(sizes(table, 1), [100])
    np.testing.assert_array_equal(sizes(stats(n1={0: 10, 2: 1, 3: 1}), 2), [NAN, 2])
    np.testing.assert_array_equal(sizes(table, 3), [NAN] * 3)


def test_reports_before_and_after_a_split_are_combined() -> None:
    table = stats(n1={0: 10}).with_load(load_of("n2", table_of("t", 8, {0: 7, 1: 3})), 0.0)
    np.testing.assert_array_equal(sizes(table, 8), [6, 4, *[NAN] * 6])
    np.testing.assert_array_equal(sizes(table, 4), [10, *[NAN] * 3])


@given(
    st.lists(st.integers(0, 1 << 40), min_size=8, max_size=8), st.sampled_from([1, 2, 4, 16, 64])
)
def test_resize_preserves_the_total_size_of_a_table(held: list[int], count: int) -> None:
    table = LoadTable().with_load(load_of("n1", table_of("t", 8, dict(enumerate(held)))), 0.0)
    assert table.stats("t", count).size_bytes() == pytest.approx(sum(held))


def test_reported_size_counts_until_the_new_node_reports_it() -> None:
    """Otherwise a tablet had no size between the two reports, and the balancer would change its measure."""
    table = stats(n1={0: 10, 1: 20}, n2={2: 5, 3: 5})
    moved = table.with_load(load_of("n1", table_of("t", 4, {1: 21}), sequence=2), 1.0)
    np.testing.assert_array_equal(sizes(moved), [10, 21, 5, 5])
    there = moved.with_load(load_of("n2", table_of("t", 4, {0: 12, 2: 5, 3: 5}), sequence=2), 2.0)
    np.testing.assert_array_equal(sizes(there), [12, 21, 5, 5])
    emptied = there.with_load(load_of("n1", sequence=3), 3.0)
    np.testing.assert_array_equal(sizes(emptied), [12, 21, 5, 5])
    np.testing.assert_array_equal(sizes(emptied, 2), [31, 10])
    merged = emptied.with_load(load_of("n2", table_of("t", 2, {1: 9}), sequence=3), 4.0)
    np.testing.assert_array_equal(sizes(merged, 2), [31, 9])


def test_disk_is_full_at_98_percent() -> None:
    table = LoadTable()
    for name, free in (("n1", 21), ("n2", 20), ("n3", 0)):
        load = load_of(name, disk_total_bytes=1000, disk_free_bytes=free)
        table = table.with_load(load, 0.0)
    assert table.full() == {"n2", "n3"}


def test_age_is_measured_since_the_report_was_sent() -> None:
    table = LoadTable().with_load(load_of("n1"), 5.0)
    assert table.age_s("n1", 7.5) == 2.5
    assert table.age_s("n2", 7.5) is None


@pytest.fixture
def world() -> World:
    """Return three nodes and a table of four tablets with two replicas each."""
    return with_table("a1 b1 c1", 4)


def test_node_reports_the_tablets_whose_reads_it_serves(world: World) -> None:
    (table,) = world.image.schema.with_tablets()
    rows = world.image.ring.placements[table.placement].rows
    for node_id in ("a1", "b1", "c1"):
        ((data, count, tablets),) = read_from(world.image, node_id)
        assert (data.name, count) == ("music.songs", 4)
        assert tablets == [at for at, row in enumerate(rows) if node_id in row.reads]
    assert not [*read_from(world.image, "stranger")]


def test_only_members_of_this_log_with_their_own_data_count(world: World) -> None:
    image = world.image
    table = loads_of(image, lambda *_: 1)
    assert {*table.current(image).by_node} == {"a1", "b1", "c1"}
    ours = {"epoch": image.epoch, "log_id": image.log_id}
    for load in (
        load_of("a1", host_id="an emptied disk", sequence=2, **ours),
        load_of("b1", host_id=image.membership.nodes["b1"].host_id, epoch=1, log_id=b"another"),
        load_of("stranger", **ours),
        load_of("to come", epoch=image.epoch + 1, log_id=image.log_id),
    ):
        table = table.with_load(load, 0.0)
    assert {*table.current(image).by_node} == {"c1", "to come"}


def test_loads_of_a_left_node_are_dropped(world: World) -> None:
    table = loads_of(world.image, lambda *_: 1)
    world.balances = True
    assert world.apply(Leave("c1")) is None
    world.run()
    assert {*table.current(world.image).by_node} == {"a1", "b1"}


def test_sizes_of_truncated_data_are_dropped(world: World) -> None:
    table = loads_of(world.image, lambda *_: 1)
    (data_id,) = (table.data_id for table in world.image.schema.with_tablets())
    for node_id, reported in table.by_node.items():
        load = msgspec.structs.replace(reported.load, tables=(), sequence=2)
        table = table.with_load(load, 1.0)
        assert node_id in table.by_node
    assert table.stats(data_id, 4).size_bytes() == 4
    assert {*table.current(world.image).left} == {data_id}
    assert world.apply(Truncate("music.songs")) is None
    world.run()
    assert not table.current(world.image).left


def rated(rates: dict[int, Rate] | None, count: int = 4, **changes: object) -> LoadTable:
    return LoadTable().with_load(
        load_of("n1", table_of("t", count, dict.fromkeys(range(count), 1), rates), **changes), 0.0
    )


def rates(table: LoadTable, count: int = 4) -> tuple[list[float], list[float]]:
    """Return rates, and those of lower halves. -1 is unknown."""
    stats = table.stats("t", count)
    return np.nan_to_num(stats.rates, nan=-1).tolist(), np.nan_to_num(stats.lower, nan=-1).tolist()


def test_rate_is_the_mean_over_replicas_that_know_it() -> None:
    table = LoadTable()
    for name, known in {
        "n1": {0: Rate(10, 30), 1: Rate(0, 8)},
        "n2": {0: Rate(20, 0, 40)},
        "n3": None,
    }.items():
        load = load_of(name, table_of("t", 4, {0: 1, 1: 1, 2: 1}, known))
        table = table.with_load(load, 0.0)
    assert rates(table) == ([50, 8, -1, -1], [35, 0, -1, -1])
    assert table.stats("t", 4).columns[1:3, 0].tolist() == [30, 20]


def test_split_tablets_have_the_rates_of_halves_and_unknown_halves() -> None:
    """Made-up halves would suggest that any further split helps."""
    table = rated({0: Rate(30, 10), 1: Rate(0, 8), 2: even(0), 3: Rate(1, 3, 4)})
    assert rates(table, 8) == ([30, 10, 0, 8, 0, 0, 5, 3], [-1] * 8)
    assert rates(table, 16)[0] == [15, 15, 5, 5, 0, 0, 4, 4, 0, 0, 0, 0, 2.5, 2.5, 1.5, 1.5]


def test_merged_tablets_have_the_sum_and_known_halves() -> None:
    table = rated({0: Rate(30, 10), 1: Rate(0, 8), 2: even(2), 3: Rate(1, 3, 4)})
    assert rates(table, 2) == ([48, 10], [40, 2])
    assert rates(table, 1) == ([58], [48])
    assert rates(rated({0: Rate(30, 10), 2: even(2), 3: even(2)}), 2) == ([-1, 4], [-1, 2])


def test_last_known_rate_counts_until_a_new_one_is_reported() -> None:
    """The node has restarted, or the table was split, and it counts from zero."""
    table = rated({0: Rate(30, 10), 1: even(8), 2: even(8), 3: even(8)})
    again = load_of("n1", table_of("t", 4, dict.fromkeys(range(4), 2), {3: even(2)}), sequence=2)
    table = table.with_load(again, 1.0)
    assert rates(table) == ([40, 8, 8, 2], [30, 4, 4, 1])
    assert sizes(table).tolist() == [2] * 4
    split = load_of("n1", table_of("t", 8, dict.fromkeys(range(8), 1), {}), sequence=3)
    table = table.with_load(split, 2.0)
    assert rates(table, 8) == ([30, 10, 4, 4, 4, 4, 1, 1], [-1] * 8)
    stats = load_of("n1", table_of("t", 8, dict.fromkeys(range(8), 1), {0: Rate(25)}), sequence=4)
    table = table.with_load(stats, 3.0)
    assert rates(table, 8) == ([25, 10, 4, 4, 4, 4, 1, 1], [25, *[-1] * 7])


def test_moved_hot_tablet_keeps_its_rate_until_the_next_report() -> None:
    """Otherwise its new node would seem to have room for another tablet."""
    table = rated({0: even(400), 1: even(0), 2: even(0), 3: even(0)})
    there = load_of("n2", table_of("t", 4, {0: 1}, {}))
    away = load_of("n1", table_of("t", 4, {1: 1, 2: 1, 3: 1}, {1: IDLE, 2: IDLE}), sequence=2)
    for order in ((there, away), (away, there)):
        after = table
        for load in order:
            after = after.with_load(load, 1.0)
        assert rates(after)[0] == [400, 0, 0, 0]


@given(
    st.lists(
        st.tuples(*[st.integers(0, 10**6)] * 3).map(lambda rate: Rate(*rate)),
        min_size=8,
        max_size=8,
    ),
    st.sampled_from([1, 2, 4, 16, 64]),
)
def test_resize_preserves_the_total_rate_of_a_table(served: list[Rate], count: int) -> None:
    stats = rated(dict(enumerate(served)), 8).stats("t", count)
    assert stats.rates.sum() == pytest.approx(sum(map(sum, served)))
    assert np.isnan(stats.lower).all() if count > 8 else (stats.lower <= stats.rates).all()
