"""Streaming: n4 joins and pulls its ranges from n1, n2 and n3, whose rows differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from stele.agent import pulling
from stele.agent.orders import OrderProgress
from stele.agent.pulling import BURST_S, PORTION_RANGES, StreamFailed, portions_of
from stele.agent.stores import PAGE_S
from stele.domain.commands import Exclude, ExcludeDead, Rollback, SetSetting
from stele.domain.fencing import SessionClosedError
from stele.domain.messages import Order
from stele.domain.model.settings import MIB
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import Range, contains
from stele.log.follower import LogFollower
from stele.node.cells import Cell, StoredCell
from stele.node.store import Into, Permit
from stele.node.wire import Scan, Scanned
from tests.node.peers import NODES, Peers
from tests.node.sizes import size_of
from tests.node.world import TERM, World


class Cluster(Peers):
    """n1 to n4 with a store each. n4 streams."""

    def __init__(self, world: World, follower: LogFollower, folder: Path) -> None:
        super().__init__(world, follower, folder, (*NODES, "n4"))

    async def put(self, node_id: str, key: bytes, cell: Cell) -> None:
        await self.stores[node_id].write(
            [StoredCell(self.world.keyspace_id, token_of(key), key, *cell)]
        )

    async def at(self, node_id: str, key: bytes) -> Cell | None:
        return await self.stores[node_id].read(self.world.keyspace_id, token_of(key), key)

    def order(self) -> Order:
        return self.world.order(OrderKind.STREAM, "n4", request_id="join-n4")

    async def stream(self) -> OrderProgress:
        progress = OrderProgress()
        await self.streamers["n4"].run(self.order(), progress)
        return progress


@pytest.fixture
async def cluster(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("stele.agent.pulling.RETRY_S", 0.001)
    world.start_join()
    world.advance()
    world.fence()
    cluster = Cluster(world, await world.follower(), tmp_path)
    yield cluster
    await cluster.close()


async def fill_by_quorums(cluster: Cluster, keys: list[bytes]) -> dict[bytes, Cell]:
    """Write the newest cell of each key to two of three nodes, in turn, and an older cell to the third."""
    turns = [("n1", "n2", "n3"), ("n2", "n3", "n1"), ("n1", "n3", "n2")]
    expected = dict[bytes, Cell]()
    for number, key in enumerate(keys):
        first, second, behind = turns[number % 3]
        expected[key] = Cell(10 + number, number % 7 == 0, b"new")
        for node_id in (first, second):
            await cluster.put(node_id, key, expected[key])
        await cluster.put(behind, key, Cell(1, False, b"old"))
    return expected


def replaced(world: World, key: bytes) -> str:
    """Return the replica that n4 replaces for the key."""
    row = next(r for r in world.plan_rows() if contains(Range(r.start, r.end), token_of(key)))
    return next(node_id for node_id in row.old if node_id not in row.new)


def undo(world: World) -> None:
    world.apply(Rollback(TERM, "join-n4", "the test wants it"))
    world.advance()


def gained(world: World, count: int) -> list[bytes]:
    keys = world.keys(lambda row: "n4" in row.writes)
    return [next(keys) for _ in range(count)]


async def test_every_acknowledged_cell_is_on_a_quorum_of_the_new_replicas(
    cluster: Cluster,
) -> None:
    """Each newest cell is on two of three nodes, as after quorum writes, and an older one on the third."""
    keys = gained(cluster.world, 60)
    expected = await fill_by_quorums(cluster, keys)
    foreign = cluster.world.key(lambda row: "n4" not in row.writes)
    await cluster.put("n1", foreign, Cell(1, False, b"not n4's"))

    progress = await cluster.stream()

    cluster.world.advance()
    for key in keys:
        reads = cluster.world.row(key).reads
        assert "n4" in reads and len(reads) == 3
        having = [n for n in reads if await cluster.at(n, key) == expected[key]]
        assert len(having) >= 2
    assert await cluster.at("n4", foreign) is None
    assert progress.bytes_done == progress.bytes_total > 0
    assert progress.keys_done == 60
    sources = progress.sources.values()
    assert sum(source.bytes_done for source in sources) == progress.bytes_done
    assert sum(source.keys_done for source in sources) == progress.keys_done
    assert cluster.sessions.manager.in_use() == ()
    assert cluster.clock.next() > 60


async def test_majority_is_merged_if_the_replaced_replica_is_down(
    cluster: Cluster,
) -> None:
    keys = gained(cluster.world, 60)
    expected = await fill_by_quorums(cluster, keys)
    down = replaced(cluster.world, keys[0])
    cluster.down = {down}
    affected = [key for key in keys if replaced(cluster.world, key) == down]
    own = Cell(10_000, False, b"written to n4 itself meanwhile")
    await cluster.put("n4", affected[0], own)
    await cluster.stream()
    assert await cluster.at("n4", affected[0]) == own
    assert len(affected) > 5
    for key in affected[1:]:
        assert await cluster.at("n4", key) == expected[key]


async def test_equal_rows_of_a_second_source_are_not_pulled(cluster: Cluster) -> None:
    keys = gained(cluster.world, 60)
    for key in keys:
        for node_id in ("n1", "n2", "n3"):
            await cluster.put(node_id, key, Cell(1, False, b"the same"))
    cluster.down = {replaced(cluster.world, keys[0])}
    progress = await cluster.stream()
    assert progress.keys_done == 60, "each row comes once"
    assert progress.bytes_done == progress.bytes_total
    compared = sum(source.bytes_compared for source in progress.sources.values())
    assert 0 < compared == progress.bytes_compared < progress.bytes_done


async def test_large_ranges_are_streamed_in_pages(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.agent.stores.PAGE_BYTES", 1000)
    keys = gained(cluster.world, 100)
    for key in keys:
        for node_id in ("n1", "n2", "n3"):
            await cluster.put(node_id, key, Cell(5, False, b"x" * 100))
    await cluster.stream()
    assert (await size_of(cluster.stores["n4"])).keys == 100
    assert len([s for _, s in cluster.scans if s.cursor is not None]) >= 5


@pytest.mark.parametrize("most", [1, 2])
async def test_stream_concurrency_setting_limits_concurrent_portions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("stele.agent.pulling.PORTION_RANGES", 1)
    cluster.world.apply(SetSetting("stream_concurrency", str(most)))
    at_once, highest, scan = 0, 0, cluster.scan

    async def counted(node_id: str, address: str, asked: Scan) -> Scanned:
        nonlocal at_once, highest
        at_once += 1
        highest = max(highest, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return await scan(node_id, address, asked)

    monkeypatch.setattr(cluster, "scan", counted)
    await cluster.stream()
    assert highest == most


async def test_rate_limit_holds_for_all_portions_together(
    cluster: Cluster,
) -> None:
    for key in gained(cluster.world, 16):
        for node_id in ("n1", "n2", "n3"):
            await cluster.put(node_id, key, Cell(5, False, b"x" * 64 * 1024))
    cluster.world.apply(SetSetting("stream_mib_per_s", "1"))
    began_s = time.monotonic()
    progress = await cluster.stream()
    assert time.monotonic() - began_s > progress.bytes_done / 2**20 - BURST_S - 0.01


async def test_low_rate_limit_makes_pages_small(cluster: Cluster) -> None:
    for key in gained(cluster.world, 32):
        for node_id in ("n1", "n2", "n3"):
            await cluster.put(node_id, key, Cell(5, False, b"x" * 64 * 1024))
    cluster.world.apply(SetSetting("stream_mib_per_s", "1"))
    progress = await cluster.stream()
    assert progress.bytes_done > 2 * MIB
    pages = {scan.limit_bytes for _, scan in cluster.scans if scan.limit_bytes}
    assert pages == {int(PAGE_S * MIB)}


async def test_stream_uses_other_sources_if_one_is_down(cluster: Cluster) -> None:
    key = gained(cluster.world, 1)[0]
    for node_id in ("n1", "n2", "n3"):
        await cluster.put(node_id, key, Cell(5, False, b"v"))
    cluster.down = {"n2"}
    await cluster.stream()
    assert await cluster.at("n4", key) == Cell(5, False, b"v")


async def test_unavailable_source_is_tried_only_for_the_first_portion(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for it in each portion would exceed the time in which streaming must show progress."""
    monkeypatch.setattr("stele.agent.pulling.PORTION_RANGES", 1)
    cluster.down = {"n2"}
    await cluster.stream()
    asked = [node_id for node_id, _ in cluster.scans]
    assert asked.count("n2") == pulling.TRIES
    assert min(asked.count("n1"), asked.count("n3")) > pulling.TRIES


