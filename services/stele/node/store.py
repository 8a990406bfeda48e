"""The trial store: SQLite, one table for all keyspaces, last write wins.

Crash safety: WAL with synchronous=NORMAL. A write that was answered survives a kill of the process at any
moment. A power failure may take the newest writes of this machine; the other replicas have them.

Small writes and reads run in the event loop (50 us and 10 us for 10 KiB: a thread costs more); large ones,
scans and deletions run in threads of the store's own, and small ones queue behind them.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from stele.domain.ring.ranges import Range
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.node.cells import Cell, Row

T = TypeVar("T")

INLINE_BYTES: Final = 256 * 1024
"""Writes and reads up to this size run in the event loop: 2 ms at most."""
PAGE_ROWS: Final = 2000
WAL_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""The WAL is copied into the table when it is larger than this, in a thread."""
CHECKPOINT_INTERVAL_S: Final = 1.0
LOCK_TIMEOUT_S: Final = 5.0

_SCHEMA: Final = """
create table if not exists cells (
    keyspace text not null, token integer not null, key blob not null,
    timestamp integer not null, tombstone integer not null, size integer not null,
    value blob not null,
    primary key (keyspace, token, key)
)"""
_WRITE: Final = """
insert into cells values (?1, ?2, ?3, ?4, ?5, length(?3) + length(?6), ?6)
on conflict (keyspace, token, key) do update set
    timestamp = excluded.timestamp, tombstone = excluded.tombstone,
    size = excluded.size, value = excluded.value
where (excluded.timestamp, excluded.tombstone, excluded.value)
    > (cells.timestamp, cells.tombstone, cells.value)"""
_STANDING: Final = """
select timestamp, (timestamp, tombstone, value) = (?4, ?5, ?6) from cells
where keyspace = ?1 and token = ?2 and key = ?3"""
_READ: Final = """
select timestamp, tombstone, case when size <= ?4 then value end from cells
where keyspace = ?1 and token = ?2 and key = ?3"""
_TIMESTAMP: Final = """
select timestamp from cells where keyspace = ? and token = ? and key = ?"""
_SCAN: Final = """
select keyspace, token, key, timestamp, tombstone, value, size from cells
where keyspace = ? and token > ? and token <= ? and (token, key) > (?, ?)
order by token, key limit ?"""
_MEASURE: Final = """
select count(*), coalesce(sum(size), 0) from cells
where keyspace = ? and token > ? and token <= ?"""
_DOOMED: Final = """
select rowid, size from cells where keyspace = ? and token > ? and token <= ? limit ?"""


class Cursor(NamedTuple):
    """Where a page ended: which of the spans, and the last row's token and key."""

    span: int
    token: int
    key: bytes


class Span(NamedTuple):
    """A range of one keyspace."""

    keyspace: str
    start: int
    end: int


class Page(NamedTuple):
    """Rows in order, and where to go on; None at the end. ``size_bytes`` are keys and values."""

    rows: list[Row]
    size_bytes: int
    cursor: Cursor | None


class Size(NamedTuple):
    """Keys (tombstones too) and bytes of keys and values."""

    keys: int
    size_bytes: int


