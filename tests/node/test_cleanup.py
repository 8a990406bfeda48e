"""Cleanup deletes foreign rows, and keeps ranges that the node is about to gain."""

from __future__ import annotations

import msgspec
import pytest

from stele.agent.cleanup import Cleaner, CleanupStopped, foreign_ranges
from stele.agent.orders import OrderProgress
from stele.agent.stores import Span
from stele.domain.commands import Leave
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN, Range
from stele.node.cells import StoredCell
from stele.node.store import SqliteStore
from tests.node.sizes import size_of
from tests.node.world import KEYSPACE, World


def joined(world: World) -> World:
    """n4 has joined; n1, n2 and n3 hold ranges that are not theirs any more."""
    world.start_join()
    for _ in range(4):
        world.advance()
    world.fence()
    assert not world.image.topology.transitions
    return world


async def fill(world: World, store: SqliteStore, keys: list[bytes]) -> None:
    keyspace_id = world.keyspace_id
    await store.write([StoredCell(keyspace_id, token_of(k), k, 1, False, b"12345") for k in keys])


async def test_cleanup_deletes_exactly_the_foreign_rows(world: World, store: SqliteStore) -> None:
    joined(world)
    keys = [f"key-{n}".encode() for n in range(600)]
    await fill(world, store, keys)
    progress = OrderProgress()
    await Cleaner("n1", await world.follower(), store, tuple).run(world.cleanup_order(), progress)
    own = [key for key in keys if "n1" in world.row(key).writes]
    left = (await store.page([Span(world.keyspace_id, MIN_TOKEN, MIN_TOKEN)], None, 10**9)).rows
    assert sorted(row.key for row in left) == sorted(own)
    assert 0 < len(own) < 600
    assert progress.keys_done == 600 - len(own)
    assert progress.bytes_done == progress.bytes_total > 0


async def test_ranges_of_an_open_transition_are_not_foreign(world: World) -> None:
    world.start_join()
    world.advance()
    placement = world.image.placement_of(KEYSPACE)
    assert placement is not None
    for node_id in ("n1", "n4"):
        touched = {
            (r.start, r.end) for r in foreign_ranges(world.image, node_id, world.keyspace_id)
        }
        for row in placement.rows:
            assert (node_id in row.writes) != ((row.start, row.end) in touched)
    for _ in range(3):
        world.advance()
    assert foreign_ranges(world.image, "n1", world.keyspace_id) != []


async def test_cleanup_stops_when_a_newer_cleanup_is_requested(
    world: World, store: SqliteStore
) -> None:
    joined(world)
    follower = await world.follower()
    late = msgspec.structs.replace(world.cleanup_order(), session="cleanup-n1-1")
    with pytest.raises(CleanupStopped, match="another cleanup"):
        await Cleaner("n1", follower, store, tuple).run(late, OrderProgress())


async def test_cleanup_stops_deleting_ranges_that_the_node_is_about_to_gain(
    world: World, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n4 leaves while n1 deletes what n4 took over: n1 gets that back, so it must stop deleting it."""
    monkeypatch.setattr("stele.agent.cleanup.BATCH_ROWS", 1)
    joined(world)
    follower = await world.follower()
    foreign = world.keys(lambda row: "n1" not in row.writes)
    await fill(world, store, [next(foreign) for _ in range(20)])
    deleted = 0

    class Watched(OrderProgress):
        def add(self, size_bytes: int, keys: int, source: str = "") -> None:
            nonlocal deleted
            deleted += keys
            if deleted == 3 and keys:
                world.apply(Leave("n4"), "leave-n4")
                world.open("leave-n4")
            super().add(size_bytes, keys, source)

    await Cleaner("n1", follower, store, tuple).run(world.cleanup_order(), Watched())
    assert deleted == 3


async def test_cleanup_deletes_all_rows_of_a_dropped_keyspace(
    world: World, store: SqliteStore
) -> None:
    joined(world)
    await fill(world, store, [b"a", b"b"])
    keyspace_id = world.keyspace_id
    world.drop()
    assert foreign_ranges(world.image, "n1", keyspace_id) == [Range(MIN_TOKEN, MIN_TOKEN)]
    await Cleaner("n1", await world.follower(), store, tuple).run(
        world.cleanup_order(), OrderProgress()
    )
    assert (await size_of(store)).keys == 0
