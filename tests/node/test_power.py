"""Power failures: acknowledged writes survive, and no client sees an unsynced write."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from stele.agent.stores import Span
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN
from stele.node import store as store_module
from stele.node.cells import StoredCell
from stele.node.commits import StoreFailed
from stele.node.store import PRAGMAS, SqliteStore
from tests.node.disk import Change, ForgetfulDisk, Unsupported, inserted
from tests.node.test_streaming import Cluster, fill_by_quorums, gained
from tests.node.world import World
from tests.polling import until

RING = Span("ks", MIN_TOKEN, MIN_TOKEN)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    disk = ForgetfulDisk(tmp_path)
    try:
        with inserted(disk):
            yield disk
    except Unsupported as error:
        pytest.skip(str(error))


def row(number: int, size: int = 500) -> StoredCell:
    return StoredCell("ks", number, b"k", 1, False, b"%d" % number + bytes(size))


async def numbers_in(folder: Path) -> set[int]:
    """The rows that a store finds after the failure; its table must be whole."""
    check = sqlite3.connect(folder / "store.sqlite")
    assert check.execute("pragma integrity_check").fetchall() == [("ok",)]
    check.close()
    store = SqliteStore(folder / "store.sqlite")
    page = await store.page([RING], None, 10**9)
    await store.close()
    return {found.token for found in page.rows}


async def test_every_acknowledged_write_survives_a_power_failure(
    disk: ForgetfulDisk, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    acknowledged = set[int]()
    numbers = count(1)

    async def writer() -> None:
        for _ in range(10):
            number = next(numbers)
            assert await store.write([row(number)]) == [0]
            acknowledged.add(number)

    for round_ in range(3):
        await asyncio.gather(*(writer() for _ in range(8)))
        found = await numbers_in(disk.remains(tmp_path / f"after-{round_}"))
        assert found >= acknowledged
        assert (await store.page([RING], None, 10**9)).rows, "the store went on"
    await store.close()
    assert len(acknowledged) == 240


async def test_without_full_sync_a_power_failure_loses_acknowledged_writes(
    disk: ForgetfulDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the disk of these tests: ``synchronous=FULL`` prevents this loss."""
    unsynced = tuple(p.replace("synchronous=full", "synchronous=normal") for p in PRAGMAS)
    assert unsynced != PRAGMAS
    monkeypatch.setattr(store_module, "PRAGMAS", unsynced)
    store = SqliteStore(tmp_path / "store.sqlite")
    assert await store.write([row(1)]) == [0]
    assert await numbers_in(disk.remains(tmp_path / "after")) == set()
    await store.close()


