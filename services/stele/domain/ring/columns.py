"""Chunked columns: an immutable table of rows, ordered by an int64 key and copied on write.

A table of a million rows is a thousand chunks. A change copies the chunks that it touches and shares
the others, so it costs the same in a large table as in a small one, and old versions cost little.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from struct import Struct
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints, narrowest
from stele.domain.hashing import MODULUS, row_hash
from stele.domain.ring.numbers import PAD

CHUNK_ROWS: Final = 768
"""Rows a chunk aims at. Smaller ones make the list of chunks, larger ones the chunk dear to copy."""

MIN_CHUNK_ROWS: Final = CHUNK_ROWS // 2
MAX_CHUNK_ROWS: Final = CHUNK_ROWS * 2

Even = tuple[int, int]
"""Where keys that are equally far from each other begin, and how far that is: nobody need search for one."""
UNEVEN: Final[Even] = (0, 0)

Keys = npt.NDArray[np.int64]

_IN_HEAD: Final = 6
"""Columns that each row's bytes begin with; a list of a later one stands behind the others, where a row has it.
So rows that have none come to the bytes that they had before there was such a column."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows by column. ``keys`` ascend; each of ``values`` is as long as they are.

    A column of one dimension holds a number a row; one of two holds a list a row, padded with PAD.
    """

    keys: Keys
    values: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, low: int, high: int) -> "Rows":
        """The rows from place ``low`` up to, not including, ``high``; a view."""
        return Rows(self.keys[low:high], tuple([column[low:high] for column in self.values]))

    def chosen(self, which: npt.NDArray[np.bool_ | np.intp]) -> "Rows":
        return Rows(self.keys[which], tuple(column[which] for column in self.values))

    def canonical(self) -> Iterator[bytes]:
        """Each row as bytes that depend on its values alone: numbers, then the lists with lengths."""
        numbers: list[Ints] = [self.keys]
        lists = np.empty((len(self), 0), np.int32)
        for at, column in enumerate(self.values):
            if at < _IN_HEAD:
                numbers.append(
                    column if column.ndim == 1 else np.count_nonzero(column != PAD, axis=1)
                )
            elif column.shape[1]:
                mark = np.where(column[:, :1] == PAD, PAD, PAD - at)
                lists = np.hstack((lists, mark))
            if column.ndim == 2:
                lists = np.hstack((lists, column))
        head = np.column_stack(numbers).astype("<i8").tobytes()
        there = lists != PAD
        body = lists[there].astype("<i4").tobytes()
        width, begin = 8 * len(numbers), 0
        for row, end in enumerate((4 * np.cumsum(there.sum(axis=1))).tolist()):
            yield head[width * row : width * (row + 1)] + body[begin:end]
            begin = end

    def hash_sum(self) -> int:
        """The rows' hashes added up, modulo MODULUS."""
        return sum(map(row_hash, self.canonical())) % MODULUS


