"""The trial store: SQLite, one table for all keyspaces. Writes are merged by ``cells.merged``.

The column ``keyspace`` holds a partition (``partitions``), so that the rows of each shard are
separate. The column ``tombstone`` holds the kind of the cell.

Crash safety: WAL with synchronous=FULL. An acknowledged write is on the disk. It survives a kill of
the process and a power failure at any moment. No reader sees it before its sync, because SQLite
shows a commit to other connections after that. ``commits`` describes how writes share a sync.

Pages that deletions free are returned to the file system. A node that gives tablets away thus gains
space on its disk. A file that was created without ``auto_vacuum`` keeps its size, and new rows use
its free pages first.

Small reads run in the event loop (10 us for 10 KiB; a thread would cost more). Scans, large values
and all writes run in the store's own threads.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from stele.agent.stores import Span, parted
from stele.domain.model.schema import CHANGE_LOG
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, contains
from stele.log.loops import call_in
from stele.node.cells import ROW, Cell, StoredCell, kind_of, merged
from stele.node.change_log import Capture, ChangePage, first_key, log_row, time_of
from stele.node.commits import GroupCommit, StoreError, StoreFailed, Work, uncancelled
from stele.node.digests import CALL_BYTES, CALL_ROWS, Digest, digest_in
from stele.runtime.logs import get_logger

T = TypeVar("T")

log = get_logger(__name__)

INLINE_BYTES: Final = 256 * 1024
"""Reads up to this size run in the event loop, for at most 2 ms."""
PAGE_ROWS: Final = 2000
MEASURE_ROWS: Final = 10_000
MEASURE_SPANS: Final = 200
"""At most these rows or spans are measured in one turn: 10 ms."""
WAL_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""Bytes in the WAL after which it is copied into the table, in a thread beside the writer's."""
WAL_LIMIT_BYTES: Final = 4 * WAL_CHECKPOINT_BYTES
"""Bytes in the WAL above which the writer itself copies it, and writes wait."""
WAL_BYTES_PER_JOB: Final = 3 * 4096
"""A small row changes about three pages, and the WAL stores whole pages."""
CHECKPOINT_PAUSE_S: Final = 0.05
CHANGES_BYTES: Final = 1024 * 1024
CHANGES_SEEN: Final = 10_000
"""Limits of a page of changes: its values, and the rows of other ranges that were skipped."""
VACUUM_PAGES: Final = 256
"""Free pages that one transaction returns to the file system: 1 MiB, a few milliseconds."""
VACUUM_PAUSE_S: Final = 1.0
LOCK_TIMEOUT_S: Final = 5.0
PRAGMAS: Final = (
    "auto_vacuum=incremental",  # first: it has no effect on a file that has its header
    "journal_mode=wal",
    "synchronous=full",
    "wal_autocheckpoint=0",
    f"journal_size_limit={WAL_CHECKPOINT_BYTES}",
)

Permit = Callable[[int], bool]
"""Returns whether the row at this index of the list may still be written."""


Into = Callable[[int], Sequence[str]]
"""Returns the partitions for the row at this index of the list; see ``partitions``."""

Captures = Callable[[int], Capture | None]
"""Returns how the change of the row at this index of the list is logged, or None if it is not."""


def _always(_: int) -> bool:
    return True


def _not_captured(_: int) -> None:
    return None


