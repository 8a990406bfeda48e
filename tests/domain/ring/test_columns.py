"""The table compared with a plain dictionary: any splices, whatever the chunks."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stele.domain.ring import columns
from stele.domain.ring.columns import Columns, Rows, merged, padded
from stele.domain.ring.ranges import MIN_TOKEN

Plain = dict[int, tuple[int, tuple[int, ...]]]
"""Key -> a number and a list: the model of a table of these two columns."""

some_number = st.integers(-(2**7), 2**7 - 1) | st.integers(-(2**63), 2**63 - 1)
some_node = st.integers(0, 9) | st.integers(0, 2**31 - 1)
some_value = st.tuples(some_number, st.lists(some_node, max_size=3))
some_plain = st.dictionaries(
    st.integers(-(2**63), 2**63 - 1),
    some_value.map(lambda value: (value[0], tuple(value[1]))),
    max_size=30,
)


def rows_of(plain: Plain) -> Rows:
    keys = sorted(plain)
    lists = [plain[key][1] for key in keys]
    flat = np.array([number for numbers in lists for number in numbers], np.int32)
    return Rows(
        np.array(keys, np.int64),
        (
            np.array([plain[key][0] for key in keys], np.int64),
            padded(flat, list(map(len, lists)), max(map(len, lists), default=0)),
        ),
    )


def plain_of(rows: Rows) -> Plain:
    numbers, lists = (column.tolist() for column in rows.values)
    return {
        key: (number, tuple(n for n in numbers if n != -1))
        for key, number, numbers in zip(rows.keys.tolist(), numbers, lists, strict=True)
    }


def hash_by_model(plain: Plain) -> int:
    """Hash the documented bytes of a row, without arrays."""
    total = 0
    for key, (number, numbers) in plain.items():
        head = b"".join(n.to_bytes(8, "little", signed=True) for n in (key, number, len(numbers)))
        body = b"".join(n.to_bytes(4, "little", signed=True) for n in numbers)
        total += int.from_bytes(hashlib.blake2b(head + body, digest_size=16).digest(), "big")
    return total % 2**128


def check_chunks(table: Columns) -> None:
    sizes = [len(chunk.rows) for chunk in table.chunks]
    assert sum(sizes) == len(table)
    assert max(sizes, default=0) <= columns.MAX_CHUNK_ROWS
    assert len(sizes) <= 1 or min(sizes) >= columns.MIN_CHUNK_ROWS
    assert table.firsts == tuple(int(chunk.rows.keys[0]) for chunk in table.chunks)
    for chunk in table.chunks:
        lists = chunk.rows.values[1]
        longest = max((len(n) for _, n in plain_of(chunk.rows).values()), default=0)
        assert lists.shape[1] == longest, "lists are padded no wider than needed"


@pytest.fixture(autouse=True, scope="module")
def _small_chunks() -> object:
    """Use chunks of four rows, so that a few dozen rows split and merge them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, rows in (("CHUNK_ROWS", 4), ("MIN_CHUNK_ROWS", 2), ("MAX_CHUNK_ROWS", 8)):
            patch.setattr(columns, name, rows)
        yield


class Splices(RuleBasedStateMachine):
    """A table and its model. Old versions are kept, as they must never change."""

    @initialize(plain=some_plain)
    def build(self, plain: Plain) -> None:
        self.plain, self.table = plain, Columns.of(rows_of(plain))
        self.versions = [(dict(plain), self.table)]

    @rule(data=st.data())
    def splice(self, data: st.DataObject) -> None:
        some_key = st.integers(-(2**63), 2**63)
        if self.plain:
            some_key |= st.sampled_from(sorted(self.plain))
        low, high = sorted((data.draw(some_key), data.draw(some_key)))
        new = {k: v for k, v in data.draw(some_plain).items() if low <= k < high}
        self._replace(low, high, new)

    @rule(data=st.data(), value=some_value)
    def change_one(self, data: st.DataObject, value: tuple[int, list[int]]) -> None:
        if self.plain:
            key = data.draw(st.sampled_from(sorted(self.plain)))
            self._replace(key, key + 1, {key: (value[0], tuple(value[1]))})

    @rule(data=st.data())
    def remove_most(self, data: st.DataObject) -> None:
        if self.plain:
            self._replace(-(2**63), data.draw(st.sampled_from(sorted(self.plain))), {})

    def _replace(self, low: int, high: int, new: Plain) -> None:
        kept = {k: v for k, v in self.plain.items() if not low <= k < high}
        self.plain = {**kept, **new}
        self.table.hash_sum()  # a cached sum must not survive the change
        self.table = self.table.splice(low, high, rows_of(new))
        self.versions.append((dict(self.plain), self.table))

    @invariant()
    def equals_the_model(self) -> None:
        assert plain_of(self.table.all()) == self.plain
        assert self.table.all().keys.tolist() == sorted(self.plain)
        check_chunks(self.table)
        assert self.table == Columns.of(rows_of(self.plain))
        assert self.table.hash_sum() == hash_by_model(self.plain)

    def teardown(self) -> None:
        for plain, table in getattr(self, "versions", []):
            assert plain_of(table.all()) == plain, "a version changed after it was made"