async def test_excluded_nodes_are_not_used_as_sources(cluster: Cluster) -> None:
    """Waiting for a host that hangs would exceed the time in which streaming must show progress."""
    keys = gained(cluster.world, 30)
    expected = await fill_by_quorums(cluster, keys)
    cluster.world.apply(Exclude(("n2",)), "exclude")
    cluster.world.apply(ExcludeDead(TERM, "exclude"))
    await cluster.stream()
    assert {node_id for node_id, _ in cluster.scans} == {"n1", "n3"}
    affected = [key for key in keys if replaced(cluster.world, key) == "n2"]
    assert affected
    for key in affected:
        assert await cluster.at("n4", key) == expected[key]


async def test_stream_fails_with_the_names_of_missing_sources(cluster: Cluster) -> None:
    cluster.down = {"n2", "n3"}
    with pytest.raises(StreamFailed, match=r"n2, n3 gave no data"):
        await cluster.stream()
    assert cluster.sessions.manager.in_use() == ()


async def test_pulled_portions_are_not_pulled_again_in_the_same_session(
    cluster: Cluster,
) -> None:
    await cluster.stream()
    cluster.scans.clear()
    await cluster.stream()
    assert cluster.scans == []


async def test_stream_stops_when_the_session_closes(cluster: Cluster) -> None:
    for key in gained(cluster.world, 30):
        for node_id in ("n1", "n2", "n3"):
            await cluster.put(node_id, key, Cell(5, False, b"v"))
    closed = asyncio.Event()

    def close(node_id: str) -> None:
        if not closed.is_set():
            closed.set()
            undo(cluster.world)

    cluster.on_page = close
    with pytest.raises(SessionClosedError):
        await cluster.stream()
    assert (await size_of(cluster.stores["n4"])).keys == 0
    assert cluster.sessions.manager.in_use() == ()


