"""Numbers of nodes: columns name a node by a small integer, which is never reused.

A fact ``NodeNumbered(number, node_id)`` precedes the first row that names the node. Every reader
therefore has the same numbers, after a snapshot too. Numbers are dense from 0, in the order of
these facts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from struct import Struct
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints, narrowest
from stele.domain.hashing import MODULUS, row_hash

PAD: Final = -1
"""Fills a padded list after its last number. No node has this number."""

Numbers = npt.NDArray[np.int32]
"""One padded list of node numbers for each row: shape (rows, longest list)."""


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """Node ids by number. It grows at its end only, so an older one is a prefix of a newer one."""

    names: tuple[str, ...] = ()
    numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {name: number for number, name in enumerate(self.names)}
        if len(numbers) != len(self.names):
            raise ValueError("A node id has two numbers; it keeps its first one for ever.")
        object.__setattr__(self, "numbers", numbers)

    def with_node(self, number: int, node_id: str) -> Self:
        """Return the numbers with one more node.

        Raises ValueError unless both are new and no number is left out.
        """
        if number != len(self.names):
            raise ValueError(f"'{node_id}' must get the next number, {len(self.names)}: {number}.")
        return type(self)((*self.names, node_id))

    def with_nodes(self, node_ids: Iterable[str]) -> Self:
        """Return the numbers with those of ``node_ids`` that have none yet, in the order given."""
        new = tuple(name for name in dict.fromkeys(node_ids) if name not in self.numbers)
        return type(self)((*self.names, *new)) if new else self

    def agrees_with(self, other: NodeNumbers) -> bool:
        """Return True when no number stands for two nodes: one is a prefix of the other."""
        shared = min(len(self.names), len(other.names))
        return self is other or self.names[:shared] == other.names[:shared]

    def encode(self, lists: Sequence[Sequence[str]]) -> Numbers:
        """Return the lists by number, padded. Raises KeyError for a node without a number."""
        counts = list(map(len, lists))
        flat = map(self.numbers.__getitem__, chain.from_iterable(lists))
        return padded(np.fromiter(flat, np.int32, sum(counts)), counts, max(counts, default=0))

    def decode(self, numbers: Numbers) -> list[tuple[str, ...]]:
        """Return the lists by node id, without their padding."""
        if numbers.size == 0:
            return [()] * len(numbers)
        names = np.array((*self.names, None), object)
        by_place = (names[numbers[:, place]].tolist() for place in range(numbers.shape[1]))
        lists = list(zip(*by_place, strict=True))
        # Only lists that end with padding are shorter than the matrix.
        for row in np.flatnonzero(numbers[:, -1] == PAD).tolist():
            lists[row] = tuple(name for name in lists[row] if name is not None)
        return lists

    def translate(self, numbers: Numbers, into: NodeNumbers) -> Numbers:
        """Return the same lists by the numbers of ``into``, which has all nodes that they name."""
        known = [into.numbers.get(name, PAD) for name in self.names]
        table: Numbers = np.array([*known, PAD], np.int32)
        translated: Numbers = np.take(table, numbers, mode="wrap")  # PAD, -1, is the last one
        return translated


NO_NODES: Final = NodeNumbers()


def padded(flat: Ints, counts: Sequence[int] | npt.NDArray[np.int64], longest: int) -> Ints:
    """Return the lists in ``flat`` as a padded matrix. ``counts`` are their lengths."""
    if flat.size == longest * len(counts):
        return flat.reshape(len(counts), longest)
    numbers = np.full((len(counts), longest), PAD, flat.dtype)
    numbers[np.arange(longest) < np.asarray(counts)[:, None]] = flat
    return numbers


def lengths(numbers: Ints) -> Numbers:
    """Return the length of each list."""
    counts: Numbers = np.count_nonzero(numbers != PAD, axis=1).astype(np.int32)
    return counts


# Chunked columns: an immutable table of rows, ordered by an int64 key and copied on write.
#
# A table of a million rows has a thousand chunks. A change copies the chunks that it touches and
# shares the others. It therefore costs the same in a large table as in a small one, and old
# versions cost little.


CHUNK_ROWS: Final = 768
"""Target number of rows in a chunk. Smaller chunks make the list of chunks long, larger ones cost
more to copy.
"""

MIN_CHUNK_ROWS: Final = CHUNK_ROWS // 2
MAX_CHUNK_ROWS: Final = CHUNK_ROWS * 2

Even = tuple[int, int]
"""First key and distance of evenly spaced keys, which need no search."""
UNEVEN: Final[Even] = (0, 0)

Keys = npt.NDArray[np.int64]

_IN_HEAD: Final = 6
"""Columns at the start of each row's bytes. The list of a later column follows them if a row has
one.

