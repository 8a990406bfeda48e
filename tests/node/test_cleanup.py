"""Cleanup deletes what is not the node's, and nothing that is about to be."""

from __future__ import annotations

import pytest

from stele.domain.commands import DropKeyspace, Leave, StartRequest
from stele.domain.messages import Order
from stele.domain.names import OrderKind
from stele.domain.ring.tokens import MIN_TOKEN, token_of
from stele.node.cells import Row
from stele.node.cleanup import Cleaner, CleanupStopped, foreign_ranges
from stele.node.orders import OrderProgress
from stele.node.store import Span, Store
from tests.node.world import KEYSPACE, TERM, World

RING = Span(KEYSPACE, MIN_TOKEN, MIN_TOKEN)


def joined(world: World) -> World:
    """n4 has joined; n1, n2 and n3 hold ranges that are not theirs any more."""
    world.start_join()
    for _ in range(3):
        world.advance()
    world.fence()
    assert world.image.topology.operation is None
    return world


def order(world: World, version: int = 0) -> Order:
    return Order(
        node_id="n1",
        term=TERM,
        index=1,
        kind=OrderKind.CLEANUP,
        epoch=world.image.epoch,
        version=version or world.version,
    )


async def fill(store: Store, keys: list[bytes]) -> None:
    await store.write([Row(KEYSPACE, token_of(k), k, 1, False, b"12345") for k in keys])


async def test_it_deletes_exactly_the_foreign_rows(world: World, store: Store) -> None:
    joined(world)
    keys = [f"key-{n}".encode() for n in range(600)]
    await fill(store, keys)
    progress = OrderProgress()
    await Cleaner("n1", await world.follower(), store).run(order(world), progress)
    own = [key for key in keys if "n1" in world.row(key).writes]
    left = (await store.page([RING], None, 10**9)).rows
    assert sorted(row.key for row in left) == sorted(own)
    assert 0 < len(own) < 600
    assert progress.keys_done == 600 - len(own)
    assert progress.bytes_done == progress.bytes_total > 0


async def test_nothing_of_an_operation_under_way_is_foreign(world: World) -> None:
    world.start_join()
    world.advance()
    placement = world.image.placement_of(KEYSPACE)
    assert placement is not None
    for node_id in ("n1", "n4"):
        touched = {(r.start, r.end) for r in foreign_ranges(world.image, node_id, KEYSPACE)}
        for row in placement.rows:
            assert (node_id in row.writes) != ((row.start, row.end) in touched)
    world.advance()
    world.advance()
    assert foreign_ranges(world.image, "n1", KEYSPACE) != []


async def test_it_stops_when_the_topology_moves_on(world: World, store: Store) -> None:
    joined(world)
    follower = await world.follower()
    with pytest.raises(CleanupStopped, match=f"at version {world.version}"):
        await Cleaner("n1", follower, store).run(order(world, world.version - 1), OrderProgress())


async def test_it_checks_before_each_batch(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.cleanup.BATCH_ROWS", 1)
    joined(world)
    follower = await world.follower()
    foreign = world.keys(lambda row: "n1" not in row.writes)
    await fill(store, [next(foreign) for _ in range(20)])
    deleted = 0

    class Watched(OrderProgress):
        def add(self, size_bytes: int, keys: int) -> None:
            nonlocal deleted
            deleted += keys
            if deleted == 3:
                world.apply(Leave("n4"), "leave-n4")
                world.apply(StartRequest(TERM, "leave-n4"))
            super().add(size_bytes, keys)

    ordered = order(world)
    with pytest.raises(CleanupStopped):
        await Cleaner("n1", follower, store).run(ordered, Watched())
    assert deleted == 3


async def test_a_keyspace_that_is_gone_is_deleted_whole(world: World, store: Store) -> None:
    joined(world)
    await fill(store, [b"a", b"b"])
    world.apply(DropKeyspace(KEYSPACE))
    await Cleaner("n1", await world.follower(), store).run(order(world), OrderProgress())
    assert (await store.size()).keys == 0
