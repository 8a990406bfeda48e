"""The trial store: SQLite, one table for all keyspaces, last write wins.

What stands as a keyspace here is a partition of it (``partitions``): rows of a shard are apart from others.

Crash safety: WAL with synchronous=FULL. A write that was answered is on the disk: it survives a kill of the
process and a failure of the power at any moment, and no reader sees it before that (SQLite shows a commit
to other connections after its sync). See ``commits`` for how writes share a sync.

Small reads run in the event loop (10 us for 10 KiB: a thread costs more); scans, large values, and all
writes run in threads of the store's own.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from stele.agent.partitions import parted
from stele.agent.spans import Span
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.log.loops import call_in
from stele.node.cells import Cell, Row
from stele.node.commits import GroupCommit, StoreError, StoreFailed, Work, uncancelled
from stele.node.digests import CALL_BYTES, CALL_ROWS, Digest, digest_in
from stele.runtime.logs import get_logger

T = TypeVar("T")

log = get_logger(__name__)

INLINE_BYTES: Final = 256 * 1024
"""Reads up to this size run in the event loop: 2 ms at most."""
PAGE_ROWS: Final = 2000
MEASURE_ROWS: Final = 10_000
MEASURE_SPANS: Final = 200
"""So much is measured in one turn: 10 ms."""
WAL_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""The WAL is copied into the table when about so much was written to it, in a thread beside the writer's."""
WAL_LIMIT_BYTES: Final = 4 * WAL_CHECKPOINT_BYTES
"""Above this the writer itself copies it, and writes wait for that."""
WAL_BYTES_PER_JOB: Final = 3 * 4096
"""A small row changes about three pages, and the WAL takes whole pages."""
CHECKPOINT_PAUSE_S: Final = 0.05
LOCK_TIMEOUT_S: Final = 5.0
PRAGMAS: Final = (
    "journal_mode=wal",
    "synchronous=full",
    "wal_autocheckpoint=0",
    f"journal_size_limit={WAL_CHECKPOINT_BYTES}",
)

Permit = Callable[[int], bool]
"""Of the row at this place in the list: may it still be written?"""


Into = Callable[[int], Sequence[str]]
"""To which partitions the row at this place goes; see ``partitions``."""


def _always(_: int) -> bool:
    return True


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
_END_OF_PAGE: Final = """
select token from cells where keyspace = ? and token > ? and token <= ?
order by token limit 1 offset ?"""
_DOOMED: Final = """
select rowid, size from cells where keyspace = ? and token > ? and token <= ? limit ?"""
_CHECKPOINT: Final = "pragma wal_checkpoint(passive)"