_SCHEMA: Final = """
create table if not exists cells (
    keyspace text not null, token integer not null, key blob not null,
    timestamp integer not null, tombstone integer not null, size integer not null,
    value blob not null,
    primary key (keyspace, token, key)
)"""
_IS_LOG: Final = f"instr(keyspace, '{CHANGE_LOG}') > 0"
_LOG_INDEX: Final = f"""
create index if not exists change_log on cells (keyspace, key, token) where {_IS_LOG}"""
_CHANGES: Final = f"""
select rowid, key, token from cells where {_IS_LOG} and keyspace = ? and key >= ? and key < ?
order by key"""
_EXPIRED: Final = f"""
select rowid, size from cells where {_IS_LOG} and keyspace = ? and key < ? limit ?"""
_LOGS: Final = f"""
with recursive found(name) as (
    select min(keyspace) from cells where {_IS_LOG}
    union all
    select (select min(keyspace) from cells where {_IS_LOG} and keyspace > name)
    from found where name is not null)
select name from found where name is not null"""
_WRITE: Final = """
insert into cells values (?1, ?2, ?3, ?4, ?5, length(?3) + length(?6), ?6)
on conflict (keyspace, token, key) do update set
    timestamp = excluded.timestamp, tombstone = excluded.tombstone,
    size = excluded.size, value = excluded.value
where (excluded.timestamp, excluded.tombstone, excluded.value)
    > (cells.timestamp, cells.tombstone, cells.value)
    or (excluded.tombstone = 2 and excluded.value <> cells.value)"""
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
_FREE_PAGES: Final = "pragma freelist_count"
_VACUUM: Final = f"pragma incremental_vacuum({VACUUM_PAGES})"


class Cursor(NamedTuple):
    """The end of a page: the index of the span, and the token and key of the last row."""

    span: int
    token: int
    key: bytes


class CellPage(NamedTuple):
    """Rows in order, and the cursor for the next page, or None at the end.

    ``size_bytes`` counts keys and values.
    """

    rows: list[StoredCell]
    size_bytes: int
    cursor: Cursor | None


class Size(NamedTuple):
    """Number of keys, including tombstones, and the bytes of keys and values."""

    keys: int
    size_bytes: int