class Store:
    """Open it inside the event loop that uses it; close it there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = _connect(path)
        self._reader = _connect(path)
        self._scanner = _connect(path)
        self._writes = ThreadPoolExecutor(1, "store-writes")
        self._scans = ThreadPoolExecutor(1, "store-scans")
        self._loop = asyncio.get_running_loop()
        self._in_thread = 0
        self._checkpoints = asyncio.create_task(self._keep_wal_small(), name="checkpoints")

    async def close(self) -> None:
        self._checkpoints.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._checkpoints
        await asyncio.to_thread(self._shut_down)

    async def write(self, rows: Sequence[Row]) -> list[int]:
        """Write all rows in one transaction, each where it is newer than what stands.

        Gives 0 for each row that now stands as written, else the timestamp of what it lost against.
        """

        def work() -> list[int]:
            with _transaction(self._writer) as writer:
                return [_write_row(writer, row) for row in rows]

        size_bytes = sum(len(row.value) for row in rows)
        if size_bytes <= INLINE_BYTES and not self._in_thread:
            return work()
        return await self._in_writer(work)

    async def read(self, keyspace: str, token: int, key: bytes) -> Cell | None:
        """The newest cell, which may be a tombstone; None when there never was one."""
        found = self._reader.execute(_READ, (keyspace, token, key, INLINE_BYTES)).fetchone()
        if found is None:
            return None
        if found[2] is None:
            return await self._in_scanner(lambda: self._read_large(keyspace, token, key))
        return Cell(found[0], bool(found[1]), found[2])

    def timestamp(self, keyspace: str, token: int, key: bytes) -> int:
        """The newest cell's timestamp, microseconds; 0 when there never was one."""
        found = self._reader.execute(_TIMESTAMP, (keyspace, token, key)).fetchone()
        return 0 if found is None else int(found[0])

    async def page(self, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int) -> Page:
        """Rows of the spans after ``cursor``, until their size reaches the limit."""
        return await self._in_scanner(lambda: _page(self._scanner, spans, cursor, limit_bytes))

    async def measure(self, spans: Sequence[Span]) -> Size:
        def work() -> Size:
            found = [self._scanner.execute(_MEASURE, _bounds(span)).fetchone() for span in spans]
            return Size(sum(f[0] for f in found), sum(f[1] for f in found))

        return await self._in_scanner(work)

    async def delete(self, span: Span, limit_rows: int) -> Size:
        """Delete at most so many rows of the span for good; what was deleted."""

        def work() -> Size:
            with _transaction(self._writer) as writer:
                doomed = writer.execute(_DOOMED, (*_bounds(span), limit_rows)).fetchall()
                writer.executemany("delete from cells where rowid = ?", ((d[0],) for d in doomed))
                return Size(len(doomed), sum(d[1] for d in doomed))

        return await self._in_writer(work)

    async def size(self) -> Size:
        """Of everything: looks at every row, 1 us each."""

        def work() -> Size:
            text = "select count(*), coalesce(sum(size), 0) from cells"
            return Size(*self._scanner.execute(text).fetchone())

        return await self._in_scanner(work)

    async def keyspaces(self) -> list[str]:
        """Keyspaces that have rows here."""
        text = "select distinct keyspace from cells order by keyspace"
        return await self._in_scanner(lambda: [k for (k,) in self._scanner.execute(text)])

    async def newest_timestamp(self) -> int:
        """The latest timestamp of any row, microseconds; 0 when empty."""
        text = "select coalesce(max(timestamp), 0) from cells"
        return await self._in_scanner(lambda: int(self._scanner.execute(text).fetchone()[0]))

    def _read_large(self, keyspace: str, token: int, key: bytes) -> Cell | None:
        all_sizes = MAX_TOKEN
        found = self._scanner.execute(_READ, (keyspace, token, key, all_sizes)).fetchone()
        return None if found is None else Cell(found[0], bool(found[1]), found[2])

    async def _in_writer(self, work: Callable[[], T]) -> T:
        self._in_thread += 1
        future = self._writes.submit(work)
        future.add_done_callback(self._left_thread)
        return await uncancelled(asyncio.wrap_future(future))

    def _left_thread(self, _: Future[T]) -> None:
        def leave() -> None:
            self._in_thread -= 1

        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody writes any more
            self._loop.call_soon_threadsafe(leave)

    async def _in_scanner(self, work: Callable[[], T]) -> T:
        return await uncancelled(self._loop.run_in_executor(self._scans, work))

    async def _keep_wal_small(self) -> None:
        wal, copied_ns = self._path.with_name(f"{self._path.name}-wal"), 0
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            found = wal.stat()
            if found.st_size > WAL_CHECKPOINT_BYTES and found.st_mtime_ns != copied_ns:
                await asyncio.to_thread(_checkpoint, self._path)
                copied_ns = found.st_mtime_ns

    def _shut_down(self) -> None:
        self._writes.shutdown()
        self._scans.shutdown()
        for connection in (self._scanner, self._reader, self._writer):
            connection.close()


async def uncancelled(future: asyncio.Future[T]) -> T:
    """Await what cannot be stopped half way: a cancellation is raised only after it has ended."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    for pragma in ("journal_mode=wal", "synchronous=normal", "wal_autocheckpoint=0"):
        connection.execute(f"pragma {pragma}").fetchall()
    connection.execute(_SCHEMA)
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("begin immediate")
    try:
        yield connection
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _write_row(writer: sqlite3.Connection, row: Row) -> int:
    if writer.execute(_WRITE, row).rowcount == 1:
        return 0
    timestamp, same = writer.execute(_STANDING, row).fetchone()
    return 0 if same else int(timestamp)


def _bounds(span: Span) -> tuple[str, int, int]:
    """A range's end MIN_TOKEN is infinity (domain.ring.ranges)."""
    return span.keyspace, span.start, MAX_TOKEN if span.end == MIN_TOKEN else span.end


def _page(
    scanner: sqlite3.Connection, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int
) -> Page:
    rows, size_bytes = list[Row](), 0
    at = cursor or Cursor(0, MIN_TOKEN, b"")
    for number in range(at.span, len(spans)):
        keyspace, start, end = _bounds(spans[number])
        after = (at.token, at.key) if number == at.span else (MIN_TOKEN, b"")
        while True:
            begin = max(start, after[0] - 1)  # so that the index leads to the row, not the span
            found = scanner.execute(_SCAN, (keyspace, begin, end, *after, PAGE_ROWS))
            count = 0
            for name, token, key, timestamp, tombstone, value, size in found:
                # SQLite has no booleans, and the wire is strict about them.
                rows.append(Row(name, token, key, timestamp, bool(tombstone), value))
                size_bytes += size
                count += 1
                if size_bytes >= limit_bytes:
                    last = rows[-1]
                    return Page(rows, size_bytes, Cursor(number, last.token, last.key))
            if count < PAGE_ROWS:
                break
            after = rows[-1].token, rows[-1].key
    return Page(rows, size_bytes, None)


def _checkpoint(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("pragma wal_checkpoint(passive)").fetchall()
    finally:
        connection.close()


def spans_of(keyspaces: Sequence[str], ranges: Sequence[Range]) -> list[Span]:
    """Every range of every keyspace."""
    return [Span(keyspace, r.start, r.end) for keyspace in keyspaces for r in ranges]
