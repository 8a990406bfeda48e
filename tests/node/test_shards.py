"""Shards of a node: reads and writes by shard, and moves of a tablet between shards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stele.agent.cleanup import Cleaner
from stele.agent.judging import Code
from stele.agent.load import held_of
from stele.agent.orders import OrderProgress
from stele.agent.stores import Span, parted, partition_of, placed
from stele.domain.commands import CreateKeyspace, CreateTable, MoveTablets, Rollback
from stele.domain.messages import Order
from stele.domain.model.operations import TabletMove
from stele.domain.names import OrderKind, TransitionState
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas, contains
from stele.domain.topology.live_copies import is_to_be_deleted
from stele.log.follower import LogFollower
from stele.node.cells import Cell, HybridClock, StoredCell
from stele.node.load import measured
from stele.node.store import SqliteStore
from stele.node.streaming import Streamer
from stele.node.wire import Compare, Compared, Read, ReadMode, Scan, Scanned, Write
from tests.node.peers import replica_of
from tests.node.world import TERM, Sessions, World

TABLE = "music.songs"
MOVE = "move"
STATE = TransitionState


class OneNode:
    """n1 with two shards. Its first tablet moves from one to the other."""

    def __init__(self, world: World, follower: LogFollower, path: Path) -> None:
        self.world, self.follower, self.path = world, follower, path
        self.sessions = Sessions(follower)
        self.open()

    def open(self) -> None:
        self.store, clock = SqliteStore(self.path), HybridClock(lambda: 1)
        self.replica = replica_of("n1", self.follower, self.sessions, self.store, clock)
        self.streamer = Streamer("n1", self.follower, self.sessions, self.store, clock, self)

    async def restart(self) -> None:
        await self.store.close()
        self.open()

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned:
        assert node_id == "n1", "nobody else has what its shards have"
        return await self.replica.scan(scan)

    async def digests(self, node_id: str, address: str, compare: Compare) -> Compared:
        return await self.replica.digests(compare)

    @property
    def data_id(self) -> str:
        return self.world.data_id_of(TABLE)

    def row(self, tablet: int = 0) -> RangeReplicas:
        data = self.world.image.schema.serving(TABLE)
        assert data is not None
        return self.world.image.ring.placements[data.placement].rows[tablet]

    def keys(self, count: int, tablet: int = 0) -> list[bytes]:
        range_ = Range(self.row(tablet).start, self.row(tablet).end)
        every = (f"key-{number}".encode() for number in range(100_000))
        fits = (key for key in every if contains(range_, token_of(key)))
        return [next(fits) for _ in range(count)]

    async def write(self, *keys: bytes, at: int = 1) -> None:
        ops = [Write(**self._about(key), cell=Cell(at, False, b"v")) for key in keys]  # type: ignore[arg-type]
        answers = await self.replica.serve(ops)
        assert {answer.code for answer in answers} == {Code.OK}

    async def reads(self, key: bytes) -> int:
        """Return the timestamp of the key, or 0 without a cell."""
        op = Read(**self._about(key), mode=ReadMode.TIMESTAMP)  # type: ignore[arg-type]
        (answer,) = await self.replica.serve([op])
        assert answer.code is Code.OK
        return answer.timestamp

    def _about(self, key: bytes) -> dict[str, object]:
        return {
            "version": self.world.version,
            "epoch": self.world.image.epoch,
            "coordinating": "n2",
            "data_id": self.data_id,
            "token": token_of(key),
            "key": key,
        }

    async def on_shards(self, key: bytes) -> tuple[int, ...]:
        """Return the timestamps on disk of shards 0 and 1."""
        return tuple(
            self.store.timestamp(partition_of(self.data_id, shard), token_of(key), key)
            for shard in (0, 1)
        )

    def order(self, kind: OrderKind) -> Order:
        return self.world.order(kind, request_id=MOVE)

    async def stream(self) -> OrderProgress:
        progress = OrderProgress()
        await self.streamer.run(self.order(OrderKind.STREAM), progress)
        return progress

    async def clean(self) -> OrderProgress:
        progress = OrderProgress()
        cleaner = Cleaner("n1", self.follower, self.store, tuple)
        await cleaner.run(self.order(OrderKind.CLEANUP), progress)
        return progress

    def go_to(self, state: TransitionState) -> None:
        """Advance the transition to this state, and fence its version."""
        transitions = self.world.image.topology.transitions
        while transitions[MOVE].state is not state:
            self.world.advance(MOVE)
            transitions = self.world.image.topology.transitions
        self.world.fence()


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OneNode]:
    monkeypatch.setattr("stele.agent.pulling.RETRY_S", 0.001)
    world = World(shards=2)
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=2))
    world.apply(CreateTable(TABLE))
    node = OneNode(world, await world.follower(), tmp_path / "store.sqlite")
    assert node.row(0).shard_of("n1") == 0 and node.row(1).shard_of("n1") == 1
    yield node
    await node.store.close()


def begin(node: OneNode) -> None:
    move = TabletMove(table=TABLE, tablet=0, from_node="n1", to_node="n1", to_shard=1)
    node.world.apply(MoveTablets((move,)), MOVE)
    node.world.open(MOVE)


async def test_each_tablet_is_in_the_partition_of_its_shard(node: OneNode) -> None:
    (one,), (two,) = node.keys(1, 0), node.keys(1, 1)
    await node.write(one, two, at=3)
    assert [await node.on_shards(key) for key in (one, two)] == [(3, 0), (0, 3)]
    assert [await node.reads(key) for key in (one, two)] == [3, 3]
    assert [parted(p) for p in await node.store.partitions()] == [
        (node.data_id, 0),
        (node.data_id, 1),
    ]
    sizes = await node.store.sizes()
    assert sizes[node.data_id].keys == 2, "for people both are one table"
    (held,) = held_of(node.world.image, "n1")
    sizes_bytes = await measured(node.store, "n1", node.world.image, held)
    assert all(sizes_bytes), "each tablet is measured where it is"


async def test_tablet_moves_between_shards_while_it_is_written_and_read(
    node: OneNode,
) -> None:
    before, during, late = node.keys(3)
    (other,) = node.keys(1, 1)
    await node.write(before, during, other)
    begin(node)
    await node.write(before, at=2)
    assert await node.on_shards(before) == (2, 0)
    node.go_to(STATE.WRITE_BOTH_READ_OLD)
    await node.write(during, at=3)
    assert await node.on_shards(during) == (3, 3)
    assert await node.reads(before) == 2
    node.go_to(STATE.STREAMING)
    progress = await node.stream()
    assert progress.keys_done == 2, "of this tablet alone"
    await node.write(late, at=4)
    assert [await node.on_shards(key) for key in (before, during, late)] == [(2, 2), (3, 3), (4, 4)]
    node.go_to(STATE.WRITE_BOTH_READ_NEW)
    await node.write(late, at=5)
    assert await node.on_shards(late) == (5, 5)
    assert await node.reads(before) == 2
    node.go_to(STATE.USE_NEW)
    await node.write(late, at=6)
    assert await node.on_shards(late) == (5, 6)
    assert await node.reads(late) == 6
    node.go_to(STATE.CLEANUP)
    assert (await node.clean()).keys_done == 3
    assert [await node.on_shards(key) for key in (before, during, late)] == [(0, 2), (0, 3), (0, 6)]
    assert await node.reads(other) == 1, "the other tablet of that shard is as it was"


async def test_rolled_back_move_leaves_nothing_on_the_new_shard(node: OneNode) -> None:
    keys = node.keys(5)
    await node.write(*keys)
    begin(node)
    node.go_to(STATE.STREAMING)
    await node.stream()
    node.world.apply(Rollback(TERM, MOVE, "the test wants it"))
    node.world.advance(MOVE)
    node.world.fence()
    await node.write(keys[0], at=2)
    assert (await node.clean()).keys_done == 5
    assert [await node.on_shards(key) for key in keys] == [(2, 0)] + [(1, 0)] * 4


async def test_restart_during_streaming_between_shards_loses_nothing(
    node: OneNode,
) -> None:
    keys = node.keys(40)
    await node.write(*keys)
    begin(node)
    node.go_to(STATE.STREAMING)
    pages, scan = 0, node.replica.scan

    async def dies(scan_: Scan) -> Scanned:
        nonlocal pages
        pages += bool(scan_.limit_bytes)
        if pages > 1:
            raise ConnectionError("the process was killed")
        return await scan(scan_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.replica, "scan", dies)
        patch.setattr("stele.agent.stores.PAGE_BYTES", 50)
        with pytest.raises(ConnectionError):
            await node.stream()
    assert 0 < sum([(await node.on_shards(key))[1] for key in keys]) < 40
    await node.restart()
    await node.write(keys[0], at=2)
    await node.stream()
    assert [await node.on_shards(key) for key in keys] == [(2, 2)] + [(1, 1)] * 39


async def test_cleanup_of_a_node_deletes_rows_on_the_wrong_shard(node: OneNode) -> None:
    """Rows on the shard of another tablet are foreign. A late write may leave them there."""
    (one,), (two,) = node.keys(1, 0), node.keys(1, 1)
    await node.write(one, two)
    stray = node.keys(2, 0)[1]
    await node.store.write(
        [row._replace(key=stray, token=token_of(stray)) for row in await _rows(node, 0)],
        into=lambda place: (partition_of(node.data_id, 1),),
    )
    assert await node.on_shards(stray) == (0, 1)
    order = node.order(OrderKind.CLEANUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stele.agent.cleanup.is_wanted", lambda image, order: True)
        await Cleaner("n1", node.follower, node.store, tuple).run(order, OrderProgress())
    found = [await node.on_shards(key) for key in (one, two, stray)]
    assert found == [(1, 0), (0, 1), (0, 0)]


async def _rows(node: OneNode, shard: int) -> list[StoredCell]:
    span = Span(partition_of(node.data_id, shard), MIN_TOKEN, MIN_TOKEN)
    return (await node.store.page([span], None, 2**20)).rows


async def test_cleanup_deletes_only_data_that_the_transition_moves(
    node: OneNode,
) -> None:
    """A node without these rows may be about to gain them."""
    begin(node)
    node.go_to(STATE.STREAMING)
    image, range_ = node.world.image, Range(node.row().start, node.row().end)
    order = replace(node.order(OrderKind.CLEANUP), node_id="n9")
    assert is_to_be_deleted(image, order, node.data_id, range_)
    for other in (node.world.data_id, "no such data"):
        assert not is_to_be_deleted(image, order, other, range_)
    assert not is_to_be_deleted(image, replace(order, session="closed"), node.data_id, range_)


async def test_scanned_rows_carry_the_data_id_without_the_shard(node: OneNode) -> None:
    """The receiver does not know the shard of the sender, and would drop the rows."""
    (one,), (two,) = node.keys(1, 0), node.keys(1, 1)
    await node.write(one, two)
    begin(node)
    node.go_to(STATE.STREAMING)
    spans = [Span(node.data_id, node.row(at).start, node.row(at).end) for at in (0, 1)]
    scan = Scan(
        epoch=node.world.image.epoch, session=node.world.session, spans=spans, limit_bytes=9000
    )
    found = await node.replica.scan(scan)
    assert [(row.keyspace, row.key) for row in found.rows] == [
        (node.data_id, one),
        (node.data_id, two),
    ]


async def test_spans_are_placed_on_the_shard_of_their_tablet(node: OneNode) -> None:
    spans = [Span(node.data_id, node.row(at).start, node.row(at).end) for at in (0, 1)]
    found = [parted(span.keyspace)[1] for span in placed(node.world.image, "n1", spans)]
    assert found == [0, 1]
    assert [span[1:] for span in spans] == [
        span[1:] for span in placed(node.world.image, "n1", spans)
    ]