class Chunk:
    """Rows that own their arrays, with views for single numbers.

    Lists are padded no wider than needed, and values are as narrow as those that a chunk holds: numbers of
    nodes, and versions of a ring at rest, are small.
    """

    __slots__ = ("_hash_sum", "_lists", "even", "keys", "rows", "same", "values")

    def __init__(self, rows: Rows) -> None:
        for column in (rows.keys, *rows.values):
            column.setflags(write=False)
        self.rows = rows
        self.keys = rows.keys.data
        """For ``bisect``: a search in numpy costs five times as much for one key."""
        self.even = _even(rows.keys)
        self.values = tuple([column.data for column in rows.values])
        self.same = tuple([_same_of_all(column) for column in rows.values])
        """Of each column the number that all rows have there, and 0 where all lists are empty; None where they
        differ. It spares whoever reads one row a look at the column."""
        self._lists = tuple([_unpacker(column) for column in rows.values])
        self._hash_sum: int | None = None

    def with_values(self, low: int, high: int, new: Rows) -> "Chunk":
        """With the values of ``new``, whose keys are the same, at the places from ``low`` to ``high``."""
        changed = object.__new__(Chunk)
        changed.keys, changed.even, changed._hash_sum = self.keys, self.even, None
        columns, values = [*self.rows.values], [*self.values]
        same, lists = [*self.same], [*self._lists]
        for at, column in enumerate(new.values):
            now = _overwritten(columns[at], low, high, column)
            if now is not columns[at]:
                now.setflags(write=False)
                columns[at], values[at] = now, now.data
                same[at], lists[at] = _same_of_all(now), _unpacker(now)
        changed.rows = Rows(self.rows.keys, tuple(columns))
        changed.values, changed.same, changed._lists = tuple(values), tuple(same), tuple(lists)
        return changed

    def list_at(self, column: int, place: int) -> tuple[int, ...]:
        """The list of one row, without padding."""
        unpack = self._lists[column]
        numbers: tuple[int, ...] = unpack.unpack_from(self.values[column], place * unpack.size)
        if numbers and numbers[-1] == PAD:
            return numbers[: numbers.index(PAD)]
        return numbers

    def hash_sum(self) -> int:
        if self._hash_sum is None:
            self._hash_sum = self.rows.hash_sum()
        return self._hash_sum


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The table. Made by ``of``, changed by ``splice``; equal when the rows are, however chunked."""

    chunks: tuple[Chunk, ...]
    firsts: tuple[int, ...]
    """The chunks' first keys, for the search."""
    size: int
    empty: Rows
    """No rows, of these columns."""
    even: Even
    """Of the chunks' first keys."""

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Raises ValueError unless the keys ascend."""
        if (rows.keys[1:] <= rows.keys[:-1]).any():
            raise ValueError("The keys of a table must ascend.")
        chunks = tuple(_chunked(rows))
        firsts = _firsts(chunks)
        return cls(chunks, firsts, len(rows), _owned(rows.cut(0, 0)), _even(firsts))

    def __len__(self) -> int:
        return self.size

    def find(self, key: int) -> tuple[int, int]:
        """Chunk, and place in it, of the last row whose key is not above ``key``; KeyError if none."""
        if not self.firsts or key < self.firsts[0]:
            raise KeyError(f"No row begins at or below {key}.")
        at = _place(self.even, self.firsts, key)
        chunk = self.chunks[at]
        return at, _place(chunk.even, chunk.keys, key)

    def between(self, low: int, high: int) -> Rows:
        """The rows whose keys are in [low, high)."""
        return joined([rows.cut(start, stop) for rows, start, stop in self._parts(low, high)])

    def keys_between(self, low: int, high: int) -> Keys:
        """The keys in [low, high)."""
        parts = [rows.keys[start:stop] for rows, start, stop in self._parts(low, high)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def all(self) -> Rows:
        return joined([chunk.rows for chunk in self.chunks]) if self.chunks else self.empty

    def splice(self, low: int, high: int, rows: Rows) -> Self:
        """The table with ``rows`` in place of those whose keys are in [low, high).

        Only the chunks that held such keys are copied, and a neighbour if one gets too small. Raises
        ValueError when the keys of ``rows`` do not ascend within [low, high).
        """
        keys = rows.keys
        if len(keys) and not (low <= int(keys[0]) and int(keys[-1]) < high):
            raise ValueError(f"The new rows must have keys in [{low}, {high}).")
        if len(keys) > 1 and (keys[1:] <= keys[:-1]).any():
            raise ValueError("The keys of a table must ascend.")
        if not self.chunks:
            return type(self).of(rows)
        first, start, last, stop = self._span(low, high)
        head, tail = self.chunks[first], self.chunks[last]
        if first == last and head.keys[start:stop].tolist() == keys.tolist():
            return self._with(first, first, (head.with_values(start, stop, rows),))
        parts = [head.rows.cut(0, start), rows, tail.rows.cut(stop, len(tail.rows))]
        count = sum(map(len, parts))
        if count < MIN_CHUNK_ROWS:
            if last + 1 < len(self.chunks):
                last += 1
                parts.append(self.chunks[last].rows)
            elif first > 0:
                first -= 1
                parts.insert(0, self.chunks[first].rows)
        return self._with(first, last, tuple(_chunked(joined(parts))))

    def hash_sum(self) -> int:
        """The sum of all rows' hashes: it names the rows, whatever their chunks and history."""
        return sum(chunk.hash_sum() for chunk in self.chunks) % MODULUS

    def size_bytes(self) -> int:
        """Memory of the arrays alone."""
        arrays = (column for c in self.chunks for column in (c.rows.keys, *c.rows.values))
        return sum(column.nbytes for column in arrays)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        if len(self) != len(other):
            return False
        mine, others = _without_shared(self.chunks, other.chunks)
        return _same_rows(mine, others)

    __hash__ = None  # type: ignore[assignment]  # a table names itself by ``hash_sum``

    def _parts(self, low: int, high: int) -> list[tuple[Rows, int, int]]:
        """The rows of each chunk, and from where to where in it their keys are in [low, high); one at least."""
        if low >= high or not self.chunks:
            return [(self.empty, 0, 0)]
        first, start, last, stop = self._span(low, high)
        if first == last:
            return [(self.chunks[first].rows, start, stop)]
        head, *inner, tail = [chunk.rows for chunk in self.chunks[first : last + 1]]
        whole = [(rows, 0, len(rows)) for rows in inner]
        return [(head, start, len(head)), *whole, (tail, 0, stop)]

    def _span(self, low: int, high: int) -> tuple[int, int, int, int]:
        """First chunk and place with a key in [low, high), and last chunk and the place behind it."""
        first = max(bisect_right(self.firsts, low) - 1, 0)
        last = max(bisect_left(self.firsts, high) - 1, first)
        start = bisect_left(self.chunks[first].keys, low)
        return first, start, last, bisect_left(self.chunks[last].keys, high)

    def _with(self, first: int, last: int, chunks: tuple[Chunk, ...]) -> Self:
        """With ``chunks`` in place of those from ``first`` to ``last``."""
        size = self.size - sum([len(chunk.keys) for chunk in self.chunks[first : last + 1]])
        firsts, begin, even = self.firsts, _firsts(chunks), self.even
        if begin != firsts[first : last + 1]:
            firsts = firsts[:first] + begin + firsts[last + 1 :]
            even = _even(firsts)
        return type(self)(
            self.chunks[:first] + chunks + self.chunks[last + 1 :],
            firsts,
            size + sum([len(chunk.keys) for chunk in chunks]),
            self.empty,
            even,
        )


