"""Columns of numbers: bytes and lists decode to the same numbers, and invalid input is refused."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.column import NumberColumn, as_bytes, as_list, column_of, narrowest, united
from tests.domain.ring import plain

EDGES = [
    edge + more for bits in (7, 15, 31, 63) for edge in (1 << bits, -1 << bits) for more in (0, -1)
]
NUMBERS = st.sampled_from([n for n in EDGES if -1 << 63 <= n < 1 << 63]) | st.integers(-9, 9)


class Held(msgspec.Struct, frozen=True):
    column: NumberColumn = NumberColumn()


@given(numbers=st.lists(NUMBERS, max_size=70))
def test_numbers_are_preserved_in_the_narrowest_width(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    column = NumberColumn.of(array)
    assert column == plain.column(numbers)
    assert column.tolist() == [*column] == numbers
    assert len(column) == len(numbers)
    assert NumberColumn.of(column.numbers()) == column
    assert hash(NumberColumn(column.raw)) == hash(column)
    assert column.numbers().dtype == narrowest(array)


@given(numbers=st.lists(NUMBERS, max_size=40))
def test_record_holds_bytes_and_json_holds_numbers(numbers: list[int]) -> None:
    held = Held(plain.column(numbers))
    record = msgspec.to_builtins(held, builtin_types=(bytes,), enc_hook=as_bytes)
    assert record == {"column": held.column.raw}
    assert msgspec.convert(record, Held, builtin_types=(bytes,), dec_hook=column_of) == held
    shown = msgspec.json.encode(held, enc_hook=as_list)
    assert msgspec.json.decode(shown) == {"column": numbers}
    assert msgspec.json.decode(shown, type=Held, dec_hook=column_of) == held


def test_wider_column_is_readable() -> None:
    """Production does not write it. It has the same numbers, but is another fact."""
    wide = NumberColumn(b"\x04" + (7).to_bytes(4, "little"))
    assert wide.tolist() == [7]
    assert wide != plain.column([7])


@pytest.mark.parametrize(
    "raw", [b"\x01", b"\x08", b"\x00\x00", b"\x03abc", b"\x02abc", b"\x08" * 8]
)
def test_invalid_bytes_of_a_column_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(raw)} bytes that begin with .* are no column"):
        NumberColumn(raw)
    with pytest.raises(msgspec.ValidationError, match=r"no column - at `\$.column`"):
        msgspec.convert({"column": raw}, Held, builtin_types=(bytes,), dec_hook=column_of)


@pytest.mark.parametrize(
    "value", ["[1.5]", '["1"]', "[true]", "[9223372036854775808]", '"AQ=="', "{}"]
)
def test_invalid_json_of_a_column_is_refused(value: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="a column"):
        msgspec.json.decode(f'{{"column": {value}}}', type=Held, dec_hook=column_of)


def test_hooks_accept_only_columns() -> None:
    for hook in (as_bytes, as_list):
        with pytest.raises(NotImplementedError):
            hook(1j)
    with pytest.raises(NotImplementedError):
        column_of(complex, 1)


@pytest.mark.parametrize(
    ("one", "two"),
    [([], []), ([3], []), ([], [-1]), ([1, 5, 9], [0, 5, 10]), ([9, 1, 1], [5, -(2**63)])],
)
def test_union_is_sorted_without_duplicates(one: list[int], two: list[int]) -> None:
    found = united(np.array(one, np.int64), np.array(two, np.int64))
    assert found.tolist() == sorted({*one, *two})