async def test_a_power_failure_at_any_sync_leaves_a_whole_table(
    disk: ForgetfulDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of the unsynced pages may survive, also during a checkpoint."""
    monkeypatch.setattr(store_module, "WAL_CHECKPOINT_BYTES", 200_000)
    monkeypatch.setattr(store_module, "WAL_LIMIT_BYTES", 400_000)
    store = SqliteStore(tmp_path / "store.sqlite")
    acknowledged = set[int]()
    chance = random.Random(5)
    pictures: list[tuple[Path, set[int]]] = []
    names = count()  # the writer and the checkpoint beside it sync at the same time
    table_synced = 0

    def survives(_: Change) -> bool:
        return chance.random() < 0.5

    def picture(name: str) -> None:
        nonlocal table_synced
        table_synced += name.endswith(".sqlite")
        if chance.random() < 0.3 or (name.endswith(".sqlite") and table_synced < 4):
            before = {*acknowledged}
            folder = disk.remains(tmp_path / f"at-{next(names)}", survives)
            pictures.append((folder, before))

    disk.on_sync = picture
    for number in range(1, 150):
        await store.write([row(number, 3000)])
        acknowledged.add(number)
    disk.on_sync = lambda name: None
    await store.close()
    assert table_synced, "no checkpoint happened"
    assert len(pictures) > 10
    for folder, before in pictures:
        assert await numbers_in(folder) >= before, folder


class HeldSync:
    """Blocks the syncs of the disk until it is released."""

    def __init__(self, disk: ForgetfulDisk) -> None:
        self.begun = asyncio.Event()
        self._disk = disk
        self._may_go_on = threading.Event()
        self._loop = asyncio.get_running_loop()
        disk.on_sync = self._wait

    def _wait(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self._may_go_on.wait(150), "the test did not let the sync go on within 150 s"

    def go_on(self) -> None:
        self._may_go_on.set()
        self._disk.on_sync = lambda name: None


async def test_write_is_invisible_before_it_is_synced(disk: ForgetfulDisk, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    held = HeldSync(disk)
    writing = asyncio.create_task(store.write([row(1)]))
    await held.begun.wait()
    assert await store.read("ks", 1, b"k") is None
    assert store.timestamp("ks", 1, b"k") == 0
    assert (await store.page([RING], None, 1000)).rows == []
    assert not writing.done()
    held.go_on()
    assert await writing == [0]
    assert store.timestamp("ks", 1, b"k") == 1
    await store.close()


async def test_writes_during_a_sync_share_the_next_sync(
    disk: ForgetfulDisk, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.write([row(101)])  # a new WAL begins with a sync of its header
    held = HeldSync(disk)
    first = asyncio.create_task(store.write([row(0)]))
    await held.begun.wait()
    others = [asyncio.create_task(store.write([row(number)])) for number in range(1, 101)]
    await until(lambda: len(store._commits._waiting) == 100, "the writes to wait")
    before = disk.syncs
    held.go_on()
    await asyncio.gather(first, *others)
    assert disk.syncs == before + 2, "one sync for the first, one for the hundred"
    await store.close()


async def test_rows_that_a_stream_reports_as_done_survive_a_power_failure(
    disk: ForgetfulDisk, tmp_path: Path, world: World
) -> None:
    world.start_join()
    world.advance()
    world.fence()
    cluster = Cluster(world, await world.follower(), tmp_path)
    keys = gained(world, 40)
    await fill_by_quorums(cluster, keys)
    assert (await cluster.stream()).keys_done == 40
    left = disk.remains(tmp_path / "after") / "n4.sqlite"
    had = [cluster.stores["n4"].timestamp(world.keyspace_id, token_of(key), key) for key in keys]
    for store in cluster.stores.values():
        await store.close()
    after = SqliteStore(left)
    assert [after.timestamp(world.keyspace_id, token_of(key), key) for key in keys] == had
    assert min(had) > 0
    await after.close()


async def test_commits_of_a_killed_process_are_synced_before_they_are_read(
    disk: ForgetfulDisk, tmp_path: Path
) -> None:
    """The commit may be only in the page cache. A restarted process reads it, so it must be synced."""
    path = tmp_path / "store.sqlite"
    killed = sqlite3.connect(path, isolation_level=None)
    killed.execute("pragma journal_mode=wal")
    killed.execute("pragma synchronous=off")
    killed.execute(store_module._SCHEMA)
    killed.execute("insert into cells values ('ks', 1, x'6b', 1, 0, 2, x'76')")
    store = SqliteStore(path)
    assert store.timestamp("ks", 1, b"k") == 1
    assert await numbers_in(disk.remains(tmp_path / "after")) == {1}
    await store.close()
    killed.close()


async def test_store_stops_writing_after_a_failed_sync(disk: ForgetfulDisk, tmp_path: Path) -> None:
    """After a failed sync the system may have dropped the pages and call the next sync a success."""
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.write([row(1)])
    disk.failing = True
    with pytest.raises(StoreFailed, match="check it, then restart"):
        await store.write([row(2)])
    disk.failing = False
    with pytest.raises(StoreFailed):
        await store.write([row(3)])
    assert store.failure is not None
    assert store.timestamp("ks", 1, b"k") == 1
    await store.close()
