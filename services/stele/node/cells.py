"""The stored versions of a key, and the rule that merges them.

Opaque data has one value for each key, and the newer value wins. A table with columns has rows:
each column has its own value and timestamp, and two versions of a row are merged column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

HASH_BYTES: Final = 16

CellKind = bool | int
"""VALUE, TOMBSTONE or ROW. The first two are booleans between nodes, as in earlier releases."""
VALUE: Final = False
TOMBSTONE: Final = True
ROW: Final = 2


class Cell(NamedTuple):
    """A version of a key, with its timestamp in microseconds.

    A deletion of opaque data is a tombstone with an empty value. The value of a row is an encoded
    ``RowContent``, and its timestamp is the latest in it.
    """

    timestamp: int
    kind: CellKind
    value: bytes


class StoredCell(NamedTuple):
    """A cell with its place: the id of the keyspace's data, and key and token.

    ``token`` is the token of the partition key, which is the key or its beginning.
    """

    keyspace: str
    token: int
    key: bytes
    timestamp: int
    kind: CellKind
    value: bytes


class Stamp(NamedTuple):
    """A fingerprint that distinguishes cells without their values. ``hash`` has 16 bytes."""

    timestamp: int
    kind: CellKind
    hash: bytes


class ColumnValue(NamedTuple):
    """A value of a column in CQL's binary encoding; None if the column was deleted."""

    column_id: int
    timestamp: int
    value: bytes | None


class RowContent(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a row by id, each newer than the deletion of the row at ``deleted_us``.

    The encoding is canonical: equal contents have equal bytes. Replicas therefore agree on the
    stamps and digests of a row whatever the order of its writes was. Names of columns are not
    stored, so a rename changes nothing here. The value of a dropped column stays until the row is
    deleted, and no reader shows it. Removing it at one replica would make replicas differ.
    """

    deleted_us: int = 0
    columns: tuple[ColumnValue, ...] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
content_of: Final = msgspec.msgpack.Decoder(RowContent).decode
"""Return the content of an encoded row."""


def kind_of(number: int) -> CellKind:
    """Return the kind for a number in a database, which has no booleans."""
    return ROW if number == ROW else bool(number)


def row_cell(deleted_us: int, columns: Iterable[ColumnValue]) -> Cell:
    """Return the cell of a row with the newest of these values for each column.

    A deletion wins over a value of the same timestamp, and greater bytes over smaller ones.
    """
    newest_of = dict[int, ColumnValue]()
    for column in columns:
        known = newest_of.get(column.column_id)
        if column.timestamp > deleted_us and (known is None or _order(column) > _order(known)):
            newest_of[column.column_id] = column
    kept = tuple(newest_of[column_id] for column_id in sorted(newest_of))
    timestamp = max((column.timestamp for column in kept), default=deleted_us)
    return Cell(timestamp, ROW, _encode(RowContent(deleted_us, kept)))


def _order(column: ColumnValue) -> tuple[int, bool, bytes]:
    return column.timestamp, column.value is None, column.value or b""


def stamp_of(cell: Cell) -> Stamp:
    return Stamp(cell.timestamp, cell.kind, blake2b(cell.value, digest_size=HASH_BYTES).digest())


def merged(one: Cell, other: Cell) -> Cell:
    """Return the version of a key after two writes, in any order and any number of times.

    Rows are merged by ``row_cell``. The winner of two opaque cells has the later timestamp, then
    the tombstone, then the greater value. The rule is the same in every replica, and in the store's
    SQL.
    """
    if one == other:
        return one
    if one.kind != ROW or other.kind != ROW:
        return max(one, other, key=lambda cell: (cell.kind == ROW, cell))
    ours, theirs = content_of(one.value), content_of(other.value)
    deleted_us = max(ours.deleted_us, theirs.deleted_us)
    return row_cell(deleted_us, (*ours.columns, *theirs.columns))


def older_part(cell: Cell, timestamp: int) -> Cell | None:
    """Return what a cell has from before a time. None if it has nothing, or an opaque value."""
    if cell.timestamp < timestamp:
        return cell
    content = content_of(cell.value) if cell.kind == ROW else RowContent()
    older = [column for column in content.columns if column.timestamp < timestamp]
    return row_cell(content.deleted_us, older) if older else None


def pieces(cell: Cell, limit_bytes: int) -> Iterator[Cell]:
    """Yield cells that make up a cell when they are merged.

    Only rows have several. Each has at least one column, and more up to the limit.
    """
    if cell.kind != ROW or len(cell.value) <= limit_bytes:
        yield cell
        return
    content, part, size_bytes = content_of(cell.value), list[ColumnValue](), 0
    for column in content.columns:
        size_bytes += len(column.value or b"")
        if part and size_bytes > limit_bytes:
            yield row_cell(content.deleted_us, part)
            part, size_bytes = [], len(column.value or b"")
        part.append(column)
    yield row_cell(content.deleted_us, part)


def newest(cells: list[Cell]) -> Cell:
    """Return the version that contains all of these cells."""
    return reduce(merged, cells)


# A hybrid logical clock: timestamps in microseconds that are later than all those seen.
#
# A write that begins after another was acknowledged receives a later timestamp, even if the nodes'
# clocks differ. Replicas return the timestamp that a write lost against, and the next attempt is
# later.


class HybridClock:
    """Issues timestamps.

    ``now_us`` returns the machine's clock in microseconds since 1970; it may jump.
    """

    def __init__(self, now_us: Callable[[], int], last_us: int = 0) -> None:
        self.now_us = now_us
        self._last_us = last_us

    def next(self) -> int:
        """Return a timestamp above all that were issued or seen before."""
        self._last_us = max(self.now_us(), self._last_us + 1)
        return self._last_us

    def see(self, timestamp_us: int) -> None:
        """Record a timestamp of another process. Later timestamps are above it."""
        self._last_us = max(self._last_us, timestamp_us)