A row without such a list has the same bytes as before the column existed.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows by column. ``keys`` ascend; each of ``values`` has the same length.

    A column of one dimension holds a number for each row. A column of two holds a list for each
    row, padded with PAD.
    """

    keys: Keys
    values: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, low: int, high: int) -> Rows:
        """Return the rows from place ``low`` up to, not including, ``high``; a view."""
        return Rows(self.keys[low:high], tuple([column[low:high] for column in self.values]))

    def chosen(self, which: npt.NDArray[np.bool_ | np.intp]) -> Rows:
        return Rows(self.keys[which], tuple(column[which] for column in self.values))

    def canonical(self) -> Iterator[bytes]:
        """Yield each row as bytes that depend on its values alone.

        The numbers come first, with the lengths of the lists, then the lists.
        """
        numbers: list[Ints] = [self.keys]
        lists = np.empty((len(self), 0), np.int32)
        for at, column in enumerate(self.values):
            if at < _IN_HEAD:
                numbers.append(
                    column if column.ndim == 1 else np.count_nonzero(column != PAD, axis=1)
                )
            elif column.shape[1]:
                # A mark below PAD comes before the list, so that lists of two columns are never
                # confused.
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
        """Return the sum of the rows' hashes, modulo MODULUS."""
        return sum(map(row_hash, self.canonical())) % MODULUS