TestSplices = Splices.TestCase
TestSplices.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


@given(plain=some_plain, data=st.data())
def test_row_is_found_by_key(plain: Plain, data: st.DataObject) -> None:
    table = Columns.of(rows_of(plain))
    key = data.draw(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([*plain, 0]))
    below = [k for k in plain if k <= key]
    if not below:
        with pytest.raises(KeyError):
            table.find(key)
        return
    at, place = table.find(key)
    assert table.chunks[at].keys[place] == max(below)
    assert table.chunks[at].list_at(1, place) == plain[max(below)][1]


@given(plain=some_plain, bounds=st.tuples(*[st.integers(-(2**63), 2**63)] * 2))
def test_rows_between_two_keys_are_selected(plain: Plain, bounds: tuple[int, int]) -> None:
    low, high = sorted(bounds)
    expected = {k: v for k, v in plain.items() if low <= k < high}
    assert plain_of(Columns.of(rows_of(plain)).between(low, high)) == expected


@given(plain=some_plain.filter(bool), data=st.data())
def test_tables_that_differ_in_one_value_are_not_equal(plain: Plain, data: st.DataObject) -> None:
    table, key = Columns.of(rows_of(plain)), data.draw(st.sampled_from(sorted(plain)))
    number, numbers = plain[key]
    other = table.splice(key, key + 1, rows_of({key: (number, (*numbers, 7))}))
    assert other != table
    assert other.hash_sum() != table.hash_sum()
    assert other.splice(key, key + 1, rows_of({key: (number, numbers)})) == table


@given(plain=some_plain, cut=st.integers(-(2**63), 2**63 - 1))
def test_rows_of_two_parts_are_merged_by_key(plain: Plain, cut: int) -> None:
    one = {k: v for k, v in plain.items() if k * 7919 % 2**64 < cut + 2**63}
    two = {k: v for k, v in plain.items() if k not in one}
    assert plain_of(merged(rows_of(one), rows_of(two))) == plain


def test_change_of_one_row_shares_all_other_chunks() -> None:
    keys = np.arange(100, dtype=np.int64)
    table = Columns.of(Rows(keys, (keys,)))
    changed = table.splice(50, 51, Rows(keys[50:51], (keys[:1],)))
    pairs = enumerate(zip(table.chunks, changed.chunks, strict=True))
    assert [at for at, (old, new) in pairs if old is not new] == [table.find(50)[0]]


def test_arrays_of_a_table_are_read_only() -> None:
    table = Columns.of(rows_of({1: (2, (3,))}))
    with pytest.raises(ValueError, match="read-only"):
        table.all().keys[0] = 5


def test_values_use_the_smallest_width_of_their_chunk() -> None:
    keys = np.arange(100, dtype=np.int64)
    table = Columns.of(Rows(keys, (keys, np.zeros((100, 3), np.int32))))
    assert table.size_bytes() == 100 * (8 + 1 + 3)
    at, _ = table.find(50)
    changed = table.splice(50, 51, Rows(keys[50:51], (keys[:1] + 2**40, keys[:3].reshape(1, 3))))
    assert changed.between(50, 51).values[0].tolist() == [2**40]
    assert [c.rows.values[0].itemsize for c in changed.chunks].count(8) == 1
    assert changed.chunks[at].rows.values[0].itemsize == 8


def test_keys_must_ascend_within_the_span() -> None:
    table = Columns.of(rows_of(dict.fromkeys(range(10), (0, ()))))
    with pytest.raises(ValueError, match=r"keys in \[3, 5\)"):
        table.splice(3, 5, rows_of({5: (0, ())}))
    with pytest.raises(ValueError, match="ascend"):
        Columns.of(Rows(np.array([2, 1]), (np.array([0, 0]),)))


@given(
    st.integers(MIN_TOKEN, MIN_TOKEN + 5),
    st.integers(1, 2**52),
    st.integers(1, 3000),
    st.integers(0, 5),
    st.data(),
)
def test_equidistant_keys_are_found_without_a_search(
    origin: int, step: int, count: int, late: int, data: st.DataObject
) -> None:
    """The first key may be later than its place. A change of one row keeps the distances."""
    keys = [origin + step * place for place in range(count)]
    keys[0] += min(late, step - 1)
    table = Columns.of(Rows(np.array(keys, np.int64), (np.arange(count),)))
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, count - 1))
        one = Rows(np.array([keys[place]], np.int64), (np.array([place]),))
        table = table.splice(keys[place], keys[place] + 1, one)
    for _ in range(20):
        place = data.draw(st.integers(0, count - 1))
        upper = keys[place + 1] - 1 if place + 1 < count else keys[place] + 3 * step
        at, inside = table.find(data.draw(st.sampled_from((keys[place], upper))))
        assert table.chunks[at].keys[inside] == keys[place]
    with pytest.raises(KeyError):
        table.find(keys[0] - 1)