async def test_order_of_a_closed_session_streams_nothing(cluster: Cluster) -> None:
    order = cluster.order()
    cluster.world.advance()
    with pytest.raises(SessionClosedError):
        await cluster.streamers["n4"].run(order, OrderProgress())
    assert cluster.scans == []


async def test_rows_truncated_during_streaming_are_not_stored(cluster: Cluster) -> None:
    """Pages of the old data are in flight. Later pages are of the new data."""
    world, session = cluster.world, cluster.world.session
    for number, key in enumerate(gained(world, 40)):
        for node_id in ("n1", "n2", "n3"):
            await cluster.put(node_id, key, Cell(number + 1, False, b"old"))
    pages = 0

    def truncate(node_id: str) -> None:
        nonlocal pages
        pages += 1
        if pages == 1:
            world.truncate()

    cluster.on_page = truncate
    order = msgspec.structs.replace(cluster.order(), session=session)
    await cluster.streamers["n4"].run(order, OrderProgress())
    assert pages > 0
    assert (await size_of(cluster.stores["n4"])).keys == 0
    (transition,) = [t for t in world.image.topology.open() if t.session == session]
    portions = portions_of(world.image, transition, "n4", {}, frozenset())
    assert {p.data_ids for p in portions} == {(world.data_id,)}


async def test_portions_are_the_gained_ranges_each_once(world: World) -> None:
    world.start_join()
    (transition,) = world.image.topology.open()
    portions = portions_of(world.image, transition, "n4", {}, frozenset())
    ranges = [range_ for portion in portions for range_ in portion.ranges]
    assert sorted((r.start, r.end) for r in ranges) == sorted(
        (row.start, row.end) for row in world.plan_rows() if "n4" in row.new
    )
    assert all(
        len(p.ranges) <= PORTION_RANGES and p.data_ids == (world.keyspace_id,) for p in portions
    )
    done = {(portions[0].placement, range_) for range_ in ranges}
    assert portions_of(world.image, transition, "n4", {}, done) == []
    assert portions_of(world.image, transition, "n1", {}, frozenset()) == []


async def test_page_is_not_written_if_the_session_closes_before_the_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page waits behind other writes. The node may be fenced and cleaned up before them."""
    (key,) = gained(cluster.world, 1)
    for node_id in ("n1", "n2", "n3"):
        await cluster.put(node_id, key, Cell(5, False, b"v"))
    store = cluster.stores["n4"]
    write = store.write

    async def after_the_end(
        rows: Sequence[StoredCell], permit: Permit, into: Into
    ) -> list[int | None]:
        undo(cluster.world)
        return await write(rows, permit, into)

    monkeypatch.setattr(store, "write", after_the_end)
    with pytest.raises(SessionClosedError):
        await cluster.stream()
    assert (await size_of(store)).keys == 0