class Cursor(NamedTuple):
    """Where a page ended: which of the spans, and the last row's token and key."""

    span: int
    token: int
    key: bytes


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
        self._writer = connect(path)
        self._reader = connect(path)
        self._scanner = connect(path)
        self._loop = asyncio.get_running_loop()
        self._wal_bytes = 0
        self._copies_rest = False
        self._wal_is_large = asyncio.Event()
        self._commits = GroupCommit(self._writer, self._after_commit)
        self._scans = ThreadPoolExecutor(1, "store-scans")
        self._checkpoints = asyncio.create_task(self._keep_wal_small(), name="checkpoints")

    async def close(self) -> None:
        self._checkpoints.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._checkpoints
        await self._commits.close()
        await asyncio.to_thread(self._shut_down)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def failure(self) -> StoreFailed | None:
        """Why nothing can be written any more; None while all is well."""
        return self._commits.failure

    async def write(
        self, rows: Sequence[Row], permit: Permit = _always, into: Into | None = None
    ) -> list[int | None]:
        """Write all rows in one transaction, each where it is newer than what stands; returns once synced.
        Each goes to the partitions that ``into`` says when the write's turn has come, else to the row's own.

        Gives 0 for each row that now stands as written, else the timestamp of what it lost against, in the
        first of them; None for a row that ``permit`` refused when the write's turn came, of which nothing was
        written. A write that has had its turn comes before every write and deletion that is asked for later.
        Raises DiskFull or StoreFailed.
        """

        def begin() -> Work[list[int | None]]:
            targets = [
                (into(place) if into else (row.keyspace,)) if permit(place) else ()
                for place, row in enumerate(rows)
            ]
            return lambda writer: [
                _write_row(writer, row, names) for row, names in zip(rows, targets, strict=True)
            ]

        size_bytes = sum(len(row.value) + WAL_BYTES_PER_JOB for row in rows)
        return await self._commits.run(begin, size_bytes)

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
        return await self._in_scanner(lambda: page_in(self._scanner, spans, cursor, limit_bytes))

    async def measure(self, spans: Sequence[Span]) -> Size:
        def work() -> Size:
            found = [self._scanner.execute(_MEASURE, span.bounds()).fetchone() for span in spans]
            return Size(sum(f[0] for f in found), sum(f[1] for f in found))

        return await self._in_scanner(work)

    async def measure_each(self, spans: Sequence[Span]) -> list[Size]:
        """Of each span. Other scans have their turn after some thousand rows: 1 us each."""
        found = [Size(0, 0)] * len(spans)
        at, start = 0, spans[0].start if spans else 0
        while at < len(spans):
            at, start = await self._in_scanner(
                partial(_measure_page, self._scanner, spans, found, at, start)
            )
        return found

    async def digests(self, spans: Sequence[Span]) -> list[Digest | None]:
        """Of the first of the spans, as many as an answer is for; None for one that is to be split. Other
        scans have their turn after each.
        """
        found, rows, size_bytes = list[Digest | None](), 0, 0
        for span in spans:
            digest = await self._in_scanner(partial(digest_in, self._scanner, span))
            found.append(digest)
            rows += 0 if digest is None else digest.keys
            size_bytes += 0 if digest is None else digest.size_bytes
            if rows > CALL_ROWS or size_bytes > CALL_BYTES:
                break
        return found

    async def delete(
        self, span: Span, limit_rows: int, permit: Callable[[], bool] = lambda: True
    ) -> Size:
        """Delete at most so many rows of the span for good; what was deleted.

        ``permit`` is asked when the deletion's turn has come; nothing is deleted when it refuses.
        """

        def begin() -> Work[Size]:
            return work if permit() else lambda _: Size(0, 0)

        def work(writer: sqlite3.Connection) -> Size:
            doomed = writer.execute(_DOOMED, (*span.bounds(), limit_rows)).fetchall()
            writer.executemany("delete from cells where rowid = ?", ((d[0],) for d in doomed))
            return Size(len(doomed), sum(d[1] for d in doomed))

        return await self._commits.run(begin, limit_rows * WAL_BYTES_PER_JOB)

    async def size(self) -> Size:
        """Of everything: looks at every row, 1 us each."""
        sizes = (await self.sizes()).values()
        return Size(sum(size.keys for size in sizes), sum(size.size_bytes for size in sizes))

    async def sizes(self) -> dict[str, Size]:
        """Of each keyspace that has rows here, by id: looks at every row, 1 us each."""

        def work() -> dict[str, Size]:
            text = "select keyspace, count(*), sum(size) from cells group by keyspace"
            found = dict[str, Size]()
            for partition, keys, size in self._scanner.execute(text):
                data_id, _ = parted(partition)
                before = found.get(data_id, Size(0, 0))
                found[data_id] = Size(before.keys + keys, before.size_bytes + size)
            return found

        return await self._in_scanner(work)

    async def partitions(self) -> list[str]:
        """Partitions that have rows here, those of every write that has had its turn among them."""
        await self._commits.run(lambda: lambda _: None)
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

    async def _in_scanner(self, work: Callable[[], T]) -> T:
        return await uncancelled(self._loop.run_in_executor(self._scans, work))

    def _after_commit(self, size_bytes: int) -> None:
        """In the writer's thread: note how much the WAL holds."""
        self._wal_bytes += size_bytes
        if self._copies_rest or self._wal_bytes > WAL_LIMIT_BYTES:
            self._checkpoint_as_writer()
        if self._wal_bytes > WAL_CHECKPOINT_BYTES:
            call_in(self._loop, self._wal_is_large.set)

    def _checkpoint_as_writer(self) -> None:
        """In the writer's thread nothing is appended meanwhile, so that the WAL begins anew after it.

        A reader of an old state (a long scan) may prevent that; then it is tried again.
        """
        self._copies_rest = False
        try:
            _, in_wal, copied = self._writer.execute(_CHECKPOINT).fetchone()
        except sqlite3.Error as error:  # all of it is in the WAL still
            log.warning("the write-ahead log could not be copied", why=str(error))
            return
        if in_wal == copied:
            self._wal_bytes = 0

    async def _keep_wal_small(self) -> None:
        """Copy most of it beside the writer, then the rest between two of the writer's transactions."""
        while True:
            await self._wal_is_large.wait()
            await asyncio.to_thread(_checkpoint, self._path)
            self._copies_rest = True
            with contextlib.suppress(StoreError):
                await self._commits.run(lambda: lambda _: None)
            self._wal_is_large.clear()
            await asyncio.sleep(CHECKPOINT_PAUSE_S)

    def _shut_down(self) -> None:
        self._scans.shutdown()
        for connection in (self._scanner, self._reader, self._writer):
            connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a store, whose table is there; what its WAL holds is synced.

    A process that was killed may have left commits in the WAL that were never synced: they can be read, so
    they must not be lost any more.
    """
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    for pragma in PRAGMAS:
        connection.execute(f"pragma {pragma}").fetchall()
    connection.execute(_SCHEMA)
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    return connection


def _write_row(writer: sqlite3.Connection, row: Row, partitions: Sequence[str]) -> int | None:
    found = [_write_cell(writer, row._replace(keyspace=name)) for name in partitions]
    return found[0] if found else None


def _write_cell(writer: sqlite3.Connection, row: Row) -> int:
    if writer.execute(_WRITE, row).rowcount == 1:
        return 0
    timestamp, same = writer.execute(_STANDING, row).fetchone()
    return 0 if same else int(timestamp)


def page_in(
    scanner: sqlite3.Connection, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int
) -> Page:
    rows, size_bytes = list[Row](), 0
    at = cursor or Cursor(0, MIN_TOKEN, b"")
    for number in range(at.span, len(spans)):
        keyspace, start, end = spans[number].bounds()
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


def _measure_page(
    scanner: sqlite3.Connection, spans: Sequence[Span], found: list[Size], at: int, start: int
) -> tuple[int, int]:
    """Add to what was found of the spans from ``start`` in the span ``at`` on; where the next page begins.

    A page ends behind a token, whose rows are all in it.
    """
    rows = turns = 0
    while at < len(spans) and rows < MEASURE_ROWS and turns < MEASURE_SPANS:
        keyspace, _, end = spans[at].bounds()
        page = scanner.execute(_END_OF_PAGE, (keyspace, start, end, MEASURE_ROWS - 1)).fetchone()
        until = end if page is None else page[0]
        keys, size_bytes = scanner.execute(_MEASURE, (keyspace, start, until)).fetchone()
        found[at] = Size(found[at].keys + keys, found[at].size_bytes + size_bytes)
        rows, turns, start = rows + keys, turns + 1, until
        if page is None:
            at += 1
            start = spans[at].start if at < len(spans) else 0
    return at, start


def _checkpoint(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute(_CHECKPOINT).fetchall()
    except sqlite3.Error as error:
        log.warning("the write-ahead log could not be copied", why=str(error))
    finally:
        connection.close()
