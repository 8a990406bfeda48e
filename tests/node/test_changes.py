"""Change logs: writes and merges by replicas, reads by consumers, and moves with the data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.agent.cleanup import Cleaner, Truncator
from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.agent.pulling import portions_of
from stele.domain.commands import AlterTable, CreateTable, Truncate
from stele.domain.image import Image
from stele.domain.model.schema import TableOptions, change_log_of
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN, Range
from stele.log.follower import LogFollower
from stele.node import store as store_module
from stele.node.cells import Cell, ColumnValue, HybridClock, StoredCell, row_cell
from stele.node.change_log import Capture, ChangePage, LoggedChange, change_of, log_row, merged
from stele.node.changes import Changes, expire
from stele.node.coordinate import Consistency, Coordination, RequestRefused, WriteOf
from stele.node.store import SqliteStore
from stele.node.table_rows import DataPath, write_of
from stele.node.wire import Answer, AnyOp, Write
from tests.node.columned import PLAYS, alter, create_tables, writes
from tests.node.peers import replica_of
from tests.node.world import Sessions, World

TABLE = "library.books"
RING = Range(MIN_TOKEN, MIN_TOKEN)
SECOND_US = 1_000_000
IMAGES = TableOptions(cdc="{'preimage': true}")


class Cluster:
    """n1, n2 and n3 with a store each. n1 coordinates, and ``away`` does not answer it."""

    def __init__(self, world: World, follower: LogFollower, folder: Path) -> None:
        self.world, self.follower = world, follower
        newest = world.image.cdc.newest()
        assert newest is not None
        self.now_us = 1000 * newest.since_ms + 60 * SECOND_US
        self.away = ""
        self.stores = {f"n{n}": SqliteStore(folder / f"n{n}.sqlite") for n in (1, 2, 3)}
        self.sessions = Sessions(follower)
        self.replicas = {
            node_id: replica_of(node_id, follower, self.sessions, store, self.clock())
            for node_id, store in self.stores.items()
        }
        self.coordination = Coordination(
            "n1", follower, self.sessions, self.send, self.clock(), timeout_s=5.0
        )
        self.changes = Changes(self.coordination, lambda: self.now_us)

    def clock(self) -> HybridClock:
        return HybridClock(lambda: self.now_us)

    def send(self, image: Image, node_id: str, op: AnyOp, until: float) -> asyncio.Future[Answer]:
        return asyncio.ensure_future(self._answer(node_id, op))

    async def _answer(self, node_id: str, op: AnyOp) -> Answer:
        if node_id == self.away:
            return Answer(Code.UNREACHABLE)
        return (await self.replicas[node_id].serve([op]))[0]

    async def put(
        self, key: str, value: bytes | None, consistency: Consistency = Consistency.ALL
    ) -> int:
        written = await self.coordination.write(TABLE, opaque(key, value), consistency)
        return written.timestamp

    async def read(
        self, stream: bytes = b"", after: str = "", limit: int = 100
    ) -> list[LoggedChange]:
        """All changes of a stream, read page by page."""
        found, more = list[LoggedChange](), True
        while more:
            page = await self.changes.read(TABLE, stream, after, limit)
            for change in page.changes:
                cell = None if change.before is None else Cell(0, False, change.before)
                found.append(
                    LoggedChange(
                        time_us=change.time_us,
                        key=change.key,
                        kind=change.operation == "delete",
                        value=change.value or b"",
                        before=cell,
                    )
                )
            after, more = page.cursor, page.more
        return found

    async def catch_up(self) -> None:
        await self.follower.wait_for_epoch(self.world.image.epoch)

    def data_id(self) -> str:
        return self.world.data_id_of(TABLE)

    def wait_out_window(self) -> None:
        self.now_us += 1000 * self.coordination.window_ms + SECOND_US


@pytest.fixture
async def cluster(world: World, tmp_path: Path) -> AsyncIterator[Cluster]:
    world.apply(CreateTable(TABLE, IMAGES))
    cluster = Cluster(world, await world.follower(), tmp_path)
    yield cluster
    for store in cluster.stores.values():
        await store.close()


def row(key: bytes, cell: Cell) -> StoredCell:
    return StoredCell("table", token_of(key), key, *cell)


async def logged(store: SqliteStore, partition: str = "table+cdc") -> list[LoggedChange]:
    page = await store.changes(partition, RING, 0, 10**18, 1000)
    return [change_of(*each) for each in page.rows]


async def test_a_write_is_logged_even_if_it_loses_to_a_newer_one(store: SqliteStore) -> None:
    """The replica acknowledges the write, so a reader of this replica must see it."""
    cells = [Cell(7, False, b"new"), Cell(5, False, b"old"), Cell(9, True, b"")]
    rows = [row(b"k", cell) for cell in cells]
    lost = await store.write(rows, captures=lambda _: Capture(preimage=True))
    assert lost == [0, 7, 0]
    found = await logged(store)
    assert [(c.time_us, c.kind, c.value, c.before) for c in found] == [
        (5, False, b"old", None),
        (7, False, b"new", None),
        (9, True, b"", Cell(7, False, b"new")),
    ]


async def test_rows_of_streams_and_repairs_are_not_changes(store: SqliteStore) -> None:
    await store.write([row(b"k", Cell(7, False, b"v"))])
    assert await logged(store) == []


async def test_page_ends_between_two_timestamps_and_skips_other_ranges(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(b"key %d" % n, Cell(1 + n // 3, False, b"v")) for n in range(9)]
    await store.write(rows, captures=lambda _: Capture(preimage=False))
    first = await store.changes("table+cdc", RING, 0, 3, 2)
    assert (first.upto_us, len(first.rows)) == (1, 3)
    rest = await store.changes("table+cdc", RING, first.upto_us, 3, 100)
    assert (rest.upto_us, len(rest.rows)) == (3, 6)
    one = rows[4]
    only = Range(one.token - 1, one.token)
    monkeypatch.setattr(store_module, "CHANGES_SEEN", 1)
    skipped = await store.changes("table+cdc", only, 0, 3, 100)
    assert (skipped.upto_us, skipped.rows) == (1, [])
    found = await store.changes("table+cdc", only, 1, 3, 100)
    assert [change_of(*each).key for each in found.rows] == [one.key]


async def test_change_is_in_the_log_of_each_shard_that_stores_the_row(store: SqliteStore) -> None:
    """A tablet that moves to another shard takes its change log with it."""
    await store.write(
        [row(b"k", Cell(7, False, b"v"))],
        into=lambda _: ("table", "table#2"),
        captures=lambda _: Capture(preimage=False),
    )
    assert await store.change_logs() == ["table+cdc", "table+cdc#2"]
    assert await logged(store) == await logged(store, "table+cdc#2") != []


def page(upto_us: int, *rows: StoredCell) -> ChangePage:
    return ChangePage(upto_us, [(each.key, each.value) for each in rows])


def test_pages_of_replicas_merge_by_change_id_and_keep_the_newest_preimage() -> None:
    written = row(b"k", Cell(5, False, b"v"))
    without, with_image = log_row(written, None), log_row(written, Cell(3, False, b"u"))
    other = log_row(row(b"l", Cell(6, False, b"w")), None)
    changes, upto_us = merged([page(9, without), page(9, with_image, other)], 10)
    assert [(c.key, c.before) for c in changes] == [(b"k", Cell(3, False, b"u")), (b"l", None)]
    assert upto_us == 9


def test_preimages_with_different_columns_are_merged() -> None:
    name, age = (ColumnValue(column_id, 3, b"v") for column_id in (1, 2))
    written = row(b"k", row_cell(0, [ColumnValue(3, 5, b"w")]))
    pages = [page(9, log_row(written, row_cell(0, [each]))) for each in (name, age)]
    ((change,), _) = merged(pages, 10)
    assert change.before == row_cell(0, [name, age])


def test_preimage_has_only_columns_older_than_the_change() -> None:
    """A write of another column may arrive first, with a later time."""
    older, newer = ColumnValue(1, 3, b"v"), ColumnValue(2, 7, b"v")
    written = row(b"k", row_cell(0, [ColumnValue(3, 5, b"w")]))
    for kept, before in (([older, newer], row_cell(0, [older])), ([newer], None)):
        logged_row = log_row(written, row_cell(0, kept))
        assert change_of(logged_row.key, logged_row.value).before == before


def test_merged_page_ends_where_the_shortest_of_its_pages_ends() -> None:
    early, late = (log_row(row(b"k", Cell(at, False, b"v")), None) for at in (3, 8))
    changes, upto_us = merged([page(5, early), page(9, early, late)], 10)
    assert ([c.time_us for c in changes], upto_us) == ([3], 5)


def test_winner_of_writes_with_equal_timestamps_comes_last() -> None:
    cells = [Cell(5, False, b"b"), Cell(5, True, b""), Cell(5, False, b"a")]
    rows = [log_row(row(b"k", cell), None) for cell in cells]
    changes, _ = merged([page(9, *rows[:2]), page(9, *rows[1:])], 1)
    assert [(c.kind, c.value) for c in changes] == [(False, b"a"), (False, b"b"), (True, b"")]


async def test_acknowledged_changes_are_read_in_order_from_any_quorum(
    cluster: Cluster,
) -> None:
    expected = list[tuple[int, bytes, bytes]]()
    for number in range(30):
        cluster.away = f"n{1 + number % 3}"
        key, value = f"key {number % 4}", b"value %d" % number
        timestamp = await cluster.put(key, value, Consistency.QUORUM)
        expected.append((timestamp, key.encode(), value))
        cluster.now_us += 1000
    cluster.wait_out_window()
    for away in ("", "n1", "n2", "n3"):
        cluster.away = away
        found = await cluster.read(limit=7)
        assert [(c.time_us, c.key, c.value) for c in found] == expected


async def test_change_has_the_value_before_it_as_preimage(cluster: Cluster) -> None:
    for value in (b"one", b"two", None, b"three"):
        await cluster.put("k", value)
    cluster.wait_out_window()
    images = [change.before and change.before.value for change in await cluster.read()]
    assert images == [None, b"one", b"two", None]


async def test_no_change_is_read_before_its_window_has_passed(cluster: Cluster) -> None:
    """A slow write of an earlier time may still be acknowledged."""
    await cluster.put("k", b"v")
    cluster.now_us += 1000 * cluster.coordination.window_ms - 1
    early = await cluster.changes.read(TABLE, b"", "", 100)
    assert (early.changes, early.more) == ([], False)
    cluster.now_us += 1
    assert [c.value for c in await cluster.read(after=early.cursor)] == [b"v"]


async def test_each_change_is_in_exactly_one_stream(cluster: Cluster) -> None:
    keys = [f"key {number}" for number in range(40)]
    for key in keys:
        await cluster.put(key, b"v")
    cluster.wait_out_window()
    *_, newest = (await cluster.changes.streams(TABLE)).sets
    found = [
        c.key.decode() for s in newest.streams for c in await cluster.read(bytes.fromhex(s.stream))
    ]
    assert sorted(found) == sorted(keys)


async def test_a_stream_of_an_earlier_generation_ends_where_the_next_begins(
    cluster: Cluster,
) -> None:
    cluster.world.start_join()
    cluster.world.advance()
    await cluster.catch_up()
    *_, before, newest = (await cluster.changes.streams(TABLE)).sets
    assert before.until_ms == newest.since_ms
    cluster.now_us = 1000 * newest.since_ms
    cluster.wait_out_window()
    page = await cluster.changes.read(TABLE, bytes.fromhex(before.streams[0].stream), "", 100)
    assert page.ended and page.changes == []
    page = await cluster.changes.read(TABLE, bytes.fromhex(newest.streams[0].stream), "", 100)
    assert not page.ended


async def test_a_cursor_older_than_the_log_is_refused(cluster: Cluster) -> None:
    cursor = (await cluster.changes.read(TABLE, b"", "", 100)).cursor
    cluster.now_us += 25 * 3600 * SECOND_US
    with pytest.raises(RequestRefused) as refused:
        await cluster.changes.read(TABLE, b"", cursor, 100)
    assert refused.value.code == "cdc_cursor_expired"


@pytest.mark.parametrize(
    ("table", "stream", "after", "code"),
    [
        ("library.plain", b"", "", "cdc_not_enabled"),
        ("library.none", b"", "", "unknown_table"),
        (TABLE, bytes(16), "", "unknown_stream"),
        (TABLE, b"short", "", "unknown_stream"),
        (TABLE, b"", "x", "bad_cursor"),
        (TABLE, b"", "-1", "bad_cursor"),
        (TABLE, b"", "0x1", "bad_cursor"),
        (TABLE, b"", "f" * 14, "bad_cursor"),
        (TABLE, b"", "f" * 5000, "bad_cursor"),
    ],
)
async def test_invalid_read_of_changes_is_refused(
    cluster: Cluster, table: str, stream: bytes, after: str, code: str
) -> None:
    cluster.world.apply(CreateTable("library.plain"))
    with pytest.raises(RequestRefused) as refused:
        await cluster.changes.read(table, stream, after, 100)
    assert refused.value.code == code


def write(cluster: Cluster, timestamp: int, **more: bool) -> Write:
    image = cluster.world.image
    return Write(
        version=image.topology.version,
        epoch=image.epoch,
        coordinating="n2",
        data_id=cluster.data_id(),
        token=token_of(b"k"),
        key=b"k",
        cell=Cell(timestamp, False, b"v"),
        **more,  # type: ignore[arg-type]
    )


async def test_captured_write_outside_of_the_time_window_is_refused(cluster: Cluster) -> None:
    window_us = 1000 * cluster.coordination.window_ms
    late, early = cluster.now_us - window_us, cluster.now_us + 6 * SECOND_US
    ops = [write(cluster, late), write(cluster, early), write(cluster, cluster.now_us)]
    answers = await cluster.replicas["n1"].serve(ops)
    assert [answer.code for answer in answers] == [Code.UNTIMELY, Code.UNTIMELY, Code.OK]
    assert [c.time_us for c in await logged(cluster.stores["n1"], log_of(cluster))] == [
        cluster.now_us
    ]


def opaque(key: str, value: bytes | None) -> WriteOf:
    return lambda image: write_of(image, DataPath(TABLE, key, key.encode()), value)


def coordinating(cluster: Cluster, clock: HybridClock) -> Coordination:
    return Coordination("n1", cluster.follower, cluster.sessions, cluster.send, clock, 5.0)


async def test_future_timestamps_of_other_tables_do_not_shift_changes(
    cluster: Cluster,
) -> None:
    """A node whose clock is ahead wrote to a table without a log."""
    raised = HybridClock(lambda: cluster.now_us, cluster.now_us + 60 * SECOND_US)
    written = await coordinating(cluster, raised).write(
        TABLE, opaque("k", b"v"), Consistency.QUORUM
    )
    assert written.timestamp == cluster.now_us


async def test_replicas_refuse_writes_of_a_fast_clock_and_keep_their_own_time(
    cluster: Cluster,
) -> None:
    ahead = HybridClock(lambda: cluster.now_us + 60 * SECOND_US)
    with pytest.raises(RequestRefused) as refused:
        await coordinating(cluster, ahead).write(TABLE, opaque("k", b"v"), Consistency.QUORUM)
    # the third replica may not have answered yet, and the outcome is unknown then
    reason = refused.value.__cause__ or refused.value
    assert isinstance(reason, RequestRefused)
    assert reason.code == "cdc_write_untimely"
    assert await logged(cluster.stores["n1"], log_of(cluster)) == []
    assert await cluster.put("k", b"w") == cluster.now_us


async def test_key_with_a_future_timestamp_refuses_changes_until_that_time(
    cluster: Cluster,
) -> None:
    ahead = StoredCell(
        cluster.data_id(), token_of(b"k"), b"k", cluster.now_us + 60 * SECOND_US, False, b""
    )
    for store in cluster.stores.values():
        await store.write([ahead])
    with pytest.raises(RequestRefused) as refused:
        await cluster.put("k", b"v")
    assert refused.value.code == "cdc_write_from_the_future"
    cluster.now_us += 60 * SECOND_US
    await cluster.put("k", b"v")


async def test_read_repair_logs_a_change_only_for_a_recent_cell(
    cluster: Cluster,
) -> None:
    old, new = cluster.now_us - 3600 * SECOND_US, cluster.now_us
    ops = [write(cluster, old, settles=True), write(cluster, new, settles=True)]
    assert [a.code for a in await cluster.replicas["n1"].serve(ops)] == [Code.OK, Code.OK]
    found = await logged(cluster.stores["n1"], log_of(cluster))
    assert [change.time_us for change in found] == [new]


async def test_replica_logs_a_change_if_the_sender_captures_the_table(cluster: Cluster) -> None:
    """The sender or the replica may not have read yet that the table is captured."""
    cluster.world.apply(AlterTable(TABLE, reset=("cdc",)))
    await cluster.catch_up()
    ops = [write(cluster, cluster.now_us, captured=True)]
    assert [a.code for a in await cluster.replicas["n1"].serve(ops)] == [Code.OK]
    assert len(await logged(cluster.stores["n1"], log_of(cluster))) == 1


def log_of(cluster: Cluster) -> str:
    return change_log_of(cluster.data_id())


async def test_change_log_is_streamed_with_its_table(cluster: Cluster) -> None:
    world = cluster.world
    world.start_join()
    world.advance()
    (transition,) = world.image.topology.open()
    portions = portions_of(world.image, transition, "n4", {}, set())
    asked = {data_id for portion in portions for data_id in portion.data_ids}
    assert asked == {world.keyspace_id, cluster.data_id(), log_of(cluster)}


async def test_cleanup_deletes_the_change_log_with_the_rows(cluster: Cluster) -> None:
    world = cluster.world
    for number in range(60):
        await cluster.put(f"key-{number}", b"v")
    world.start_join()
    for _ in range(4):
        world.advance()
    world.fence()
    store, order = cluster.stores["n1"], world.cleanup_order()
    await Cleaner("n1", await world.follower(), store, tuple).run(order, OrderProgress())
    own = [f"key-{n}".encode() for n in range(60)]
    own = [key for key in own if "n1" in world.row(key).writes]
    assert 0 < len(own) < 60
    assert sorted(c.key for c in await logged(store, log_of(cluster))) == sorted(own)


async def test_truncation_deletes_the_change_log_of_the_old_data(cluster: Cluster) -> None:
    world, store, old = cluster.world, cluster.stores["n1"], log_of(cluster)
    await cluster.put("k", b"old")
    world.apply(Truncate(TABLE), "truncate")
    world.open("truncate")
    await cluster.catch_up()
    await cluster.put("k", b"new")
    order = world.order(OrderKind.TRUNCATE)
    assert await store.change_logs() == [old, log_of(cluster)]
    await Truncator(cluster.follower, store).run(order, OrderProgress())
    assert await store.change_logs() == [log_of(cluster)] != [old]


async def test_changes_are_deleted_after_their_ttl_and_when_cdc_is_reset(
    cluster: Cluster,
) -> None:
    store, world, day_us = cluster.stores["n1"], cluster.world, 24 * 3600 * SECOND_US
    first = await cluster.put("k", b"v")
    cluster.now_us += SECOND_US
    await cluster.put("k", b"w")
    assert await expire(store, world.image, first + day_us) == 0
    assert await expire(store, world.image, first + day_us + 1) == 1
    assert [c.value for c in await logged(store, log_of(cluster))] == [b"w"]
    world.apply(AlterTable(TABLE, TableOptions(cdc="{'ttl': 0}")))
    assert await expire(store, world.image, cluster.now_us + 100 * day_us) == 0
    world.apply(AlterTable(TABLE, reset=("cdc",)))
    assert await expire(store, world.image, cluster.now_us + 1) == 1
    assert await store.change_logs() == []


async def test_changes_of_a_table_with_columns_have_the_written_columns(cluster: Cluster) -> None:
    create_tables(cluster.world)
    parameters = {"cdc": "{'enabled': 'true', 'preimage': 'true'}"}
    alter(cluster.world, PLAYS, parameters=parameters)
    key = "se/2026-11-29/10:00:00/hey"
    for row in ({"listener": "ada"}, {"listener": None}, None, {}):
        await cluster.coordination.write(PLAYS, writes(key, row, PLAYS), Consistency.ALL)
        cluster.now_us += SECOND_US
    alter(cluster.world, PLAYS, rename={"song": "title"})
    await cluster.coordination.write(
        PLAYS, writes("se/2026-11-29", {"total": 3}, PLAYS), Consistency.ALL
    )
    cluster.now_us += 60 * SECOND_US
    page = await cluster.changes.read(PLAYS, b"", "", 100)
    plays = {"country": "se", "day": "2026-11-29", "at": "10:00:00.000000000", "title": "hey"}
    assert [(c.operation, c.row, c.row_before) for c in page.changes] == [
        ("put", {**plays, "listener": "ada"}, None),
        ("put", {**plays, "listener": None}, {**plays, "listener": "ada"}),
        ("delete", plays, {**plays, "listener": None}),
        ("put", plays, None),
        ("put", {"country": "se", "day": "2026-11-29", "total": 3}, None),
    ]