@cache
def _list_format(typecode: str, width: int) -> Struct:
    return Struct(f"={width}{typecode}")


_NUMBER: Final = Struct("")


def _unpacker(column: Ints) -> Struct:
    """Reads one row of a column of lists; of no use for a column of numbers."""
    return _list_format(column.dtype.char, column.shape[1]) if column.ndim == 2 else _NUMBER


def _same_of_all(column: Ints) -> int | None:
    if column.ndim > 1:
        return None if column.shape[1] else 0
    numbers = column.tobytes()
    first = numbers[: column.itemsize]
    return column.item(0) if first and numbers == first * len(column) else None


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, which stand in the order of their keys; at least one part."""
    if len(parts) == 1:
        return parts[0]
    values = zip(*(part.values for part in parts), strict=True)
    return Rows(np.concatenate([part.keys for part in parts]), tuple(map(_stacked, values)))


def merged(one: Rows, two: Rows) -> Rows:
    """The rows of both in the order of their keys."""
    rows = joined((one, two))
    order = np.argsort(rows.keys, kind="stable")
    return Rows(rows.keys[order], tuple(column[order] for column in rows.values))


def widened(column: Ints, width: int) -> Ints:
    """Lists padded to a width that is not below theirs."""
    if width == column.shape[1]:
        return column
    wide = np.full((len(column), width), PAD, column.dtype)
    wide[:, : column.shape[1]] = column
    return wide


def _stacked(columns: Sequence[Ints]) -> Ints:
    if columns[0].ndim == 1:
        return np.concatenate(columns)
    width = max(column.shape[1] for column in columns)
    return np.concatenate([widened(column, width) for column in columns])


def _overwritten(old: Ints, low: int, high: int, new: Ints) -> Ints:
    """The column with ``new`` at the places from ``low`` to ``high``; itself where that changes nothing."""
    if old.shape[1:] != new.shape[1:]:
        return _trimmed(_stacked((old[:low], new, old[high:])))
    if old[low:high].tolist() == new.tolist():
        return old
    needed = narrowest(new)
    changed = old.astype(needed if needed.itemsize > old.itemsize else old.dtype)
    changed[low:high] = new
    return _trimmed(changed)


def _chunked(rows: Rows) -> Iterator[Chunk]:
    """The rows in chunks of about equal size, as near to CHUNK_ROWS as they can be."""
    count = max(1, round(len(rows) / CHUNK_ROWS)) if len(rows) > MAX_CHUNK_ROWS else 1
    if len(rows) & (len(rows) - 1) == 0:  # of a tablet map: so are its chunks, to be even too
        count = max(1, len(rows) >> (MAX_CHUNK_ROWS.bit_length() - 1))
    bounds = [len(rows) * index // count for index in range(count + 1)]
    for low, high in pairwise(bounds):
        if low < high:
            yield Chunk(_owned(rows.cut(low, high)))


def _owned(rows: Rows) -> Rows:
    """The rows in narrow arrays of their own, so that no view keeps a larger one alive."""
    keys = rows.keys.copy() if rows.keys.base is not None else rows.keys
    values = (_trimmed(column) for column in rows.values)
    return Rows(keys, tuple(column.astype(narrowest(column)) for column in values))


def _trimmed(column: Ints) -> Ints:
    """Lists without the padding that no row needs."""
    if column.ndim == 1:
        return column
    needed = column.shape[1] if len(column) else 0
    while needed and column.item(0, needed - 1) == PAD and (column[:, needed - 1] == PAD).all():
        needed -= 1
    return np.ascontiguousarray(column[:, :needed]) if needed < column.shape[1] else column


def _even(keys: Keys | Sequence[int]) -> Even:
    """The first may be later than the others say, as in a tablet map, since no token is the least number."""
    if len(keys) < 3:
        return UNEVEN
    second, step = int(keys[1]), int(keys[-1]) - int(keys[-2])
    origin = int(keys[-1]) - step * (len(keys) - 1)
    if not origin <= int(keys[0]) < second or int(keys[2]) - second != step:
        return UNEVEN
    column = np.asarray(keys, np.int64)
    return UNEVEN if np.count_nonzero(column[2:] - column[1:-1] != step) else (origin, step)


def _place(even: Even, keys: Sequence[int], key: int) -> int:
    """Of the last of these that is not above ``key``, of which there is one."""
    origin, step = even
    if not step:
        return bisect_right(keys, key) - 1
    place = (key - origin) // step
    return place if place < len(keys) else len(keys) - 1


def _firsts(chunks: Sequence[Chunk]) -> tuple[int, ...]:
    return tuple([chunk.keys[0] for chunk in chunks])


def _without_shared(
    one: tuple[Chunk, ...], two: tuple[Chunk, ...]
) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    """Both without the chunks that they share at the front and at the back."""
    fewest = min(len(one), len(two))
    front = next((i for i in range(fewest) if one[i] is not two[i]), fewest)
    one, two = one[front:], two[front:]
    fewest -= front
    back = next((i for i in range(fewest) if one[~i] is not two[~i]), fewest)
    return one[: len(one) - back], two[: len(two) - back]


def _same_rows(one: tuple[Chunk, ...], two: tuple[Chunk, ...]) -> bool:
    if not one or not two:
        return len(one) == len(two)
    mine, others = (joined([chunk.rows for chunk in chunks]) for chunks in (one, two))
    pairs = zip((mine.keys, *mine.values), (others.keys, *others.values), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)