class Chunk:
    """Rows that own their arrays, with views for single numbers.

    Lists are padded no wider than needed, and values are as narrow as the chunk permits. Numbers of
    nodes, and versions of a ring at rest, are small.
    """

    __slots__ = ("_hash_sum", "_lists", "even", "keys", "rows", "same", "values")

    def __init__(self, rows: Rows) -> None:
        # Images share chunks, so a write into one would change older epochs.
        for column in (rows.keys, *rows.values):
            column.setflags(write=False)
        self.rows = rows
        self.keys = rows.keys.data
        """A view for ``bisect``. A search in numpy takes five times as long for one key."""
        self.even = _even(rows.keys)
        self.same = tuple([_same_of_all(column) for column in rows.values])
        """For each column the number that all rows have, 0 if all lists are empty, or None if rows
        differ.

        Unless it is None, a reader of one row does not access the column.
        """
        self.values = tuple(map(_view, rows.values, self.same))
        self._lists = tuple([_unpacker(column) for column in rows.values])
        self._hash_sum: int | None = None

    def with_values(self, low: int, high: int, new: Rows) -> Chunk:
        """Return a chunk with the values of ``new`` at the places ``low`` to ``high``.

        The keys of ``new`` equal those at these places.
        """
        changed = object.__new__(Chunk)
        changed.keys, changed.even, changed._hash_sum = self.keys, self.even, None
        columns, values = [*self.rows.values], [*self.values]
        same, lists = [*self.same], [*self._lists]
        for at, column in enumerate(new.values):
            now = _overwritten(columns[at], low, high, column)
            if now is not columns[at]:
                now.setflags(write=False)
                columns[at], same[at], lists[at] = now, _same_of_all(now), _unpacker(now)
                values[at] = _view(now, same[at])
        changed.rows = Rows(self.rows.keys, tuple(columns))
        changed.values, changed.same, changed._lists = tuple(values), tuple(same), tuple(lists)
        return changed

    def list_at(self, column: int, place: int) -> tuple[int, ...]:
        """Return the list of one row, without padding."""
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
    """The table.

    Made by ``of``, changed by ``splice``. Tables are equal if their rows are, in any chunks.
    """

    chunks: tuple[Chunk, ...]
    firsts: tuple[int, ...]
    """The chunks' first keys, for the search."""
    size: int
    empty: Rows
    """No rows, with this table's columns."""
    even: Even
    """Spacing of the chunks' first keys."""

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return a table of these rows. Raises ValueError unless the keys ascend."""
        if (rows.keys[1:] <= rows.keys[:-1]).any():
            raise ValueError("The keys of a table must ascend.")
        chunks = tuple(_chunked(rows))
        firsts = _firsts(chunks)
        empty = _no_rows(tuple([column.ndim for column in rows.values]))
        return cls(chunks, firsts, len(rows), empty, _even(firsts))

    def __len__(self) -> int:
        return self.size

    def find(self, key: int) -> tuple[int, int]:
        """Return chunk and place of the last row whose key is not above ``key``.

        Raises KeyError if there is none.
        """
        if not self.firsts or key < self.firsts[0]:
            raise KeyError(f"No row begins at or below {key}.")
        at = _place(self.even, self.firsts, key)
        chunk = self.chunks[at]
        return at, _place(chunk.even, chunk.keys, key)

    def between(self, low: int, high: int) -> Rows:
        """Return the rows whose keys are in [low, high)."""
        return joined([rows.cut(start, stop) for rows, start, stop in self._parts(low, high)])

    def keys_between(self, low: int, high: int) -> Keys:
        """Return the keys in [low, high)."""
        parts = [rows.keys[start:stop] for rows, start, stop in self._parts(low, high)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def all(self) -> Rows:
        return joined([chunk.rows for chunk in self.chunks]) if self.chunks else self.empty

    def splice(self, low: int, high: int, rows: Rows) -> Self:
        """Return the table with ``rows`` in place of those whose keys are in [low, high).

        It copies only the chunks that held such keys, and a neighbour if one gets too small. Raises
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
        # The same keys: only values change, so keys and views of the chunk are shared.
        if first == last and head.keys[start:stop].tolist() == keys.tolist():
            return self._with(first, first, (head.with_values(start, stop, rows),))
        parts = [head.rows.cut(0, start), rows, tail.rows.cut(stop, len(tail.rows))]
        count = sum(map(len, parts))
        # A small chunk is joined with a neighbour. Otherwise many changes would leave many tiny
        # chunks.
        if count < MIN_CHUNK_ROWS:
            if last + 1 < len(self.chunks):
                last += 1
                parts.append(self.chunks[last].rows)
            elif first > 0:
                first -= 1
                parts.insert(0, self.chunks[first].rows)
        return self._with(first, last, tuple(_chunked(joined(parts))))

    def hash_sum(self) -> int:
        """Return the sum of all rows' hashes.

        It identifies the rows, in any chunks and after any history.
        """
        return sum(chunk.hash_sum() for chunk in self.chunks) % MODULUS

    def size_bytes(self) -> int:
        """Return the memory of the arrays alone."""
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
        """Return rows and bounds of each chunk whose keys are in [low, high); at least one part."""
        if low >= high or not self.chunks:
            return [(self.empty, 0, 0)]
        first, start, last, stop = self._span(low, high)
        if first == last:
            return [(self.chunks[first].rows, start, stop)]
        head, *inner, tail = [chunk.rows for chunk in self.chunks[first : last + 1]]
        whole = [(rows, 0, len(rows)) for rows in inner]
        return [(head, start, len(head)), *whole, (tail, 0, stop)]

    def _span(self, low: int, high: int) -> tuple[int, int, int, int]:
        """Return where the keys in [low, high) begin and end.

        The result is the first chunk and place, the last chunk, and the place after the last one.
        """
        first = max(bisect_right(self.firsts, low) - 1, 0)
        last = max(bisect_left(self.firsts, high) - 1, first)
        start = bisect_left(self.chunks[first].keys, low)
        return first, start, last, bisect_left(self.chunks[last].keys, high)

    def _with(self, first: int, last: int, chunks: tuple[Chunk, ...]) -> Self:
        """Return the table with ``chunks`` in place of those from ``first`` to ``last``."""
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


_NOT_READ: Final = np.zeros(0, np.int8).data


def _view(column: Ints, same: int | None) -> memoryview:
    """Return a view of a column for single rows; it is empty where all rows have ``same``."""
    # A view takes 400 bytes, and each of thousands of small maps would have eight.
    return column.data if same is None else _NOT_READ


@cache
def _list_format(typecode: str, width: int) -> Struct:
    return Struct(f"={width}{typecode}")


_NUMBER: Final = Struct("")


def _unpacker(column: Ints) -> Struct:
    """Return the format of one row in a column of lists. It is unused for a column of numbers."""
    return _list_format(column.dtype.char, column.shape[1]) if column.ndim == 2 else _NUMBER


