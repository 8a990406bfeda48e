"""TRUNCATE orders, and requests of a replica for truncated data."""

from __future__ import annotations

import asyncio

from stele.agent.cleanup import Truncator, foreign_ranges
from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN, Range
from stele.node.cells import Cell, StoredCell
from stele.node.replica import LocalReplica
from stele.node.store import SqliteStore
from stele.node.wire import Answer, Read, ReadMode, Write
from tests.node.peers import replica_of
from tests.node.sizes import size_of
from tests.node.world import Sessions, World

OLD, NEW = Cell(9, False, b"old"), Cell(3, False, b"new")
"""Writes after a truncation may have the lower timestamp."""


def write(world: World, cell: Cell, key: bytes = b"k") -> Write:
    return Write(
        version=world.version,
        epoch=world.image.epoch,
        coordinating="n2",
        data_id=world.data_id,
        token=token_of(key),
        key=key,
        cell=cell,
    )


def read(world: World) -> Read:
    return Read(
        version=world.version,
        epoch=world.image.epoch,
        coordinating="n2",
        data_id=world.data_id,
        token=token_of(b"k"),
        key=b"k",
        mode=ReadMode.CELL,
    )


async def serve(replica: LocalReplica, op: Write | Read) -> Answer:
    return (await replica.serve([op]))[0]


async def test_truncation_deletes_exactly_the_old_data(world: World, store: SqliteStore) -> None:
    follower = await world.follower()
    replica = replica_of("n1", follower, Sessions(follower), store)
    keys = [f"key-{n}".encode() for n in range(450)]
    old = [StoredCell(world.data_id, token_of(k), k, *OLD) for k in keys]
    await store.write([*old, StoredCell("another", 5, b"k", *OLD)])
    world.truncate()
    assert (await serve(replica, write(world, NEW))).code is Code.OK
    progress = OrderProgress()
    await Truncator(follower, store).run(world.order(OrderKind.TRUNCATE), progress)
    assert await store.partitions() == sorted(["another", world.data_id])
    assert (await size_of(store)).keys == 2
    assert progress.keys_done == 450
    assert progress.bytes_done == progress.bytes_total > 0
    await Truncator(follower, store).run(world.order(OrderKind.TRUNCATE), progress)
    assert progress.keys_done == 450


async def test_old_data_is_hidden_as_soon_as_the_truncation_is_read(
    world: World, store: SqliteStore
) -> None:
    """Neither a fence nor a newer timestamp is needed."""
    follower = await world.follower()
    replica = replica_of("n1", follower, Sessions(follower), store)
    late_write, late_read = write(world, OLD), read(world)
    assert (await serve(replica, write(world, OLD))).code is Code.OK
    world.truncate()
    assert not world.image.topology.settled()
    for late in (late_write, late_read):
        answer = await serve(replica, late)
        assert answer.code is Code.STALE_VERSION
        assert answer.epoch == world.image.epoch, "whoever reads that far is served"
    assert (await serve(replica, read(world))).cell is None
    assert (await serve(replica, write(world, NEW))).code is Code.OK
    assert (await serve(replica, read(world))).cell == NEW


async def test_queued_write_of_truncated_data_is_refused(world: World, store: SqliteStore) -> None:
    follower = await world.follower()
    replica = replica_of("n1", follower, Sessions(follower), store)
    late = asyncio.create_task(serve(replica, write(world, OLD)))
    await asyncio.sleep(0)
    world.truncate()
    assert (await late).code is Code.STALE_VERSION
    assert (await size_of(store)).keys == 0


async def test_write_in_flight_at_the_truncation_is_deleted(
    world: World, store: SqliteStore
) -> None:
    """The write has begun when the order arrives, and is the first of the old data."""
    follower = await world.follower()
    old = StoredCell(world.data_id, token_of(b"k"), b"k", *OLD)
    late = asyncio.create_task(store.write([old] * 300))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.truncate()
    await Truncator(follower, store).run(world.order(OrderKind.TRUNCATE), OrderProgress())
    assert late.done()
    assert (await size_of(store)).keys == 0


async def test_replica_reads_the_log_before_it_serves_truncated_data(
    world: World, store: SqliteStore
) -> None:
    follower = await world.follower()
    replica = replica_of("n1", follower, Sessions(follower), store)
    await serve(replica, write(world, OLD))
    records, followers = world.partition.records, [*world.partition.followers]
    world.partition.followers.clear()
    known = len(records)
    world.truncate()
    waiting = asyncio.create_task(serve(replica, read(world)))
    await asyncio.sleep(0)
    assert not waiting.done()
    for record in records[known:]:
        followers[0]([record])
    found = await waiting
    assert (found.code, found.cell) == (Code.OK, None)


async def test_truncated_data_is_foreign_to_every_node(world: World) -> None:
    """Old rows on an excluded node or on a returned disk are cleaned up."""
    old = world.data_id
    world.truncate()
    assert foreign_ranges(world.image, "n1", old) == [Range(MIN_TOKEN, MIN_TOKEN)]
    assert foreign_ranges(world.image, "n1", world.data_id) == []
