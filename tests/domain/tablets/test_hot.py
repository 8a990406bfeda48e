"""Tables are split by the rate of their hottest tablet while that helps, and not merged while they are hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.balancer.resizing import Needs, next_counts
from stele.domain.model.schema import TableOptions
from stele.domain.model.tablet_stats import Reals, TabletStats
from stele.domain.tablets.sizing import (
    Goals,
    Hottest,
    Present,
    ReplicaScope,
    TabletCount,
    by_rate,
    fewest,
    hottest_of,
    most,
    words,
)

NAN = float("nan")
TARGET = 100
GOALS = Goals(target_bytes=1000, target_rate=TARGET)
ONE = {"dc1": ReplicaScope(shards=1, replication_factor=1)}
ROOM = 10**6


def stats(halves: Sequence[float] | Reals, counted: bool = True) -> TabletStats:
    """Return rates of the halves of a table's tablets, each of one byte; lower ones first."""
    pairs = np.asarray(halves, np.float64).reshape(-1, 2)
    total, lower = pairs.sum(axis=1), pairs[:, 0] if counted else np.full(len(pairs), NAN)
    return TabletStats(np.stack([np.ones(len(pairs)), total, np.zeros(len(pairs)), lower]))


def hot(*halves: float, counted: bool = True) -> Hottest:
    found = hottest_of(stats(halves, counted))
    assert found is not None
    return found


def bounds(hottest: Hottest | None, count: int, resizing_to: int = 0) -> tuple[int, int]:
    """Return the largest count to which a table is split, and the smallest to which it is merged."""
    found = by_rate(TableOptions(), Present(count, 0.0, resizing_to, hottest), GOALS)
    return found.split.count, found.keep.count


def table_of(
    hottest: Hottest | None, count: int, size_bytes: float | None = 0.0, **options: Any
) -> Needs:
    """Return a table, empty by default."""
    present, asked = Present(count, size_bytes, 0, hottest), TableOptions(**options)
    about = (asked, 1, ONE, present, GOALS)
    return Needs(
        count=count,
        options=asked,
        scopes=ONE,
        fewest=fewest(*about),
        most=most(*about),
        by_rate=by_rate(asked, present, GOALS),
    )


def test_rates_after_a_merge_or_split_follow_from_the_halves() -> None:
    found = hot(1, 2, 30, 10, 5, 5, 0, 0)
    assert found == Hottest(by_count=(53, 43, 40), tablet=1, split=30)
    assert hot(1, 2, 30, 10, counted=False).split is None
    assert hottest_of(stats([NAN] * 4)) is None
    some = hot(1, 2, NAN, NAN)
    assert (some.by_count, some.uncounted, some.split) == ((3, 3), 1, 2)


def test_unknown_half_counts_only_if_its_tablet_is_the_hottest() -> None:
    columns = stats([30, 10, 20, 5]).columns
    columns[3, 1] = NAN
    found = hottest_of(TabletStats(columns))
    assert found is not None and found.split == 30
    columns[1, 1] = 31
    unknown = hottest_of(TabletStats(columns))
    assert unknown is not None and unknown.split is None


def wanted(hottest: Hottest, count: int, per_shard: int = ROOM) -> TabletCount:
    """Return the next tablet count of an empty table."""
    (aim,) = next_counts([table_of(hottest, count, max_tablet_count=32)], per_shard)
    return aim


