"""Rejections by a replica: stale versions before and after the work, foreign tokens, closed sessions."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence

import msgspec
import pytest

from stele.agent.judging import Code
from stele.agent.stores import Span, spans_of
from stele.domain.commands import CreateKeyspace, Envelope, Rejection
from stele.domain.decide import decide
from stele.domain.model.schema import KeyspaceChanged
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN
from stele.log.follower import LogFollower
from stele.node import store as store_module
from stele.node.cells import Cell, HybridClock, StoredCell, stamp_of
from stele.node.load import Rates
from stele.node.store import Captures, Into, Permit, SqliteStore
from stele.node.wire import AnyOp, Read, ReadMode, Scan, Write
from tests.domain.load_of import table_of
from tests.log.memory import MemoryLog, MemoryPartition
from tests.node.peers import replica_of
from tests.node.world import KEYSPACE, Sessions, World
from tests.polling import until

CELL = Cell(7, False, b"value")


class Node:
    def __init__(self, node_id: str, follower: LogFollower, store: SqliteStore) -> None:
        self.follower, self.store = follower, store
        keyspace = follower.image.schema.named(KEYSPACE)
        assert keyspace is not None
        self.keyspace_id = keyspace.keyspace_id
        self.sessions = Sessions(follower)
        self.clock = HybridClock(lambda: 1)
        self.now_s = 0.0
        self.rates = Rates(1.0, lambda: self.now_s)
        self.replica = replica_of(
            node_id, follower, self.sessions, store, self.clock, self.rates, catch_up_limit_s=0.05
        )

    async def code(self, op: Write | Read) -> Code:
        return (await self.replica.serve([op]))[0].code

    async def stored(self, key: bytes) -> Cell | None:
        return await self.store.read(self.keyspace_id, token_of(key), key)


@pytest.fixture
async def node(world: World, store: SqliteStore) -> Node:
    return Node("n1", await world.follower(), store)


def about(world: World, key: bytes = b"k", version: int = 0, **more: object) -> dict[str, object]:
    return {
        "version": version or world.version,
        "epoch": world.image.epoch,
        "coordinating": "n2",
        "data_id": world.data_id,
        "token": token_of(key),
        "key": key,
        **more,
    }


def write(world: World, key: bytes = b"k", cell: Cell = CELL, **more: object) -> Write:
    return Write(**about(world, key, **more), cell=cell)  # type: ignore[arg-type]


def read(world: World, mode: ReadMode, key: bytes = b"k") -> Read:
    return Read(**about(world, key), mode=mode)  # type: ignore[arg-type]


async def test_only_served_operations_count_in_the_rates(world: World, node: Node) -> None:
    held = [table_of(world.data_id, 1, {0: 0})]
    node.rates.with_rates(held)
    older = write(world, cell=Cell(5, False, b"older"))
    stale = write(world, b"other", version=world.version + 1)
    ops: list[AnyOp] = [write(world), older, stale, *(read(world, mode) for mode in ReadMode)]
    await node.replica.serve(ops)
    node.now_s = 1.0
    (told,) = node.rates.with_rates(held)
    assert (told.reads_per_s, told.writes_per_s) == ((3,), (2,))


async def test_superseded_write_returns_the_newer_timestamp(world: World, node: Node) -> None:
    older = write(world, cell=Cell(5, False, b"older"))
    answers = await node.replica.serve([write(world), older])
    assert [(a.code, a.timestamp) for a in answers] == [(Code.OK, 0), (Code.SUPERSEDED, 7)]
    modes = [read(world, mode) for mode in ReadMode] + [read(world, ReadMode.CELL, b"none")]
    cell, stamp, timestamp, nothing = await node.replica.serve(modes)
    assert cell.cell == CELL
    assert stamp.stamp == stamp_of(CELL) and stamp.cell is None
    assert timestamp.timestamp == 7
    assert nothing.code is Code.OK and nothing.cell is None and nothing.stamp is None
    assert node.clock.next() == 8


async def moved(world: World) -> bytes:
    """A key whose range n4 joins: in write_both_read_old, fenced."""
    world.start_join()
    world.advance()
    world.fence()
    return world.key_that_changes()


async def test_write_with_a_version_below_the_fence_of_its_range_is_refused(
    world: World, node: Node
) -> None:
    key = await moved(world)
    answer = (await node.replica.serve([write(world, key, version=world.version - 1)]))[0]
    assert answer.code is Code.STALE_VERSION
    assert answer.epoch == world.image.topology.fence_epoch
    assert await node.stored(key) is None


async def test_version_below_the_fence_is_served_if_its_range_is_unchanged(
    world: World, node: Node
) -> None:
    await moved(world)
    key = world.key_that_stays()
    assert await node.code(write(world, key, version=world.version - 1)) is Code.OK


async def test_version_older_than_two_changes_of_its_range_is_refused_at_once(
    world: World, node: Node
) -> None:
    """A coordinating node that missed two changes of a range must not reach its former replicas."""
    key = await moved(world)
    slept = world.version - 1
    world.advance()
    assert world.image.topology.fence_version < world.version
    assert await node.code(write(world, key, version=slept)) is Code.STALE_VERSION
    assert await node.code(write(world, key, version=world.version - 1)) is Code.OK


async def test_request_of_a_coordinating_node_that_is_no_member_is_refused(
    world: World, node: Node
) -> None:
    """Such a node acknowledges no barrier, so its versions in use are unknown."""
    for stranger in ("n9", ""):
        refused = await node.code(write(world, coordinating=stranger))
        assert refused is Code.STALE_VERSION
    assert await node.stored(b"k") is None


async def test_write_is_refused_if_the_fence_moves_during_the_write(
    world: World, store: SqliteStore
) -> None:
    world.start_join()
    key, before = world.key_that_changes(), world.version
    world.advance()

    class Slow(SqliteStore):
        async def write(  # type: ignore[override]
            self, rows: list[StoredCell], permit: Permit, into: Into, captures: Captures
        ) -> list[int | None]:
            written = await store.write(rows, permit, into, captures)
            world.fence()
            return written

    node = Node("n1", await world.follower(), store)
    slow = Slow.__new__(Slow)
    node.replica._store = slow
    assert await node.code(write(world, key, version=before)) is Code.STALE_VERSION
    assert await node.stored(key) == CELL  # the write may take effect, but it is not acknowledged


async def test_both_versions_are_served_until_the_fence(world: World, node: Node) -> None:
    world.start_join()
    key, before = world.key_that_changes(), world.version
    world.advance()
    assert await node.code(write(world, key, version=before)) is Code.OK
    assert await node.code(write(world, key, version=before + 1)) is Code.OK


async def test_ownership_is_judged_by_the_version_of_the_request(
    world: World, store: SqliteStore
) -> None:
    """n1 loses a range. Requests of the old version may write there, requests of the next may not."""
    world.start_join()
    world.advance()
    world.advance()  # write_both_read_new
    world.fence()
    node = Node("n1", await world.follower(), store)
    lost = world.key(lambda row: "n1" in row.writes and "n1" not in row.reads)
    before = world.version
    world.advance()
    assert "n1" not in world.row(lost).writes
    assert await node.code(write(world, lost, version=before)) is Code.OK
    assert await node.code(write(world, lost)) is Code.NOT_A_REPLICA


async def test_replica_reads_the_log_first_if_the_sender_is_ahead(
    world: World, store: SqliteStore
) -> None:
    partition = MemoryPartition()
    for record in world.partition.records:
        partition.append(record.value)
    follower = LogFollower(MemoryLog(partition))
    follower.start()
    await follower.wait_for_epoch(world.image.epoch)
    node = Node("n1", follower, store)
    world.start_join()
    assert await node.code(write(world)) is Code.BEHIND
    waiting = asyncio.create_task(node.code(write(world)))
    await asyncio.sleep(0)
    for record in world.partition.records[len(partition.records) :]:
        partition.append(record.value)
        partition.followers[0]([record])
    assert await waiting is Code.OK


async def test_request_waits_for_a_keyspace_newer_than_the_image(world: World, node: Node) -> None:
    op = write(world)
    new_id = next_keyspace_id(world, "new")
    ahead = msgspec.structs.replace(op, data_id=new_id, epoch=op.epoch + 1)
    waiting = asyncio.create_task(node.code(ahead))
    await asyncio.sleep(0)
    world.apply(CreateKeyspace("new", {"dc1": 3}))
    assert await waiting is Code.OK


async def test_work_of_a_session_is_refused_once_it_is_closed(world: World, node: Node) -> None:
    world.start_join()
    world.advance()
    session = world.session
    assert await node.code(write(world, session=session)) is Code.OK
    world.advance()
    assert await node.code(write(world, session=session)) is Code.SESSION_CLOSED


async def test_pages_are_served_only_under_the_open_session(world: World, node: Node) -> None:
    await node.code(write(world))
    world.start_join()
    world.advance()
    world.fence()
    placement = world.image.placement_of(KEYSPACE)
    assert placement is not None
    scan = Scan(
        epoch=world.image.epoch,
        session=world.session,
        spans=spans_of([world.keyspace_id], placement.rows),  # type: ignore[arg-type]
        limit_bytes=1000,
    )
    found = await node.replica.scan(scan)
    assert [row.key for row in found.rows] == [b"k"]
    world.advance()
    assert (await node.replica.scan(scan)).code is Code.SESSION_CLOSED


def next_keyspace_id(world: World, name: str) -> str:
    """The id that a keyspace gets when it is created by the next epoch."""
    envelope = Envelope(request_id="any", command=CreateKeyspace(name, {"dc1": 3}))
    facts = decide(world.image, envelope, 0)
    assert not isinstance(facts, Rejection)
    (change,) = (fact for fact in facts if isinstance(fact, KeyspaceChanged))
    return change.keyspace.keyspace_id


class Busy:
    """The store's writer is in the middle of another job until ``end``."""

    def __init__(self, store: SqliteStore) -> None:
        self._go_on = threading.Event()
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work(_: sqlite3.Connection) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert self._go_on.wait(150), "the test did not end the job within 150 s"

        self._task = asyncio.create_task(store._commits.run(lambda: work))
        self.begun = begun.wait

    async def end(self) -> None:
        self._go_on.set()
        await self._task


