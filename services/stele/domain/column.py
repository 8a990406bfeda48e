"""Many numbers of a fact: bytes in the log, a list in JSON.

The bytes are one that says how many bytes a number has, 1, 2, 4 or 8, and then the numbers, signed, the least
significant byte first; no bytes are no numbers. So a million of them are neither written nor read one by one,
and any language reads them with a loop or less.

msgspec knows columns by these hooks: ``as_bytes`` where a record is written, ``as_list`` where JSON is, and
``column_of`` where either is read.
"""

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger]

KINDS: Final = (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64))
"""Of numbers, the narrowest first."""
_GREATEST: Final = tuple(int(np.iinfo(kind).max) for kind in KINDS)
"""The greatest number that each kind holds; ``~`` of it is the least."""
_FEW: Final = 32
"""So many numbers are compared and packed faster one by one than by numpy."""
_STORED: Final = {kind.itemsize: kind.newbyteorder("<") for kind in KINDS}
"""By the bytes of a number."""
_PACK: Final = tuple(
    [Struct(f"<b{count}{letter}").pack for count in range(_FEW + 1)] for letter in "bhiq"
)
"""What packs a width and so many numbers of each kind."""


def united(one: Ints, two: Ints) -> Ints:
    """The numbers of either, ascending and each once.

    As ``numpy.union1d``, which since numpy 2.3 takes a hash of each number: that is a hundred times slower
    where both are ascending, as our columns are, and the sort has nothing but two runs to merge.
    """
    both = np.concatenate((one, two))
    both.sort(kind="stable")
    first = np.ones(len(both), np.bool_)
    np.not_equal(both[1:], both[:-1], out=first[1:])
    return both[first]


class Column:
    """Numbers of 64 bits that cannot be changed. ``raw`` are their bytes, which say whether two are equal.

    Raises ValueError for bytes that are no column.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: bytes = b"") -> None:
        if raw and (len(raw) == 1 or raw[0] not in _STORED or (len(raw) - 1) % raw[0]):
            raise ValueError(f"{len(raw)} bytes that begin with {raw[:1].hex()} are no column")
        self.raw = raw

    @classmethod
    def of(cls, numbers: Ints) -> Self:
        """As narrow as the numbers are."""
        found = cls.__new__(cls)
        found.raw = _packed(numbers)
        return found

    def numbers(self) -> Ints:
        """A view, as narrow as they are stored; not to be written to."""
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
        return self.raw == other.raw if isinstance(other, Column) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Column({self.tolist()})"


def narrowest(numbers: Ints) -> np.dtype[np.signedinteger]:
    """The narrowest kind of number that holds all of these."""
    if numbers.itemsize == 1:
        return KINDS[0]
    if numbers.size > _FEW:
        least, greatest = int(numbers.min()), int(numbers.max())
    else:
        few = numbers.ravel().tolist() or [0]
        least, greatest = min(few), max(few)
    return KINDS[bisect_left(_GREATEST, max(greatest, ~least))]


def as_bytes(value: object) -> bytes:
    """A hook for msgspec: what a record has in place of a column."""
    if isinstance(value, Column):
        return value.raw
    raise NotImplementedError(f"{type(value)} is in no record")


def as_list(value: object) -> list[int]:
    """A hook for msgspec: what JSON has in place of a column."""
    if isinstance(value, Column):
        return value.tolist()
    raise NotImplementedError(f"{type(value)} is in no JSON")


def column_of(kind: type, value: Any) -> Column:
    """A hook for msgspec: the column that a record or JSON has. Raises ValueError."""
    if kind is not Column:
        raise NotImplementedError(f"{kind} is in no record")
    if isinstance(value, bytes):
        return Column(value)
    if isinstance(value, list) and all(type(number) is int for number in value):
        try:
            return Column.of(np.array(value, np.int64))
        except OverflowError as error:
            raise ValueError("a column has a number of more than 64 bits") from error
    raise ValueError("a column is bytes or a list of whole numbers")


def schema_of_column(kind: type) -> dict[str, Any]:
    """A hook for msgspec: a column in a JSON schema."""
    if kind is not Column:
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
