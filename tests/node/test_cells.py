"""Versions of a row merge to the same bytes in any order, and timestamps rise."""

from __future__ import annotations

import asyncio
import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.node.backups import decode_rows, encode_rows
from stele.node.cells import (
    ROW,
    TOMBSTONE,
    VALUE,
    Cell,
    ColumnValue,
    HybridClock,
    StoredCell,
    content_of,
    merged,
    newest,
    row_cell,
)
from stele.node.store import SqliteStore

column_values = st.builds(
    ColumnValue,
    st.integers(0, 2),
    st.integers(1, 4),
    st.none() | st.sampled_from([b"", b"a", b"b"]),
)
rows = st.builds(row_cell, st.integers(0, 3), st.lists(column_values, max_size=4))
opaque = st.builds(Cell, st.integers(1, 3), st.booleans(), st.sampled_from([b"", b"a"]))
versions = rows | opaque


@given(versions, versions, versions)
def test_a_merge_is_associative_commutative_and_idempotent(
    one: Cell, two: Cell, three: Cell
) -> None:
    assert merged(one, merged(two, three)) == merged(merged(one, two), three)
    assert merged(one, two) == merged(two, one)
    assert merged(one, one) == one
    assert merged(one, merged(one, two)) == merged(one, two)


@given(st.lists(rows, min_size=1, max_size=5))
def test_merged_row_has_the_newest_column_values_after_the_last_deletion(
    written: list[Cell],
) -> None:
    contents = [content_of(cell.value) for cell in written]
    deleted_us = max(content.deleted_us for content in contents)
    values = [value for content in contents for value in content.columns]
    found = content_of(newest(written).value)
    assert found.deleted_us == deleted_us
    assert [value.column_id for value in found.columns] == sorted(
        {value.column_id for value in values if value.timestamp > deleted_us}
    )
    for value in found.columns:
        assert value in values
        rivals = [other for other in values if other.column_id == value.column_id]
        assert value.timestamp == max(rival.timestamp for rival in rivals)
        tied = [rival.value for rival in rivals if rival.timestamp == value.timestamp]
        assert value.value == (None if None in tied else max(each or b"" for each in tied))


@settings(deadline=None)  # each example makes a file
@given(st.lists(rows, min_size=1, max_size=5), st.randoms())
def test_writes_of_a_row_in_any_order_end_in_the_merged_row(
    tmp_path_factory: pytest.TempPathFactory, written: list[Cell], chance: random.Random
) -> None:
    shuffled = chance.sample(written, len(written))

    async def run() -> Cell | None:
        store = SqliteStore(tmp_path_factory.mktemp("store") / "s.sqlite")
        for cell in shuffled:
            assert await store.write([StoredCell("ks", 7, b"k", *cell)]) == [0]
        found = await store.read("ks", 7, b"k")
        await store.close()
        return found

    assert asyncio.run(run()) == reduce(merged, written)


def test_a_snapshot_file_keeps_the_kind_of_each_row() -> None:
    written = [
        StoredCell("d", 1, b"a", 3, VALUE, b"value"),
        StoredCell("d", 2, b"b", 4, TOMBSTONE, b""),
        StoredCell("d", 3, b"c", *row_cell(0, [ColumnValue(1, 5, b"v")])),
    ]
    assert decode_rows(encode_rows(written), "d") == written
    assert [row.kind for row in written] == [VALUE, TOMBSTONE, ROW]


def test_timestamps_rise_while_the_clock_stops_or_jumps_back() -> None:
    times = iter([100, 100, 50, 200])
    clock = HybridClock(lambda: next(times))
    assert [clock.next() for _ in range(4)] == [100, 101, 102, 200]


def test_next_timestamp_is_later_than_any_seen() -> None:
    clock = HybridClock(lambda: 100)
    clock.see(500)
    clock.see(300)
    assert clock.next() == 501
    assert HybridClock(lambda: 100, last_us=900).next() == 901