class SqliteStore:
    """The store of one node. Open and close it in the event loop that uses it."""

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
        self._has_free_pages = asyncio.Event()
        if self.free_bytes():  # an earlier process ended before it returned them
            self._has_free_pages.set()
        self._upkeep = (
            asyncio.create_task(self._keep_wal_small(), name="checkpoints"),
            asyncio.create_task(self._return_free_pages(), name="free pages"),
        )

    async def close(self) -> None:
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        await self._commits.close()
        await asyncio.to_thread(self._shut_down)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def failure(self) -> StoreFailed | None:
        """The reason why no more writes are possible, or None."""
        return self._commits.failure

    async def write(
        self,
        rows: Sequence[StoredCell],
        permit: Permit = _always,
        into: Into | None = None,
        captures: Captures = _not_captured,
    ) -> list[int | None]:
        """Write all rows in one transaction, each merged with the stored one.

        Returns after the sync.

        Each row goes to the partitions that ``into`` returns in the turn of the write, or to its
        own partition. ``captures`` is called in the same turn. A row that it captures is added to
        the change log too, even if the store has a newer one. Each replica that acknowledges a
        write thus has its change.

        The result has one number for each row, for the first of its partitions. It is 0 if the
        store now has the row as written or merged, and otherwise the timestamp of the newer row. It
        is None if ``permit`` refused the row in the turn of the write; nothing of that row was
        written.

        A write that has had its turn precedes every write and deletion requested later.

        Raises DiskFull, StoreLocked or StoreFailed.
        """

        def begin() -> Work[list[int | None]]:
            targets = [
                (into(place) if into else (row.keyspace,)) if permit(place) else ()
                for place, row in enumerate(rows)
            ]
            captured = [captures(place) for place in range(len(rows))]
            return lambda writer: [
                _write_row(writer, *each) for each in zip(rows, targets, captured, strict=True)
            ]

        size_bytes = sum(len(row.value) + WAL_BYTES_PER_JOB for row in rows)
        return await self._commits.run(begin, size_bytes)

    async def read(self, keyspace: str, token: int, key: bytes) -> Cell | None:
        """Return the cell, which may be a tombstone, or None if there never was one."""
        found = self._reader.execute(_READ, (keyspace, token, key, INLINE_BYTES)).fetchone()
        if found is None:
            return None
        if found[2] is None:
            return await self._in_scanner(lambda: _cell_at(self._scanner, keyspace, token, key))
        return Cell(found[0], kind_of(found[1]), found[2])

    def timestamp(self, keyspace: str, token: int, key: bytes) -> int:
        """Return the newest cell's timestamp in microseconds; 0 if there never was one."""
        found = self._reader.execute(_TIMESTAMP, (keyspace, token, key)).fetchone()
        return 0 if found is None else int(found[0])

    async def page(
        self, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int
    ) -> CellPage:
        """Return rows of the spans after ``cursor``, until their size reaches the limit."""
        return await self._in_scanner(lambda: page_in(self._scanner, spans, cursor, limit_bytes))

    async def changes(
        self, partition: str, range_: Range, after_us: int, upto_us: int, limit: int
    ) -> ChangePage:
        """Return changes of a change log by time, with times in (``after_us``, ``upto_us``]."""
        work = partial(_changes_in, self._scanner, partition, range_, after_us, upto_us, limit)
        return await self._in_scanner(work)

    async def measure(self, spans: Sequence[Span]) -> Size:
        def work() -> Size:
            found = [self._scanner.execute(_MEASURE, span.bounds()).fetchone() for span in spans]
            return Size(sum(f[0] for f in found), sum(f[1] for f in found))

        return await self._in_scanner(work)

    async def measure_each(self, spans: Sequence[Span]) -> list[Size]:
        """Return the size of each span, at 1 us per row.

        Other scans run after some thousand rows.
        """
        found = [Size(0, 0)] * len(spans)
        at, start = 0, spans[0].start if spans else 0
        while at < len(spans):
            at, start = await self._in_scanner(
                partial(_measure_page, self._scanner, spans, found, at, start)
            )
        return found

    async def digests(self, spans: Sequence[Span]) -> list[Digest | None]:
        """Return the digests of the first spans, as many as fit into a reply.

        A digest is None if its span must be split. Other scans run after each span.
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
        """Delete at most ``limit_rows`` rows of the span permanently, and return what was deleted.

        ``permit`` is called in the turn of the deletion. If it returns False, no row is deleted.
        """

        return await self._delete(_DOOMED, (*span.bounds(), limit_rows), limit_rows, permit)

    async def change_logs(self) -> list[str]:
        """Return the partitions of change logs that have rows here."""
        return await self._in_scanner(lambda: [k for (k,) in self._scanner.execute(_LOGS)])

    async def delete_changes(self, partition: str, before_us: int, limit_rows: int) -> Size:
        """Delete at most ``limit_rows`` changes of a change log that are older than ``before_us``."""
        found = (partition, first_key(before_us), limit_rows)
        return await self._delete(_EXPIRED, found, limit_rows)

    async def _delete(
        self,
        doomed_query: str,
        parameters: tuple[object, ...],
        limit_rows: int,
        permit: Callable[[], bool] = lambda: True,
    ) -> Size:
        def begin() -> Work[Size]:
            return work if permit() else lambda _: Size(0, 0)

        def work(writer: sqlite3.Connection) -> Size:
            doomed = writer.execute(doomed_query, parameters).fetchall()
            writer.executemany("delete from cells where rowid = ?", ((d[0],) for d in doomed))
            return Size(len(doomed), sum(d[1] for d in doomed))

        deleted = await self._commits.run(begin, limit_rows * WAL_BYTES_PER_JOB)
        if deleted.keys:
            self._has_free_pages.set()
        return deleted

    def free_bytes(self) -> int:
        """Return the size of the file's free pages, which new rows use before the file grows.

        Any thread may call this.
        """
        with contextlib.closing(sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S)) as connection:
            pages, page_size = (
                int(connection.execute(text).fetchone()[0])
                for text in (_FREE_PAGES, "pragma page_size")
            )
        return pages * page_size

    async def sizes(self) -> dict[str, Size]:
        """Return the size of each keyspace with rows here, by data id.

        It reads every row, at 1 us each.
        """

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
        """Return the partitions that have rows here.

        They include the rows of every write that has had its turn.
        """
        # An empty write waits for all earlier ones, so that the scan sees their rows.
        await self._commits.run(lambda: lambda _: None)
        text = "select distinct keyspace from cells order by keyspace"
        return await self._in_scanner(lambda: [k for (k,) in self._scanner.execute(text)])

    async def newest_timestamp(self) -> int:
        """Return the latest timestamp of any row, in microseconds; 0 if the store is empty."""
        text = "select coalesce(max(timestamp), 0) from cells"
        return await self._in_scanner(lambda: int(self._scanner.execute(text).fetchone()[0]))

    async def _in_scanner(self, work: Callable[[], T]) -> T:
        return await uncancelled(self._loop.run_in_executor(self._scans, work))

    def _after_commit(self, size_bytes: int) -> None:
        """Count the bytes in the WAL, in the writer's thread."""
        self._wal_bytes += size_bytes
        if self._copies_rest or self._wal_bytes > WAL_LIMIT_BYTES:
            self._checkpoint_as_writer()
        if self._wal_bytes > WAL_CHECKPOINT_BYTES:
            call_in(self._loop, self._wal_is_large.set)

    def _checkpoint_as_writer(self) -> None:
        """Copy the WAL in the writer's thread, where nothing is appended meanwhile.

        The WAL then starts from its beginning.

        A reader of an old state, such as a long scan, may prevent that. The copy is then repeated
        later.
        """
        self._copies_rest = False
        try:
            _, in_wal, copied = self._writer.execute(_CHECKPOINT).fetchone()
        except sqlite3.Error as error:  # the WAL still has everything
            log.warning("the write-ahead log could not be copied", why=str(error))
            return
        if in_wal == copied:
            self._wal_bytes = 0

    async def _keep_wal_small(self) -> None:
        """Copy most of the WAL beside the writer, and the rest between two of its transactions."""
        while True:
            await self._wal_is_large.wait()
            await asyncio.to_thread(_checkpoint, self._path)
            self._copies_rest = True
            with contextlib.suppress(StoreError):
                await self._commits.run(lambda: lambda _: None)
            self._wal_is_large.clear()
            await asyncio.sleep(CHECKPOINT_PAUSE_S)

    async def _return_free_pages(self) -> None:
        """Return free pages to the file system after deletions.

        Each transaction returns a few, so that writes do not wait.
        """
        while True:
            await self._has_free_pages.wait()
            self._has_free_pages.clear()
            with contextlib.suppress(
                StoreError
            ):  # DiskFull: the pages are reused, or returned later
                while await self._commits.run(lambda: _vacuum, WAL_BYTES_PER_JOB * VACUUM_PAGES):
                    pass
            self._wal_is_large.set()  # the file shrinks when the whole WAL has been copied
            await asyncio.sleep(VACUUM_PAUSE_S)

    def _shut_down(self) -> None:
        self._scans.shutdown()
        for connection in (self._scanner, self._reader, self._writer):
            connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection to a store, create its table, and sync the content of its WAL.

    A killed process may have left commits in the WAL that were never synced. They can be read, so
    they must not be lost later.
    """
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    for pragma in PRAGMAS:
        connection.execute(f"pragma {pragma}").fetchall()
    connection.execute(_SCHEMA)
    connection.execute(_LOG_INDEX)
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    return connection


def _vacuum(writer: sqlite3.Connection) -> bool:
    """Return some free pages to the file system, and return whether more are left.

    A file that was created without ``auto_vacuum`` keeps all its pages.
    """
    before = int(writer.execute(_FREE_PAGES).fetchone()[0])
    if not before:
        return False
    writer.execute(_VACUUM).fetchall()
    return 0 < int(writer.execute(_FREE_PAGES).fetchone()[0]) < before


def _write_row(
    writer: sqlite3.Connection, row: StoredCell, partitions: Sequence[str], capture: Capture | None
) -> int | None:
    found = list[int]()
    for name in partitions:
        placed = row._replace(keyspace=name)
        if capture is not None:
            # Before the cell: the image before the change is still there.
            before = _cell_at(writer, *placed[:3]) if capture.preimage else None
            _write_cell(writer, log_row(placed, before))
        found.append(_write_cell(writer, placed))
    return found[0] if found else None


def _cell_at(connection: sqlite3.Connection, keyspace: str, token: int, key: bytes) -> Cell | None:
    all_sizes = MAX_TOKEN
    found = connection.execute(_READ, (keyspace, token, key, all_sizes)).fetchone()
    return None if found is None else Cell(found[0], kind_of(found[1]), found[2])


def _changes_in(
    scanner: sqlite3.Connection,
    partition: str,
    range_: Range,
    after_us: int,
    upto_us: int,
    limit: int,
) -> ChangePage:
    """Return a page of changes. It ends between two times, so that a time is never split."""
    rows, size_bytes, last_us = list[tuple[bytes, bytes]](), 0, after_us
    bounds = (partition, first_key(after_us + 1), first_key(upto_us + 1))
    for seen, (rowid, key, token) in enumerate(scanner.execute(_CHANGES, bounds)):
        time_us = time_of(key)
        full = len(rows) >= limit or size_bytes >= CHANGES_BYTES or seen >= CHANGES_SEEN
        if full and time_us > last_us:
            return ChangePage(last_us, rows)
        last_us = time_us
        if contains(range_, token):
            (value,) = scanner.execute(
                "select value from cells where rowid = ?", (rowid,)
            ).fetchone()
            rows.append((key, value))
            size_bytes += len(value)
    return ChangePage(upto_us, rows)


def _write_cell(writer: sqlite3.Connection, row: StoredCell) -> int:
    if row.kind == ROW:
        row = _merged_with_stored(writer, row)
    if writer.execute(_WRITE, row).rowcount == 1:
        return 0
    timestamp, same = writer.execute(_STANDING, row).fetchone()
    return 0 if same else int(timestamp)


def _merged_with_stored(writer: sqlite3.Connection, row: StoredCell) -> StoredCell:
    before = _cell_at(writer, *row[:3])
    return row if before is None else row._replace(**merged(before, Cell(*row[3:]))._asdict())


def page_in(
    scanner: sqlite3.Connection, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int
) -> CellPage:
    """Return rows of the spans after ``cursor``, until their size reaches the limit."""
    rows, size_bytes = list[StoredCell](), 0
    at = cursor or Cursor(0, MIN_TOKEN, b"")
    for number in range(at.span, len(spans)):
        keyspace, start, end = spans[number].bounds()
        after = (at.token, at.key) if number == at.span else (MIN_TOKEN, b"")
        while True:
            # the index then finds the row, not the start of the span
            begin = max(start, after[0] - 1)
            found = scanner.execute(_SCAN, (keyspace, begin, end, *after, PAGE_ROWS))
            count = 0
            for name, token, key, timestamp, kind, value, size in found:
                rows.append(StoredCell(name, token, key, timestamp, kind_of(kind), value))
                size_bytes += size
                count += 1
                if size_bytes >= limit_bytes:
                    last = rows[-1]
                    return CellPage(rows, size_bytes, Cursor(number, last.token, last.key))
            if count < PAGE_ROWS:
                break
            after = rows[-1].token, rows[-1].key
    return CellPage(rows, size_bytes, None)


def _measure_page(
    scanner: sqlite3.Connection, spans: Sequence[Span], found: list[Size], at: int, start: int
) -> tuple[int, int]:
    """Add the sizes of the next rows to ``found``, from token ``start`` of span ``at``.

    Return where the next page begins. A page ends at a token, and includes all rows of that token.
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