@pytest.mark.parametrize(
    ("halves", "count"),
    [
        ((50, 50), 1),
        ((51, 50), 2),
        ((91, 29), 1),
        ((60, 60, 10, 10), 4),
        ((40, 10, 10, 0), 2),
        ((20, 10, 10, 9), 1),
        ((0, 500, 0, 0), 1),
        ((400, 0, 0, 300), 2),
    ],
)
def test_table_is_split_above_the_target_if_useful_and_merged_when_cool(
    halves: tuple[float, ...], count: int
) -> None:
    assert wanted(hot(*halves), len(halves) // 2).count == count


def test_single_hot_key_is_not_split_and_the_reason_explains_it() -> None:
    """A split would not reduce the rate of its tablet. The table may even be merged."""
    found = hot(0, 0, 4000, 3, 0, 0, 0, 0)
    assert bounds(found, 4) == (1, 1)
    assert words(found, 2500) == (
        "its hottest tablet, 1, serves 4,003 operations a second; the target is 2,500;"
        " a split does not help, half of a tablet would serve 4,000"
    )
    assert words(hot(2000, 2000), 2500).endswith("the target is 2,500")
    uncounted = words(hot(2000, 2000, counted=False), 2500)
    assert uncounted.endswith("there are no samples yet of whether a split would help")
    assert bounds(hot(2000, 2000, counted=False), 1)[0] == 1


def test_started_resize_continues_while_rates_fluctuate() -> None:
    """A split continues until the table is cool or a split is useless, a merge until it would be too hot."""
    assert bounds(hot(40, 40), 1, 2)[0] == 2
    assert bounds(hot(24, 25), 1, 2)[0] == 1
    assert bounds(hot(90, 10), 1, 2)[0] == 2
    assert bounds(hot(91, 9), 1, 2)[0] == 1
    assert bounds(hot(25, 25, 25, 25), 2, 1) == (1, 1)
    assert bounds(hot(26, 25, 25, 25), 2, 1) == (2, 2)
    assert bounds(hot(26, 25, 25, 25), 2) == (2, 2)


def test_unknown_rates_do_not_prevent_a_merge_and_are_named() -> None:
    """One store reports no rates at all, and one does not know the rate of one tablet."""
    none, some = (
        next_counts([table_of(hottest, 8)], ROOM)[0]
        for hottest in (None, hot(*[0.0] * 14, NAN, NAN))
    )
    assert (none.count, some.count) == (4, 4)
    assert none.reason.endswith("; no node reports rates of its tablets, so bytes alone count")
    assert some.reason.endswith("; the rates of 1 of its 8 tablets are unknown and count as 0")
    assert bounds(hot(*[60.0] * 14, NAN, NAN), 8)[1] == 8, "those that are known still do"


def test_rates_are_ignored_without_a_target() -> None:
    for hottest in (None, hot(9e9, 9e9), hot(*[NAN, NAN, 1, 1])):
        found = by_rate(TableOptions(), Present(2, 0.0, 2, hottest), Goals(target_rate=0))
        assert (found.split.count, found.keep.count, found.too_hot) == (0, 0, False)


def seen(ring: Reals, count: int) -> Hottest:
    """Return the known loads of a table with ``count`` tablets over a ring whose parts have these rates."""
    found = hottest_of(stats(ring.reshape(2 * count, -1).sum(axis=1)))
    assert found is not None
    return found


rings = st.one_of(
    st.lists(st.floats(0, 300), min_size=64, max_size=64),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, 90.0, 160.0, 500.0]), min_size=64, max_size=64),
    st.tuples(st.integers(0, 63), st.floats(0, 10**4), st.floats(0, 100)).map(
        lambda key: [key[1] * (at == key[0]) + key[2] for at in range(64)]
    ),
).map(np.array)
sizes = st.one_of(st.none(), st.just(0.0), st.floats(0, 60_000))


@settings(max_examples=300)
@given(st.lists(st.tuples(rings, sizes, st.integers(0, 5)), min_size=1, max_size=3), st.data())
def test_steady_rates_reach_a_fixed_point_without_reversals(
    tables: list[tuple[Reals, float | None, int]], data: st.DataObject
) -> None:
    """This holds from any number of tablets, and for any limit per shard. Tables that were merged to make
    room for others may be split again if there were too many tablets at first.
    """
    per_shard = data.draw(st.sampled_from((2, 7, 20, ROOM)))
    counts, went = [1 << power for *_, power in tables], [set[bool]() for _ in tables]
    for _ in range(50):
        pairs = zip(tables, counts, strict=True)
        found = [
            table_of(seen(of, count), count, size, max_tablet_count=32)
            for (of, size, _), count in pairs
        ]
        next_ = [aim.count for aim in next_counts(found, per_shard)]
        if next_ == counts:
            break
        at = data.draw(st.sampled_from([n for n, c in enumerate(counts) if next_[n] != c]))
        went[at].add(next_[at] > counts[at])
        counts[at] = next_[at]
    else:
        raise AssertionError(f"it goes on and on: {counts}")
    if sum(1 << power for *_, power in tables) <= per_shard:
        assert all(len(ways) <= 1 for ways in went), went


def test_table_is_split_by_rate_only_if_shards_have_room() -> None:
    """It is merged for others only when shards have twice the limit."""
    busy = hot(400, 400, 0, 0)
    assert wanted(busy, 2, per_shard=4).count == 4
    full = wanted(busy, 2, per_shard=3)
    assert full.count == 2
    assert full.reason.endswith("all tables together would have too many replicas for each shard")
    spread = hot(400, 400, 400, 400)
    assert wanted(spread, 2, per_shard=1).count == 2
    both = [table_of(spread, 2), table_of(spread, 2)]
    assert [aim.count for aim in next_counts(both, 6)] == [4, 2], (
        "the second one has no room any more"
    )
    assert [aim.count for aim in next_counts(both, 2)] == [2, 2]
    assert [aim.count for aim in next_counts(both, 1)] == [1, 1]


def test_options_take_precedence_over_rates() -> None:
    busy = hot(400, 400, 400, 400)
    (aim,) = next_counts([table_of(busy, 2, max_tablet_count=2)], ROOM)
    assert aim.count == 2
    (aim,) = next_counts([table_of(busy, 2, max_tablet_count=1)], ROOM)
    assert aim.count == 1


@settings(max_examples=200)
@given(rings, st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_rates_that_fluctuate_by_a_twentieth_cause_no_reversal(
    ring: Reals, power: int, seed: int
) -> None:
    count, went, draw = 1 << power, set[bool](), np.random.default_rng(seed)
    for _ in range(30):
        noise = draw.uniform(0.96, 1.04, len(ring))
        now = wanted(seen(ring * noise, count), count).count
        if now != count:
            went.add(now > count)
        count = now
    assert len(went) <= 1