def _same_of_all(column: Ints) -> int | None:
    if column.ndim > 1:
        return None if column.shape[1] else 0
    numbers = column.tobytes()
    first = numbers[: column.itemsize]
    return column.item(0) if first and numbers == first * len(column) else None


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, of which there is at least one.

    The parts of a table are in the order of their keys.
    """
    if len(parts) == 1:
        return parts[0]
    values = zip(*(part.values for part in parts), strict=True)
    return Rows(np.concatenate([part.keys for part in parts]), tuple(map(_stacked, values)))


def merged(one: Rows, two: Rows) -> Rows:
    """Return the rows of both in the order of their keys."""
    rows = joined((one, two))
    order = np.argsort(rows.keys, kind="stable")
    return Rows(rows.keys[order], tuple(column[order] for column in rows.values))


def widened(column: Ints, width: int) -> Ints:
    """Return the lists padded to ``width``, which is at least their present width."""
    if width == column.shape[1]:
        return column
    wide = np.full((len(column), width), PAD, column.dtype)
    wide[:, : column.shape[1]] = column
    return wide


def _stacked(columns: Sequence[Ints]) -> Ints:
    if columns[0].ndim == 1:
        return np.concatenate(columns)
    widths = {column.shape[1] for column in columns}
    if widths == {0}:  # such as the shards of nodes with one shard, in thousands of maps
        return np.empty((sum(map(len, columns)), 0), columns[0].dtype)
    if len(widths) > 1:
        columns = [widened(column, max(widths)) for column in columns]
    return np.concatenate(columns)


def _overwritten(old: Ints, low: int, high: int, new: Ints) -> Ints:
    """Return the column with ``new`` at the places ``low`` to ``high``.

    Returns the column itself if nothing changes.
    """
    if old.shape[1:] != new.shape[1:]:
        return _trimmed(_stacked((old[:low], new, old[high:])))
    if old[low:high].tolist() == new.tolist():
        return old
    needed = narrowest(new)
    changed = old.astype(needed if needed.itemsize > old.itemsize else old.dtype)
    changed[low:high] = new
    return _trimmed(changed)


def _chunked(rows: Rows) -> Iterator[Chunk]:
    """Yield the rows in chunks of about equal size, as close to CHUNK_ROWS as possible."""
    # A tablet map has a power of two rows. Its chunks get one too, so that their first keys are
    # evenly spaced.
    count = max(1, round(len(rows) / CHUNK_ROWS)) if len(rows) > MAX_CHUNK_ROWS else 1
    if len(rows) & (len(rows) - 1) == 0:  # a tablet map: even chunks
        count = max(1, len(rows) >> (MAX_CHUNK_ROWS.bit_length() - 1))
    bounds = [len(rows) * index // count for index in range(count + 1)]
    for low, high in pairwise(bounds):
        if low < high:
            yield Chunk(_owned(rows.cut(low, high)))


@cache
def _no_rows(dimensions: tuple[int, ...]) -> Rows:
    """Return no rows, with columns of one or two dimensions."""
    values = tuple([np.empty((0,) * each, np.int8) for each in dimensions])
    return Rows(np.empty(0, np.int64), values)


def _owned(rows: Rows) -> Rows:
    """Return the rows in narrow arrays of their own. A view would keep a larger array alive."""
    keys = rows.keys.copy() if rows.keys.base is not None else rows.keys
    values = (_trimmed(column) for column in rows.values)
    return Rows(keys, tuple(column.astype(narrowest(column)) for column in values))


def _trimmed(column: Ints) -> Ints:
    """Return the lists without padding that no row needs."""
    if column.ndim == 1:
        return column
    needed = column.shape[1] if len(column) else 0
    while needed and column.item(0, needed - 1) == PAD and (column[:, needed - 1] == PAD).all():
        needed -= 1
    return np.ascontiguousarray(column[:, :needed]) if needed < column.shape[1] else column


def _even(keys: Keys | Sequence[int]) -> Even:
    """Return the spacing of the keys, or UNEVEN.

    The first key may be greater than the spacing gives. In a tablet map it is, because no token is
    the least number.
    """
    if len(keys) < 3:
        return UNEVEN
    second, step = int(keys[1]), int(keys[-1]) - int(keys[-2])
    origin = int(keys[-1]) - step * (len(keys) - 1)
    if not origin <= int(keys[0]) < second or int(keys[2]) - second != step:
        return UNEVEN
    column = np.asarray(keys, np.int64)
    return UNEVEN if np.count_nonzero(column[2:] - column[1:-1] != step) else (origin, step)


def _place(even: Even, keys: Sequence[int], key: int) -> int:
    """Return the place of the last key that is not above ``key``. There must be one."""
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
    """Return both without the chunks that they share at the front and at the back."""
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
