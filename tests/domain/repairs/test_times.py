"""Times of the last repair of tablets: a column that splits and merges with its table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.model.repairs import (
    CHUNK,
    DOMAIN,
    TIMES_PER_FACT,
    RepairsForgotten,
    RepairsImage,
    RepairsResized,
    RepairTimes,
    TabletRepaired,
    Times,
)

COUNTS = st.integers(0, 12).map(lambda power: 1 << power)
columns = COUNTS.flatmap(
    lambda count: st.lists(st.integers(0, 2**42), min_size=count, max_size=count)
)


def times(values: list[int]) -> Times:
    return Times.of(np.array(values, np.int64))


def folded(*facts: object) -> RepairsImage:
    image = DOMAIN.empty
    for fact in facts:
        image = DOMAIN.apply[type(fact)](image, fact)
    assert isinstance(image, RepairsImage)
    return image


@given(columns)
def test_split_copies_times_and_a_merge_restores_them(
    values: list[int],
) -> None:
    column = times(values)
    halves = column.resized(2 * len(values))
    assert halves.all().tolist() == [value for value in values for _ in range(2)]
    assert halves.resized(len(values)) == column


@given(columns.filter(lambda values: len(values) > 1))
def test_merge_keeps_the_older_time(values: list[int]) -> None:
    merged = times(values).resized(len(values) // 2)
    assert merged.all().tolist() == [
        min(pair) for pair in zip(values[::2], values[1::2], strict=True)
    ]


@given(columns, st.data())
def test_change_of_one_time_shares_all_other_chunks(values: list[int], data: st.DataObject) -> None:
    column, tablet = times(values), data.draw(st.integers(0, len(values) - 1))
    changed = column.with_times(tablet, np.array([7], np.int64))
    assert changed[tablet] == 7
    assert column.all().tolist() == values
    values[tablet] = 7
    assert changed.all().tolist() == values
    copied = [a is not b for a, b in zip(column.chunks, changed.chunks, strict=True)]
    assert sum(copied) == 1 and copied[tablet // CHUNK]


def test_chunks_of_a_column_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Times.never(4).chunks[0][0] = 1


def test_table_is_known_from_its_first_repair_until_forgotten() -> None:
    image = folded(TabletRepaired("t", 2, 4, 50), TabletRepaired("t", 0, 4, 60))
    assert image.of("t", 4).tolist() == [60, 0, 50, 0]
    assert image.of("other", 2).tolist() == [0, 0]
    split = DOMAIN.apply[RepairsResized](image, RepairsResized("t", 8))
    assert split.of("t", 8).tolist() == [60, 60, 0, 0, 50, 50, 0, 0]
    assert DOMAIN.apply[RepairsForgotten](image, RepairsForgotten("t")) == DOMAIN.empty


def test_snapshot_of_a_large_table_is_split_into_facts() -> None:
    count = 2 * TIMES_PER_FACT
    image = folded(TabletRepaired("t", 5, count, 50), TabletRepaired("t", count - 1, count, 60))
    facts = [*DOMAIN.to_facts(image)]
    assert len(facts) == 2
    assert all(isinstance(fact, RepairTimes) and len(fact.times) <= 2**19 for fact in facts)
    assert folded(*facts) == image
    assert DOMAIN.hash_of(image) == DOMAIN.hash_of(folded(*facts)) != DOMAIN.hash_of(DOMAIN.empty)


def test_diff_counts_tablets_with_other_times() -> None:
    before = folded(TabletRepaired("t", 2, 4, 50))
    after = folded(TabletRepaired("t", 2, 4, 50), TabletRepaired("t", 3, 4, 60))
    counted = {"t": {"repaired": 1, "newest_ms": 60}}
    assert DOMAIN.diff_of(before, after) == {"repairs": counted, "restricted_repairs": {}}
    gone = {"t": {"repaired": 0, "newest_ms": 0}}
    assert DOMAIN.diff_of(after, DOMAIN.empty) == {"repairs": gone, "restricted_repairs": {}}
    assert DOMAIN.diff_of(after, after) == {"repairs": {}, "restricted_repairs": {}}


def test_restricted_repairs_have_separate_times() -> None:
    some = TabletRepaired("t", 2, 4, 50, restricted=True)
    image = folded(some)
    assert image.of("t", 4).tolist() == [0] * 4
    assert image.of("t", 4, restricted=True).tolist() == [0, 0, 50, 0]
    assert folded(*DOMAIN.to_facts(image)) == image
    hashes = [DOMAIN.hash_of(each) for each in (image, folded(TabletRepaired("t", 2, 4, 50)))]
    assert hashes[0] != hashes[1]
    both = folded(some, TabletRepaired("t", 0, 4, 70), RepairsResized("t", 2))
    assert both.of("t", 2).tolist() == [0, 0]
    assert both.of("t", 2, restricted=True).tolist() == [0, 0]
    apart = folded(some, TabletRepaired("t", 0, 4, 70), RepairsForgotten("t", restricted=True))
    assert apart == folded(TabletRepaired("t", 0, 4, 70))
    assert folded(some, RepairsForgotten("t")) == DOMAIN.empty
    assert folded(some, RepairsForgotten("other")) == image
