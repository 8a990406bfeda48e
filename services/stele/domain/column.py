"""Many numbers of a fact: bytes in the log, a list in JSON (docs/decisions/025).

The first byte is the width of a number in bytes: 1, 2, 4 or 8. The numbers follow, signed, with the
least significant byte first. No bytes mean no numbers. A million numbers are therefore neither
written nor read one by one, and any language can read them with one loop.

msgspec uses these hooks for columns: ``as_bytes`` writes records, ``as_list`` writes JSON, and
``column_of`` reads both.
"""

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger]

KINDS: Final = (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64))
"""The kinds of numbers, the narrowest first."""
_GREATEST: Final = tuple(int(np.iinfo(kind).max) for kind in KINDS)
"""The greatest number that each kind holds; ``~`` of it is the least."""
_FEW: Final = 32
"""Up to this many numbers are compared and packed faster one by one than by numpy."""
_STORED: Final = {kind.itemsize: kind.newbyteorder("<") for kind in KINDS}
"""Stored form of a number, by its width in bytes."""
_PACK: Final = tuple(
    [Struct(f"<b{count}{letter}").pack for count in range(_FEW + 1)] for letter in "bhiq"
)
"""Functions that pack a width and up to ``_FEW`` numbers, for each kind."""


def united(one: Ints, two: Ints) -> Ints:
    """Return the numbers that are in either, ascending and each once.

    The result is that of ``numpy.union1d``. Since numpy 2.3 that function hashes each number. It is
    then a hundred times slower for ascending columns such as ours, where the sort only merges two
    runs.
    """
    both = np.concatenate((one, two))
    both.sort(kind="stable")
    first = np.ones(len(both), np.bool_)
    np.not_equal(both[1:], both[:-1], out=first[1:])
    return both[first]


class NumberColumn:
    """Immutable 64-bit numbers. ``raw`` are their bytes. Columns are equal when their bytes are.

    Raises ValueError for bytes that are no column.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: bytes = b"") -> None:
        # Bytes that are no column must fail when their record is decoded (docs/decisions/025).
        if raw and (len(raw) == 1 or raw[0] not in _STORED or (len(raw) - 1) % raw[0]):
            raise ValueError(f"{len(raw)} bytes that begin with {raw[:1].hex()} are no column")
        self.raw = raw

    @classmethod
    def of(cls, numbers: Ints) -> Self:
        """Return a column of these numbers, in the narrowest width that holds them."""
        found = cls.__new__(cls)
        found.raw = _packed(numbers)
        return found

    def numbers(self) -> Ints:
        """Return a read-only view of the numbers, in their stored width."""
        if not self.raw:
            return np.empty(0, np.int8)
        return np.frombuffer(self.raw, _STORED[self.raw[0]], -1, 1)

    def tolist(self) -> list[int]:
        found: list[int] = self.numbers().tolist()
        return found

    def __len__(self) -> int:
        return (len(self.raw) - 1) // self.raw[0] if self.raw else 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, NumberColumn) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Column({self.tolist()})"


def narrowest(numbers: Ints) -> np.dtype[np.signedinteger]:
    """Return the narrowest kind of number that holds all of these."""
    if numbers.itemsize == 1:
        return KINDS[0]
    if numbers.size > _FEW:
        least, greatest = int(numbers.min()), int(numbers.max())
    else:
        few = numbers.ravel().tolist() or [0]
        least, greatest = min(few), max(few)
    return KINDS[bisect_left(_GREATEST, max(greatest, ~least))]


def as_bytes(value: object) -> bytes:
    """Return the bytes that a record has for a column; a hook for msgspec."""
    if isinstance(value, NumberColumn):
        return value.raw
    raise NotImplementedError(f"{type(value)} is in no record")


def as_list(value: object) -> list[int]:
    """Return the list that JSON has for a column; a hook for msgspec."""
    if isinstance(value, NumberColumn):
        return value.tolist()
    raise NotImplementedError(f"{type(value)} is in no JSON")


def column_of(kind: type, value: Any) -> NumberColumn:
    """Return the column of a record or JSON value; a hook for msgspec. Raises ValueError."""
    if kind is not NumberColumn:
        raise NotImplementedError(f"{kind} is in no record")
    if isinstance(value, bytes):
        return NumberColumn(value)
    # ``isinstance`` would accept True and False.
    if isinstance(value, list) and all(type(number) is int for number in value):
        try:
            return NumberColumn.of(np.array(value, np.int64))
        except OverflowError as error:
            raise ValueError("a column has a number of more than 64 bits") from error
    raise ValueError("a column is bytes or a list of whole numbers")


def schema_of_column(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a column; a hook for msgspec."""
    if kind is not NumberColumn:
        raise NotImplementedError(f"{kind} has no JSON schema")
    return {"type": "array", "items": {"type": "integer"}}


def _packed(numbers: Ints) -> bytes:
    if numbers.size > _FEW:
        kind = narrowest(numbers)
        return bytes((kind.itemsize,)) + numbers.astype(_STORED[kind.itemsize]).tobytes()
    few: list[int] = numbers.tolist()
    if not few:
        return b""
    least, greatest = (few[0], few[0]) if len(few) == 1 else (min(few), max(few))
    size = bisect_left(_GREATEST, max(~least, greatest))
    return _PACK[size][len(few)](1 << size, *few)
