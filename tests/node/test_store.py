"""The store: last write wins, pages, deletion, locks, and writes that survive a kill."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st

from stele.agent.judging import Code
from stele.agent.stores import Span
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN
from stele.node import store as store_module
from stele.node import wire
from stele.node.cells import Cell, StoredCell
from stele.node.commits import GROUP_BYTES, StoreFailed, StoreLocked
from stele.node.store import INLINE_BYTES, Cursor, Size, SqliteStore
from tests.node.sizes import size_of
from tests.polling import until

RING = Span("ks", MIN_TOKEN, MIN_TOKEN)

cells = st.builds(
    lambda t, v: Cell(t, v is None, v or b""),
    st.integers(0, 3),
    st.none() | st.sampled_from([b"", b"a", b"b", b"\xff"]),
)


def row(key: bytes, timestamp: int, value: bytes | None, keyspace: str = "ks") -> StoredCell:
    return StoredCell(keyspace, token_of(key), key, timestamp, value is None, value or b"")


async def test_small_writes_wait_for_large_ones_in_the_thread(store: SqliteStore) -> None:
    large = os.urandom(INLINE_BYTES * 8)
    first = asyncio.create_task(store.write([row(b"k", 1, large)]))
    await asyncio.sleep(0)
    assert await store.write([row(b"k", 2, b"small")]) == [0]
    assert await first == [0]
    await store.write([row(b"k", 3, large)])
    assert await store.read("ks", token_of(b"k"), b"k") == Cell(3, False, large)


async def test_a_failed_transaction_leaves_nothing(store: SqliteStore) -> None:
    broken = StoredCell("ks", 1, None, 1, False, b"")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="NOT NULL"):
        await store.write([row(b"k", 1, b"v"), broken])
    assert await store.read("ks", token_of(b"k"), b"k") is None
    assert await store.write([row(b"k", 1, b"v")]) == [0]


async def test_exception_in_a_job_is_not_a_failure_of_the_store(store: SqliteStore) -> None:
    def divides(_: sqlite3.Connection) -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        await store._commits.run(lambda: divides)
    assert store.failure is None
    assert await store.write([row(b"k", 1, b"v")]) == [0]


async def test_pages_contain_each_row_of_the_spans_once_in_order(store: SqliteStore) -> None:
    rows = [row(f"k{n}".encode(), n + 1, b"x" * 50) for n in range(200)]
    await store.write([*rows, row(b"foreign", 1, b"y", "other")])
    tokens = sorted(r.token for r in rows)
    middle = tokens[100]
    spans = [Span("ks", MIN_TOKEN, middle), Span("ks", middle, MIN_TOKEN)]
    found, cursor, pages = list[StoredCell](), None, 0
    while True:
        page = await store.page(spans, cursor, 1000)
        found += page.rows
        pages += 1
        assert page.size_bytes == sum(len(r.key) + len(r.value) for r in page.rows)
        cursor = page.cursor
        if cursor is None:
            break
    assert found == sorted(rows, key=lambda r: (r.token, r.key))
    assert pages > 5
    assert (await store.measure(spans)).keys == 200


async def test_page_of_a_scan_keeps_tombstones(store: SqliteStore) -> None:
    await store.write([row(b"kept", 1, b"value"), row(b"gone", 2, None)])
    page = await store.page([RING], None, 1000)
    sent = wire.Scanned(code=Code.OK, rows=page.rows)
    received = msgspec.msgpack.decode(wire.encode(sent), type=wire.Scanned).rows
    assert received == page.rows
    assert {r.key: r.kind for r in received} == {b"kept": False, b"gone": True}


async def test_range_excludes_its_start_and_includes_its_end(store: SqliteStore) -> None:
    await store.write([StoredCell("ks", token, b"k", 1, False, b"") for token in (10, 20, 30)])
    page = await store.page([Span("ks", 10, 20)], None, 1000)
    assert [r.token for r in page.rows] == [20]
    page = await store.page([Span("ks", 20, MIN_TOKEN)], Cursor(0, 20, b"k"), 1000)
    assert [r.token for r in page.rows] == [30]


async def test_deletion_stops_at_its_limit_and_its_range(store: SqliteStore) -> None:
    await store.write([StoredCell("ks", token, b"k", 1, False, b"1234") for token in range(1, 11)])
    assert await store.delete(Span("ks", 0, 5), 3) == Size(3, 15)
    assert await store.delete(Span("ks", 0, 5), 3) == Size(2, 10)
    assert await size_of(store) == Size(5, 25)
    await store.write([StoredCell("other", 1, b"key", 1, False, b"1")])
    assert await store.sizes() == {"ks": Size(5, 25), "other": Size(1, 4)}
    assert await store.partitions() == ["ks", "other"]


@pytest.mark.parametrize("page", [1, 3, 7, 10_000])
async def test_measurement_of_spans_does_not_depend_on_the_page_size(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Several rows may have one token, and a span may be empty."""
    monkeypatch.setattr(store_module, "MEASURE_ROWS", page)
    monkeypatch.setattr(store_module, "MEASURE_SPANS", 2)
    chance = random.Random(page)
    rows = [
        StoredCell(
            "ks", chance.randrange(-40, 40) * 10, b"%d" % n, 1, False, b"x" * chance.randrange(9)
        )
        for n in range(200)
    ]
    await store.write([*rows, row(b"foreign", 1, b"y", "other")])
    ends = [MIN_TOKEN, -200, -30, -21, 0, 10, 395, MIN_TOKEN]
    spans = [Span("ks", *each) for each in pairwise(ends)]
    assert await store.measure_each(spans) == [await store.measure([span]) for span in spans]
    backwards = [Span("ks", 100, 200), Span("other", MIN_TOKEN, MIN_TOKEN), Span("ks", -50, 50)]
    assert await store.measure_each(backwards) == [await store.measure([s]) for s in backwards]
    assert await store.measure_each([]) == []