async def test_queued_write_holds_its_version_until_it_is_done(world: World, node: Node) -> None:
    world.start_join()
    key, version = world.key_that_changes(), world.version
    busy = Busy(node.store)
    await busy.begun()
    writing = asyncio.create_task(node.code(write(world, key)))
    await until(node.sessions.versions.in_use, "the write to wait")
    world.advance()
    assert node.sessions.versions.oldest_in_use(world.version) == version < world.version
    await busy.end()
    assert await writing is Code.OK
    assert node.sessions.versions.in_use() == {}


async def test_queued_write_is_refused_if_its_version_is_fenced_meanwhile(
    world: World, node: Node
) -> None:
    world.start_join()
    key = world.key_that_changes()
    busy = Busy(node.store)
    await busy.begun()
    writing = asyncio.create_task(node.code(write(world, key)))
    await until(node.sessions.versions.in_use, "the write to wait")
    world.advance()
    world.fence()
    await busy.end()
    assert await writing is Code.STALE_VERSION
    assert await node.stored(key) is None
    assert node.sessions.versions.in_use() == {}


async def test_write_that_the_store_did_not_permit_is_not_acknowledged(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write_nothing(rows: Sequence[StoredCell], *_: object) -> list[int | None]:
        return [None for _ in rows]

    monkeypatch.setattr(node.store, "write", write_nothing)
    assert await node.code(write(world)) is Code.FAILED


async def test_deletion_after_a_fence_removes_a_late_write(world: World, node: Node) -> None:
    """The write began before the fence. The deletion that follows the fence runs after it."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    write_row = store_module._write_cell

    def slow(writer: sqlite3.Connection, row: StoredCell) -> int:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(150), "the test did not let the write go on within 150 s"
        return write_row(writer, row)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store_module, "_write_cell", slow)
        world.start_join()
        key = world.key_that_changes()
        writing = asyncio.create_task(node.code(write(world, key)))
        await begun.wait()
        world.advance()
        world.fence()
        everything = Span(world.keyspace_id, MIN_TOKEN, MIN_TOKEN)
        cleaning = asyncio.create_task(node.store.delete(everything, 10))
        await asyncio.sleep(0)
        go_on.set()
        assert await writing is Code.STALE_VERSION
    assert (await cleaning).keys == 1
    assert await node.stored(key) is None


async def test_full_disk_refuses_large_writes_and_serves_reads(world: World, node: Node) -> None:
    assert await node.code(write(world)) is Code.OK
    node.store._writer.execute(
        "pragma max_page_count = 1"
    )  # SQLite's own "database or disk is full"
    large = write(world, b"large", Cell(8, False, bytes(100_000)))
    small = write(world, b"k", Cell(9, False, b"x"))
    answers = await node.replica.serve([large])
    assert answers[0].code is Code.DISK_FULL and "free some space" in answers[0].text
    found = (await node.replica.serve([read(world, ReadMode.CELL)]))[0]
    assert found.cell == CELL
    together = await asyncio.gather(node.code(large), node.code(small))
    assert [*together] == [Code.DISK_FULL, Code.OK], "what fits is not refused with what does not"
    node.store._writer.execute("pragma max_page_count = 1000000")
    assert await node.code(large) is Code.OK


async def test_replica_serves_the_version_before_until_it_is_fenced(
    world: World, node: Node
) -> None:
    """The node was a replica before the operation began, and has read each version."""
    world.start_join()
    world.advance()
    world.advance()  # write_both_read_new
    world.fence()
    lost = world.key(lambda row: "n1" in row.writes and "n1" not in row.reads)
    before = world.version
    world.advance()
    assert "n1" not in world.row(lost).writes
    assert await node.code(write(world, lost, version=before)) is Code.OK
    world.fence()
    assert await node.code(write(world, lost, version=before)) is Code.STALE_VERSION
