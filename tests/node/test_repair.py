"""Repair of a tablet: n1, n2 and n3 have different rows, and stream missing rows from each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.agent.pulling import StreamFailed
from stele.agent.stores import Span
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    CreateTable,
    DropTable,
    RepairTablets,
)
from stele.domain.model.operations import TabletRepair
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import Range, contains
from stele.log.follower import LogFollower
from stele.node.cells import TOMBSTONE, Cell, ColumnValue, StoredCell, row_cell
from stele.node.digests import LEAF_ROWS
from stele.node.wire import Compare
from tests.node.peers import NODES, Peers
from tests.node.world import World

TABLE = "music.songs"


class Cluster(Peers):
    """Three replicas of two tablets; the first is under repair."""

    def __init__(self, world: World, follower: LogFollower, folder: Path) -> None:
        super().__init__(world, follower, folder)
        self.data_id = world.data_id_of(TABLE)
        data = world.image.schema.of_data(self.data_id)
        assert data is not None
        row = world.image.ring.placements[data.placement].rows[0]
        self.tablet = Range(row.start, row.end)

    def keys(self, count: int, *, inside: bool = True) -> list[bytes]:
        every = (f"key-{number}".encode() for number in range(1_000_000))
        fits = (key for key in every if contains(self.tablet, token_of(key)) is inside)
        return [next(fits) for _ in range(count)]

    async def put(self, node_id: str, *cells: tuple[bytes, Cell]) -> None:
        rows = [StoredCell(self.data_id, token_of(key), key, *cell) for key, cell in cells]
        await self.stores[node_id].write(rows)

    async def rows(self, node_id: str, *, inside: bool = True) -> list[StoredCell]:
        page = await self.stores[node_id].page(
            [Span(self.data_id, -(2**63), -(2**63))], None, 2**30
        )
        return [row for row in page.rows if contains(self.tablet, row.token) is inside]

    async def repair(self, *node_ids: str) -> dict[str, OrderProgress]:
        found = dict[str, OrderProgress]()
        for node_id in node_ids or NODES:
            order = self.world.order(OrderKind.STREAM, node_id, request_id="repair")
            found[node_id] = OrderProgress()
            await self.streamers[node_id].run(order, found[node_id])
        return found


@pytest.fixture
async def cluster(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("stele.agent.pulling.RETRY_S", 0.001)
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=2))
    world.apply(CreateTable(TABLE))
    world.apply(RepairTablets((TabletRepair(table=TABLE, tablet=0),)), "repair")
    world.open("repair")
    world.fence()
    cluster = Cluster(world, await world.follower(), tmp_path)
    yield cluster
    await cluster.close()


async def test_repaired_row_has_the_columns_of_all_replicas(cluster: Cluster) -> None:
    (key,) = cluster.keys(1)
    made = [
        row_cell(0, [ColumnValue(1, 5, b"older"), ColumnValue(2, 5, b"deleted with the row")]),
        row_cell(6, [ColumnValue(1, 7, b"newer")]),
        row_cell(0, [ColumnValue(3, 8, None)]),
    ]
    for name, cell in zip(NODES, made, strict=True):
        await cluster.put(name, (key, cell))
    await cluster.repair()
    found = [await cluster.rows(name) for name in NODES]
    expected = row_cell(6, [ColumnValue(1, 7, b"newer"), ColumnValue(3, 8, None)])
    assert found == [[StoredCell(cluster.data_id, token_of(key), key, *expected)]] * 3


async def test_repaired_replica_has_the_newest_rows_of_all_replicas(cluster: Cluster) -> None:
    """Values, deletions and older rows are spread over the replicas. No row of the other tablet moves."""
    keys = cluster.keys(90)
    for number, key in enumerate(keys):
        first, second = NODES[number % 3], NODES[(number + 1) % 3]
        await cluster.put(first, (key, Cell(10 + number, number % 7 == 0, b"new")))
        await cluster.put(second, (key, Cell(1, False, b"old")))
    (other,) = cluster.keys(1, inside=False)
    await cluster.put("n1", (other, Cell(5, False, b"of another tablet")))

    await cluster.repair()

    expected = await cluster.rows("n1")
    assert {row.key: row.timestamp for row in expected} == {
        key: 10 + number for number, key in enumerate(keys)
    }
    assert any(row.kind == TOMBSTONE for row in expected)
    for name in NODES[1:]:
        assert await cluster.rows(name) == expected
        assert await cluster.rows(name, inside=False) == []
    assert cluster.sessions.manager.in_use() == ()


async def test_equal_rows_are_compared_and_not_streamed(cluster: Cluster) -> None:
    value = b"x" * 100
    keys = cluster.keys(3000)
    cells = [(key, Cell(5, False, value)) for key in keys]
    for name in NODES:
        await cluster.put(name, *cells)
    await cluster.put("n1", (keys[7], Cell(6, False, value)))

    found = await cluster.repair()

    assert await cluster.rows("n2") == await cluster.rows("n1")
    of_row = len(keys[7]) + len(value) + 2
    total = sum(len(key) + len(value) for key in keys)
    for name, progress in found.items():
        assert progress.bytes_done <= 2 * LEAF_ROWS * of_row, name
        same = progress.bytes_compared + progress.bytes_done
        assert total <= same <= 2 * total, "of both other replicas"
    again = await cluster.repair()
    assert {name: progress.bytes_done for name, progress in again.items()} == dict.fromkeys(
        NODES, 0
    )


async def test_empty_replica_gets_each_row_once(cluster: Cluster) -> None:
    cells = [(key, Cell(5, False, b"v")) for key in cluster.keys(200)]
    for name in ("n1", "n2"):
        await cluster.put(name, *cells)
    found = await cluster.repair("n3")
    assert await cluster.rows("n3") == await cluster.rows("n1")
    assert found["n3"].keys_done == 200, "from the first of them; the other one has the same"


async def test_repair_needs_every_other_replica(cluster: Cluster) -> None:
    """Rows that are only on an unavailable replica would not be repaired."""
    (key,) = cluster.keys(1)
    await cluster.put("n3", (key, Cell(5, False, b"v")))
    cluster.down = {"n3"}
    with pytest.raises(StreamFailed, match="needs 2 of n2, n3; n3 gave no data"):
        await cluster.repair("n1")
    cluster.down = set()
    await cluster.repair("n1")
    assert [row.key for row in await cluster.rows("n1")] == [key]


async def test_digests_are_served_only_under_the_open_session(cluster: Cluster) -> None:
    world = cluster.world
    epoch, session = world.image.epoch, world.session
    spans = [Span(cluster.data_id, cluster.tablet.start, cluster.tablet.end)]
    asked = Compare(epoch=epoch, session=session, spans=spans)
    replica = cluster.replicas["n2"]
    assert (await replica.digests(asked)).code is Code.OK
    later = Compare(epoch=epoch + 5, session=session, spans=spans)
    replica.judge.catch_up_limit_s = 0.01
    assert (await replica.digests(later)).code is Code.BEHIND
    world.apply(Cancel("repair"))
    world.advance("repair")
    assert (await replica.digests(asked)).code is Code.SESSION_CLOSED


async def test_repair_pulls_no_rows_of_a_dropped_table(cluster: Cluster) -> None:
    (key,) = cluster.keys(1)
    await cluster.put("n1", (key, Cell(5, False, b"v")))
    world = cluster.world
    world.apply(DropTable(TABLE), "drop")
    await cluster.repair("n2")
    assert await cluster.rows("n2") != []
    world.open("drop")
    world.fence()
    await cluster.repair("n3")
    assert await cluster.rows("n3") == []