async def test_other_scans_run_between_pages_of_a_measurement(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MEASURE_ROWS", 10)
    await store.write([StoredCell("ks", token, b"k", 1, False, b"v") for token in range(500)])
    measuring = asyncio.create_task(store.measure_each([RING]))
    await asyncio.sleep(0)
    assert (await store.measure([RING])).keys == 500
    assert not measuring.done()
    assert await measuring == [Size(500, 1000)]


async def test_deletions_run_before_writes_that_come_after_them(store: SqliteStore) -> None:
    await store.write([row(b"k", 1, b"old")])
    deleting = asyncio.create_task(store.delete(RING, 10))
    await asyncio.sleep(0)
    await store.write([row(b"k", 2, b"new")])
    await deleting
    assert await store.read("ks", token_of(b"k"), b"k") == Cell(2, False, b"new")


async def test_cancelled_write_returns_only_after_its_work_has_ended(store: SqliteStore) -> None:
    task = asyncio.create_task(store.write([row(b"k", 1, os.urandom(INLINE_BYTES * 16))]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.timestamp("ks", token_of(b"k"), b"k") == 1


async def test_write_ahead_log_stays_bounded_under_constant_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.store.WAL_CHECKPOINT_BYTES", 1024 * 1024)
    monkeypatch.setattr("stele.node.store.WAL_LIMIT_BYTES", 2 * 1024 * 1024)
    store, largest = SqliteStore(tmp_path / "store.sqlite"), 0
    wal, written = tmp_path / "store.sqlite-wal", 0

    async def writer(name: int) -> None:
        nonlocal largest, written
        for number in range(40):
            await store.write([StoredCell("ks", number, b"%d" % name, 1, False, bytes(100_000))])
            written += 100_000
            largest = max(largest, wal.stat().st_size)

    await asyncio.gather(*(writer(name) for name in range(8)))
    assert written == 32_000_000
    # The limit, and one more group of writes before the writer checks it.
    assert largest < 2 * 1024 * 1024 + 2 * GROUP_BYTES
    assert (await size_of(store)).keys == 320
    await store.close()


async def test_checkpoint_continues_after_a_long_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.store.WAL_CHECKPOINT_BYTES", 100_000)
    monkeypatch.setattr("stele.node.store.WAL_LIMIT_BYTES", 200_000)
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.write([row(b"%d" % number, 1, b"v") for number in range(9)])
    scan = store._scanner.execute("select * from cells")
    scan.fetchone()  # the scan keeps its old state until it is closed
    for number in range(50):
        await store.write([StoredCell("ks", number, b"k", 1, False, bytes(20_000))])
    held = store._wal_bytes
    assert held > 1_000_000
    scan.close()
    await store.write([row(b"k", 2, b"v")])
    await until(lambda: store._wal_bytes < 200_000, "the log to be copied")
    await store.close()


async def test_store_locked_by_another_process_refuses_writes_until_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.store.LOCK_TIMEOUT_S", 0.05)
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.write([row(b"k", 1, b"v")])
    other = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreLocked, match="another process holds the store"):
        await store.write([row(b"k", 2, b"w")])
    assert store.timestamp("ks", token_of(b"k"), b"k") == 1
    other.execute("rollback")
    other.close()
    assert await store.write([row(b"k", 2, b"w")]) == [0]
    await store.close()


async def test_deletions_return_space_to_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    for number in range(40):
        await store.write([StoredCell("ks", number, b"k", 1, False, bytes(100_000))])
    await store.delete(RING, 30)
    await store.close()
    store = SqliteStore(path)  # a new process continues the vacuum
    await until(lambda: store.free_bytes() == 0, "the free pages to be returned")
    await until(lambda: path.stat().st_size < 1_100_000, "the file to become shorter")
    assert (await size_of(store)).keys == 10
    await store.close()


async def test_file_without_auto_vacuum_reports_its_free_pages(tmp_path: Path) -> None:
    """Builds before ``auto_vacuum`` created such files."""
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as older:
        older.execute("pragma journal_mode=wal")
        older.execute(store_module._SCHEMA)
    store = SqliteStore(path)
    await store.write(
        [StoredCell("ks", number, b"k", 1, False, bytes(100_000)) for number in range(40)]
    )
    assert store.free_bytes() == 0
    await store.delete(RING, 30)
    assert 3_000_000 < store.free_bytes() < 3_100_000
    await store.close()


async def test_write_without_permission_writes_nothing(store: SqliteStore) -> None:
    rows = [row(b"yes", 1, b"v"), row(b"no", 1, b"v")]
    assert await store.write(rows, lambda place: place == 0) == [0, None]
    assert store.timestamp("ks", token_of(b"yes"), b"yes") == 1
    assert store.timestamp("ks", token_of(b"no"), b"no") == 0


async def test_close_completes_queued_writes_and_refuses_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.commits.GROUP_JOBS", 1)
    store = SqliteStore(tmp_path / "store.sqlite")
    writing = [asyncio.create_task(store.write([row(b"%d" % n, 1, b"v")])) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*writing) == [[0]] * 20
    with pytest.raises(StoreFailed, match="closed"):
        await store.write([row(b"k", 1, b"v")])
