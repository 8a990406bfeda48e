"""Table snapshots: n1, n2 and n3 write their different rows to files and restore from each other's files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.agent.stores import Span, parted, placed, write_partitions
from stele.domain.commands import (
    Advance,
    Cancel,
    CreateKeyspace,
    CreateTable,
    DeleteTableSnapshot,
    Move,
    Noop,
    RestoreTable,
    RestoreTablets,
    SnapshotTable,
    Truncate,
)
from stele.domain.messages import Order
from stele.domain.model.operations import TabletRestore
from stele.domain.model.table_snapshots import TableSnapshot, WrittenPart
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import Range, contains
from stele.log.follower import LogFollower
from stele.node import snapshotting
from stele.node.backups import (
    MANIFEST,
    Backups,
    Missing,
    decode_manifest,
    decode_rows,
    encode_manifest,
    encode_rows,
    files_of,
)
from stele.node.cells import Cell, HybridClock, StoredCell
from stele.node.restoring import RestoreFailed, Restorer
from stele.node.snapshotting import Snapshotter, frozen
from stele.node.store import SqliteStore
from stele.node.wire import Fetch, Fetched
from tests.node.world import TERM, Sessions, World
from tests.polling import until

TABLE, COPY, TAG = "music.songs", "music.copies", "monday"
NODES = ("n1", "n2", "n3")
ALL = -(2**63)


class Cluster:
    """Three replicas of two tablets, with separate backup folders or a shared one."""

    def __init__(self, world: World, follower: LogFollower, folder: Path) -> None:
        self.world = world
        self.follower = follower
        self.folder = folder
        self.sessions = Sessions(follower)
        self.stores = {name: SqliteStore(folder / f"{name}.sqlite") for name in NODES}
        self.backups = {name: Backups(folder / f"backups-{name}", name) for name in NODES}
        self.down: set[str] = set()

    def restorer(self, name: str) -> Restorer:
        clock = HybridClock(lambda: 1)
        return Restorer(
            self.follower, self.sessions, self.stores[name], clock, self.backups[name], self
        )

    async def backup(self, node_id: str, address: str, fetch: Fetch) -> Fetched:
        if node_id in self.down:
            return Fetched(code=Code.UNREACHABLE, text="refused")
        assert address == f"http://{node_id}"
        return await self.restorer(node_id).give(fetch)

    def share(self) -> None:
        """Use one folder for all. They cannot fetch from each other."""
        self.backups = {name: Backups(self.folder / "shared", name) for name in NODES}
        self.down = {*NODES}

    def data_id(self, table: str = TABLE) -> str:
        return self.world.data_id_of(table)

    async def put(self, node_id: str, *cells: tuple[bytes, Cell], table: str = TABLE) -> None:
        rows = [StoredCell(self.data_id(table), token_of(key), key, *cell) for key, cell in cells]
        image = self.follower.image
        await self.stores[node_id].write(
            rows,
            into=lambda at: write_partitions(image, node_id, rows[at].keyspace, rows[at].token),
        )

    def spans(self, node_id: str, table: str = TABLE) -> list[Span]:
        """Return the spans of all tablets, with their readers."""
        data = self.world.image.schema.serving(table)
        assert data is not None
        tablets = self.world.image.ring.placements[data.placement].rows
        spans = [Span(data.data_id, row.start, row.end) for row in tablets]
        return placed(self.follower.image, node_id, spans)

    async def rows(self, node_id: str, table: str = TABLE) -> list[StoredCell]:
        spans = self.spans(node_id, table)
        rows = (await self.stores[node_id].page(spans, None, 2**30)).rows
        return [row._replace(keyspace=parted(row.keyspace)[0]) for row in rows]

    async def order(self, kind: OrderKind, node_id: str) -> Order:
        # As OrderExecutor does: an order waits until its session is known here.
        await self.follower.wait_for_epoch(self.world.image.epoch)
        return self.world.order(kind, node_id)

    async def write(self, node_id: str) -> OrderProgress:
        progress, store = OrderProgress(), self.stores[node_id]
        writer = Snapshotter(self.follower, self.sessions, store, self.backups[node_id])
        await writer.run(await self.order(OrderKind.SNAPSHOT, node_id), progress)
        return progress

    async def snapshot(self, *node_ids: str) -> TableSnapshot:
        """These nodes write the snapshot, and the log records it."""
        self.world.apply(SnapshotTable(name=TABLE, snapshot=TAG), TAG)
        self.world.open(TAG)
        self.world.fence()
        wrote = []
        for name in node_ids or NODES:
            found = await self.write(name)
            wrote.append(
                WrittenPart(
                    node_id=name,
                    manifest=found.manifest,
                    rows=found.keys_done,
                    size_bytes=found.bytes_done,
                )
            )
        transition = self.world.image.topology.transitions[TAG]
        move = Move(TAG, transition.state, transition.session, wrote=tuple(wrote))
        self.world.apply(Advance(term=TERM, version=self.world.version, moves=(move,)))
        self.world.fence()
        return self.world.image.table_snapshots.snapshots[TAG]

    def truncate(self) -> None:
        self.world.apply(Truncate(TABLE), "truncate")
        self.world.open("truncate")
        self.world.advance("truncate")
        self.world.fence()

    def begin(self, tablet: int = 0, table: str = TABLE) -> None:
        """The restore of a tablet is under way."""
        self.world.apply(RestoreTable(name=table, snapshot=TAG), "back")
        asked = RestoreTablets((TabletRestore(table=table, tablet=tablet),))
        self.world.apply(asked, "tablet")
        self.world.open("tablet")
        self.world.fence()

    async def restore(self, node_id: str) -> OrderProgress:
        progress = OrderProgress()
        await self.restorer(node_id).run(await self.order(OrderKind.RESTORE, node_id), progress)
        return progress

    def file(self, node_id: str, name: str) -> Path:
        folder = self.folder / f"backups-{node_id}" / self.world.image.cluster_id / TAG / node_id
        return folder / name


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
def world(request: pytest.FixtureRequest) -> World:
    return World(shards=request.param)


@pytest.fixture
async def cluster(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("stele.node.restoring.RETRY_S", 0.001)
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=2))
    world.apply(CreateTable(TABLE))
    cluster = Cluster(world, await world.follower(), tmp_path)
    async with AsyncExitStack() as stack:
        for name in NODES:
            stack.push_async_callback(cluster.stores[name].close)
        own = dict(cluster.backups)
        yield cluster
        for each in (*own.values(), *cluster.backups.values()):
            await each.close()


def cells(count: int, timestamp: int = 5) -> list[tuple[bytes, Cell]]:
    return [
        (f"key-{n}".encode(), Cell(timestamp, n % 5 == 0, b"" if n % 5 == 0 else b"v" * 50))
        for n in range(count)
    ]


async def spread(cluster: Cluster) -> None:
    """Write each row to two of three nodes, and an older version of some rows to the third."""
    for number, (key, cell) in enumerate(cells(60)):
        await cluster.put(NODES[number % 3], (key, cell))
        await cluster.put(NODES[(number + 1) % 3], (key, cell))
        if number % 2:
            await cluster.put(NODES[(number + 2) % 3], (key, Cell(1, False, b"old")))


async def test_restore_gives_each_replica_the_merged_rows_and_deletions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotting, "FILE_BYTES", 500)
    monkeypatch.setattr(snapshotting, "PAGE_BYTES", 400)
    await spread(cluster)
    found = await cluster.snapshot()
    assert sum(part.rows for part in found.parts) == 150
    cluster.truncate()
    cluster.begin()
    (plan,) = cluster.world.image.topology.transitions["tablet"].plans.values()
    later = next(k for k, _ in cells(60) if contains(plan.locks[0], token_of(k)))
    for name in NODES:
        await cluster.put(name, (later, Cell(9, False, b"newer")))
        progress = await cluster.restore(name)
        assert 0 < progress.bytes_done == progress.bytes_total
    expected = {key: cell for key, cell in cells(60) if contains(plan.locks[0], token_of(key))}
    for name in NODES:
        rows = {row.key: Cell(*row[3:]) for row in await cluster.rows(name)}
        assert rows.pop(later) == Cell(9, False, b"newer"), "what was written since stays"
        assert rows == {key: cell for key, cell in expected.items() if key != later}


async def test_complete_snapshot_is_reported_again_and_a_partial_one_restarts(
    cluster: Cluster,
) -> None:
    await cluster.put("n1", *cells(20))
    cluster.world.apply(SnapshotTable(name=TABLE, snapshot=TAG), TAG)
    cluster.world.open(TAG)
    cluster.world.fence()
    first = await cluster.write("n1")
    await cluster.put("n1", *cells(40, timestamp=6))
    again = await cluster.write("n1")
    assert (again.manifest, again.keys_done) == (first.manifest, 20)
    assert again.bytes_done == first.bytes_done > 0
    cluster.file("n1", MANIFEST).unlink()
    assert (await cluster.write("n1")).keys_done == 40


async def test_snapshot_reads_the_rows_of_a_tablet_at_one_time(cluster: Cluster) -> None:
    await cluster.put("n1", *cells(20))
    store = cluster.stores["n1"]
    async with frozen(store) as then:
        await cluster.put("n1", *cells(40, timestamp=6))
        page = await then(cluster.spans("n1"), None, 2**20)
    assert {row.timestamp for row in page.rows} == {5} and len(page.rows) == 20


async def test_shared_folder_restores_a_table_with_other_tablets(
    cluster: Cluster,
) -> None:
    cluster.share()
    await spread(cluster)
    await cluster.snapshot()
    cluster.world.apply(CreateKeyspace("more", {"dc1": 3}, tablets=True, initial_tablets=8))
    cluster.world.apply(CreateTable("more.copies"))
    cluster.begin(5, "more.copies")
    await cluster.restore("n3")
    (plan,) = cluster.world.image.topology.transitions["tablet"].plans.values()
    mine = {key: cell for key, cell in cells(60) if contains(plan.locks[0], token_of(key))}
    rows = {row.key: Cell(*row[3:]) for row in await cluster.rows("n3", "more.copies")}
    assert mine and rows == mine


@pytest.mark.parametrize("name", ["tablet-000000-0000.avro", MANIFEST])
@pytest.mark.parametrize("how", ["damaged", "missing"])
async def test_restore_with_a_damaged_or_missing_file_fails_without_effect(
    cluster: Cluster, name: str, how: str
) -> None:
    await cluster.put("n2", *cells(20))
    await cluster.snapshot()
    cluster.truncate()
    cluster.begin()
    file = cluster.file("n2", name)
    if how == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-30] ^= 1
        file.write_bytes(content)
    for reader in ("n1", "n2"):
        with pytest.raises(RestoreFailed, match=f"file {name} of snapshot {TAG} by n2 is"):
            await cluster.restore(reader)
        assert await cluster.rows(reader) == []


async def test_restore_fails_with_the_name_of_an_unreachable_node(cluster: Cluster) -> None:
    await cluster.snapshot()
    cluster.begin()
    cluster.down = {"n3"}
    with pytest.raises(RestoreFailed, match="by n3 is not given: unreachable"):
        await cluster.restore("n1")


def test_equal_rows_give_equal_files() -> None:
    rows = [StoredCell("songs", token, b"key", 7, False, b"value") for token in range(3)]
    assert encode_rows(rows) == encode_rows(rows)
    assert decode_rows(encode_rows(rows), "songs") == rows


async def test_restore_needs_snapshots_of_a_quorum_of_replicas(cluster: Cluster) -> None:
    found = await cluster.snapshot()
    all_ = {name: decode_manifest(cluster.file(name, MANIFEST).read_bytes()) for name in NODES}
    whole = Range(ALL, ALL)
    files_of(whole, found, {name: all_[name] for name in ("n1", "n3")})
    with pytest.raises(
        Missing, match="tablet 0 of snapshot monday can be read of n2 of n1, n2, n3"
    ):
        files_of(whole, found, {"n2": all_["n2"]})
    with pytest.raises(Missing, match="nobody"):
        files_of(whole, found, {})
    content = encode_manifest(all_["n2"])
    assert sha256(content).hexdigest() == found.parts[1].manifest


async def test_cancelled_restore_writes_nothing(cluster: Cluster) -> None:
    """The table may be truncated by then. Rows written later would stay."""
    await cluster.put("n1", *cells(20))
    await cluster.snapshot()
    cluster.begin()
    order, restorer = await cluster.order(OrderKind.RESTORE, "n2"), cluster.restorer("n2")
    cluster.world.apply(Cancel("back"), "cancel")
    with pytest.raises(RestoreFailed, match="has ended"):
        await restorer.run(order, OrderProgress())
    assert await cluster.rows("n2") == []
    asked = Fetch(epoch=0, session=order.session, name=MANIFEST)
    assert (await restorer.give(asked)).code is Code.FAILED


async def test_only_snapshot_files_are_served_and_only_in_the_session(
    cluster: Cluster,
) -> None:
    await cluster.snapshot()
    restorer = cluster.restorer("n1")
    closed = Fetch(epoch=0, session="another", name=MANIFEST)
    assert (await restorer.give(closed)).code is Code.SESSION_CLOSED
    cluster.begin()
    session = cluster.world.session
    for name in ("../n2/manifest.json", "/etc/hostname", "..", "", "none.avro"):
        found = await restorer.give(Fetch(epoch=0, session=session, name=name))
        assert (found.code, found.data) == (Code.FAILED, b""), name
    given = await restorer.give(Fetch(epoch=0, session=session, name=MANIFEST, offset=10))
    assert given.code is Code.OK and len(given.data) == given.size_bytes - 10


async def test_only_files_of_deleted_snapshots_are_removed(
    cluster: Cluster,
) -> None:
    await cluster.put("n1", *cells(20))
    await cluster.snapshot()
    before, backups = cluster.world.image, cluster.backups["n1"]
    folder = cluster.file("n1", MANIFEST).parent
    stranger = folder.parent.parent / "stranger" / "n1"
    stranger.mkdir(parents=True)
    (stranger / "begun.json").write_text('{"log_id":"00","epoch":1}')
    other = folder.parent / "n2"
    other.mkdir()
    early = cluster.world.history.images[2]
    for image in (before, early):
        backups.follow(image)
    backups.follow(before)
    cluster.world.apply(DeleteTableSnapshot(TAG))
    assert folder.exists()
    backups.follow(cluster.world.image)
    await until(lambda: not folder.exists(), "the files to be deleted")
    assert stranger.exists() and other.exists()


async def test_recovery_keeps_snapshot_files_of_lost_epochs(
    cluster: Cluster,
) -> None:
    await cluster.put("n1", *cells(20))
    await cluster.snapshot()
    before, backups = cluster.world.image, cluster.backups["n1"]
    folder = cluster.file("n1", MANIFEST).parent
    lost = folder.parent.parent / "lost" / "n1"
    lost.mkdir(parents=True)
    begun = {"log_id": before.log_id.hex(), "epoch": before.epoch + 1}
    (lost / "begun.json").write_bytes(msgspec.json.encode(begun))
    cluster.world.recover()
    for _ in range(3):
        cluster.world.apply(Noop())
    cluster.world.apply(DeleteTableSnapshot(TAG))
    backups.follow(cluster.world.image)
    await until(lambda: not folder.exists(), "the files to be deleted")
    assert lost.exists()
