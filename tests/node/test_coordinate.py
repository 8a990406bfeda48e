"""Quorum reads and writes against replicas that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from stele.agent.judging import Code
from stele.domain.commands import CreateKeyspace
from stele.domain.fencing import VersionTracker
from stele.domain.image import Image
from stele.domain.membership.image import MembershipImage
from stele.domain.names import NodeState
from stele.node.cells import TOMBSTONE, Cell, HybridClock, stamp_of
from stele.node.coordinate import Consistency, Coordination, OutcomeUnknown, PlaceOf, RequestRefused
from stele.node.table_rows import DataPath, place_of, write_of
from stele.node.wire import Answer, AnyOp, Read, ReadMode, Write
from tests.domain.history import join
from tests.node.world import KEYSPACE, World, until

QUORUM, ONE, ALL = Consistency.QUORUM, Consistency.ONE, Consistency.ALL
KEY = b"k"


def place(name: str, key: bytes) -> PlaceOf:
    return partial(place_of, path=DataPath(name, key.decode(), key))


class Replicas:
    """n1 to n4, each a dict of cells, and what is wrong with them."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[bytes, Cell]] = {f"n{n}": {} for n in range(1, 5)}
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.full: set[str] = set()
        self.fence = 0
        self.fence_epoch = 0
        self.on_op: Callable[[str, AnyOp], None] = lambda node_id, op: None
        self.sent: list[tuple[str, AnyOp]] = []
        self.unanswered: list[asyncio.Future[Answer]] = []

    def __call__(
        self, image: Image, node_id: str, op: AnyOp, until: float
    ) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.sent.append((node_id, op))
        self.on_op(node_id, op)
        if node_id in self.silent:
            self.unanswered.append(future)
        elif node_id in self.down:
            future.set_result(Answer(Code.UNREACHABLE, text="refused"))
        elif node_id in self.refusing:
            future.set_result(Answer(Code.NOT_A_REPLICA, text="no replica"))
        elif node_id in self.full and isinstance(op, Write):
            future.set_result(Answer(Code.DISK_FULL, text="full"))
        elif op.version < self.fence:
            future.set_result(Answer(Code.STALE_VERSION, epoch=self.fence_epoch))
        else:
            future.set_result(self._answer(self.cells[node_id], op))
        return future

    def having(self, cell: Cell) -> set[str]:
        return {n for n, cells in self.cells.items() if cells.get(KEY) == cell}

    def put(self, nodes: str, cell: Cell, key: bytes = KEY) -> None:
        for node_id in nodes.split():
            self.cells[node_id][key] = cell

    def _answer(self, cells: dict[bytes, Cell], op: AnyOp) -> Answer:
        known = cells.get(op.key)
        if isinstance(op, Write):
            if known is not None and known > op.cell:
                return Answer(Code.SUPERSEDED, known.timestamp)
            cells[op.key] = op.cell
            return Answer(Code.OK)
        assert isinstance(op, Read)
        if op.mode is ReadMode.TIMESTAMP:
            return Answer(Code.OK, known.timestamp if known else 0)
        if known is None:
            return Answer(Code.OK)
        if op.mode is ReadMode.STAMP:
            return Answer(Code.OK, stamp=stamp_of(known))
        return Answer(Code.OK, cell=known)


class Bench:
    def __init__(self, coordination: Coordination, replicas: Replicas) -> None:
        self.coordination, self.replicas = coordination, replicas
        self.versions = VersionTracker()
        self.now_us = 1000

    async def write(
        self, value: bytes | None, consistency: Consistency = QUORUM, key: bytes = KEY
    ) -> tuple[int, set[str]]:
        path = DataPath(KEYSPACE, key.decode(), key)
        written = await self.coordination.write(
            KEYSPACE, partial(write_of, path=path, body=value), consistency
        )
        return written.timestamp, set(written.acks)

    async def read(self, consistency: Consistency = QUORUM, key: bytes = KEY) -> Cell | None:
        return (await self.coordination.read(KEYSPACE, place(KEYSPACE, key), consistency)).cell


@pytest.fixture
async def bench(world: World) -> Bench:
    follower = await world.follower()
    replicas = Replicas()
    found = Bench.__new__(Bench)
    versions = VersionTracker()
    coordination = Coordination(
        "n1", follower, versions, replicas, HybridClock(lambda: found.now_us), timeout_s=0.3
    )
    found.__init__(coordination, replicas)  # type: ignore[misc]
    found.versions = versions
    return found


async def test_a_write_is_read_back_and_a_deletion_too(bench: Bench) -> None:
    timestamp, acks = await bench.write(b"v")
    assert len(acks) >= 2
    assert await bench.read() == Cell(timestamp, False, b"v")
    await bench.write(None)
    found = await bench.read()
    assert found is not None and found.kind == TOMBSTONE
    assert await bench.read(key=b"never") is None


async def test_one_dead_replica_is_no_obstacle_and_two_are(bench: Bench) -> None:
    bench.replicas.down = {"n2"}
    await bench.write(b"v")
    assert (await bench.read()) is not None
    bench.replicas.down = {"n2", "n3"}
    for request in (bench.write(b"w"), bench.read()):
        with pytest.raises(RequestRefused) as refused:
            await request
        assert (refused.value.status, refused.value.code) == (503, "unavailable")
        assert refused.value.details["n2"] == "unreachable: refused"
    _, acks = await bench.write(b"one", ONE)
    assert acks == {"n1"}


async def test_consistency_all_needs_every_replica(bench: Bench) -> None:
    bench.replicas.down = {"n3"}
    with pytest.raises(RequestRefused, match="Too few of its replicas n1, n2, n3"):
        await bench.write(b"v", ALL)
    with pytest.raises(RequestRefused, match="Too few of its replicas n1, n2, n3"):
        await bench.read(ALL)


async def test_replicas_that_do_not_answer_end_the_request_in_time(bench: Bench) -> None:
    bench.replicas.silent = {"n2", "n3"}
    with pytest.raises(RequestRefused) as refused:
        await bench.write(b"v")
    assert refused.value.details["n2"] == "did not answer in time"


async def test_a_later_write_wins_although_its_clock_is_behind(bench: Bench) -> None:
    """Another node's acknowledged write carries a timestamp from the future."""
    bench.replicas.put("n2 n3", Cell(9_000_000, False, b"from a fast clock"))
    timestamp, _ = await bench.write(b"later")
    assert timestamp > 9_000_000
    assert (await bench.read()) == Cell(timestamp, False, b"later")


async def test_a_concurrent_newer_write_counts_as_done(bench: Bench) -> None:
    """It came after the timestamps were asked, so the two writes are concurrent."""

    def overtake(node_id: str, op: AnyOp) -> None:
        if isinstance(op, Write):
            bench.replicas.put("n1 n2 n3", Cell(op.cell.timestamp + 1, False, b"other"))

    bench.replicas.on_op = overtake
    _, acks = await bench.write(b"mine")
    assert len(acks) >= 2


async def test_a_read_repairs_before_it_answers(bench: Bench) -> None:
    old, new = Cell(1, False, b"old"), Cell(2, False, b"new")
    bench.replicas.put("n1 n2 n3", old)
    bench.replicas.put("n3", new)
    bench.replicas.down = {"n2"}
    assert await bench.read() == new
    assert bench.replicas.having(new) == {"n1", "n3"}
    bench.replicas.down = {"n3"}
    assert await bench.read() == new  # monotonic: n1 and n2 alone give no less
    assert bench.coordination.repairs == 2


async def test_a_read_that_cannot_repair_does_not_answer(bench: Bench) -> None:
    bench.replicas.put("n3", Cell(2, False, b"seen by nobody else"))
    bench.replicas.down = {"n2"}

    def refuse_writes(node_id: str, op: AnyOp) -> None:
        if isinstance(op, Write):
            bench.replicas.down = {"n1", "n2"}

    bench.replicas.on_op = refuse_writes
    with pytest.raises(RequestRefused, match="Too few of its replicas n1, n2, n3"):
        await bench.read()


async def test_equal_timestamps_are_decided_the_same_everywhere(bench: Bench) -> None:
    small, great = Cell(5, False, b"a"), Cell(5, False, b"b")
    bench.replicas.put("n1", small)
    bench.replicas.put("n2 n3", great)
    bench.replicas.silent = {"n3"}
    assert await bench.read() == great
    assert bench.replicas.cells["n1"][KEY] == great


async def test_only_one_replica_is_asked_for_the_value(bench: Bench) -> None:
    await bench.write(b"v")
    bench.replicas.sent.clear()
    await bench.read()
    modes = {node_id: op.mode for node_id, op in bench.replicas.sent if isinstance(op, Read)}
    assert bench.coordination.repairs == 0
    assert modes == {"n1": ReadMode.CELL, "n2": ReadMode.STAMP, "n3": ReadMode.STAMP}


@pytest.mark.parametrize("what", ["down", "silent"])
async def test_a_value_is_read_though_the_replica_that_was_asked_for_it_does_not_answer(
    bench: Bench, what: str
) -> None:
    """The others agree on a stamp: that is a value, and not that there is none."""
    timestamp, _ = await bench.write(b"v")
    setattr(bench.replicas, what, {"n1"})
    assert await bench.read() == Cell(timestamp, False, b"v")


async def test_while_ranges_move_writes_go_to_both_sets_and_need_more_acks(
    world: World, bench: Bench
) -> None:
    world.start_join()
    world.advance()
    key = world.key(lambda row: len(row.writes) == 4)
    row = world.row(key)
    bench.replicas.silent = {next(n for n in row.reads if n not in row.other)}
    _, acks = await bench.write(b"v", key=key)
    assert len(acks & {*row.reads}) >= 2
    assert len(acks & {*row.other}) >= 2
    bench.replicas.silent = set()
    await bench.write(b"v", key=key)
    assert {n for n, cells in bench.replicas.cells.items() if key in cells} == {
        "n1",
        "n2",
        "n3",
        "n4",
    }
    bench.replicas.down = {"n2", "n3"}
    with pytest.raises(RequestRefused):
        await bench.write(b"w", key=key)


async def test_while_ranges_move_a_read_leaves_its_result_with_both_sets(
    world: World, bench: Bench
) -> None:
    """Else a reader of the next version could find less than this one did."""
    world.start_join()
    world.advance()
    key = world.key(lambda row: len(row.writes) == 4 and "n3" in row.other)
    cell = Cell(3, False, b"acknowledged by nobody")
    bench.replicas.put("n1 n2 n3", cell, key)
    bench.replicas.silent = {"n3"}
    assert await bench.read(key=key) == cell
    assert bench.replicas.cells["n4"][key] == cell


async def test_a_stale_version_reads_the_log_and_tries_again(world: World, bench: Bench) -> None:
    world.start_join()
    before = bench.coordination._follower.image
    bench.replicas.fence, bench.replicas.fence_epoch = world.version + 1, world.image.epoch + 1

    def advance(node_id: str, op: AnyOp) -> None:
        bench.replicas.on_op = lambda node_id, op: None
        asyncio.get_running_loop().call_later(0.02, world.advance)

    bench.replicas.on_op = advance
    path = DataPath(KEYSPACE, KEY.decode(), KEY)
    write = partial(write_of, path=path, body=b"v")
    written = await bench.coordination.write(KEYSPACE, write, QUORUM)
    assert written.version == before.topology.version + 1
    assert bench.coordination.retries >= 1


async def test_a_version_that_stays_stale_ends_in_a_clear_answer(bench: Bench) -> None:
    bench.replicas.fence = 10_000
    with pytest.raises(RequestRefused) as refused:
        await bench.write(b"v")
    assert (refused.value.status, refused.value.code) == (503, "stale_version")


async def test_the_version_is_held_until_the_last_replica_has_answered(
    world: World, bench: Bench
) -> None:
    held = world.version
    bench.replicas.silent = {"n3"}
    await bench.write(b"v")
    world.start_join()
    assert bench.versions.oldest_in_use(world.version) == held
    for future in bench.replicas.unanswered:
        future.set_result(Answer(Code.UNREACHABLE))
    await until(lambda: not bench.versions.in_use(), "the release of the version")


async def test_who_is_no_member_serves_nothing(world: World) -> None:
    world.start_join()
    world.apply(join(5), "join-n5")
    follower = await world.follower()
    for node_id in ("unknown", "n5"):
        coordination = Coordination(
            node_id, follower, VersionTracker(), Replicas(), HybridClock(lambda: 1), 0.2
        )
        with pytest.raises(RequestRefused, match="no member"):
            await coordination.read(KEYSPACE, place(KEYSPACE, KEY), QUORUM)


def then(bench: Bench, place: int, happens: Callable[[], object]) -> None:
    """Call this when a number of replicas has got the write, before the last of them answers."""
    asked = 0

    def on_op(_: str, op: AnyOp) -> None:
        nonlocal asked
        asked += isinstance(op, Write)
        if asked == place:
            bench.replicas.on_op = lambda node_id, op: None
            happens()

    bench.replicas.on_op = on_op


def stored(bench: Bench) -> int:
    return sum(KEY in cells for cells in bench.replicas.cells.values())


async def unknown(bench: Bench, said: str) -> OutcomeUnknown:
    with pytest.raises(OutcomeUnknown, match="may have taken effect") as raised:
        await bench.write(b"v")
    assert (raised.value.status, raised.value.code) == (503, "outcome_unknown")
    assert said in raised.value.message
    return raised.value


async def test_a_write_whose_keyspace_is_dropped_meanwhile_is_unknown(
    world: World, bench: Bench
) -> None:
    """One replica has it; made again under the name, the keyspace shows it: it is no 404."""

    def drop() -> None:
        world.drop()
        bench.replicas.refusing = {"n1", "n2", "n3"}

    then(bench, 2, drop)
    await unknown(bench, "There is no keyspace")
    assert stored(bench) == 1


async def test_a_write_whose_node_leaves_meanwhile_is_unknown(bench: Bench) -> None:
    fold = bench.coordination._follower.fold

    def leave() -> None:
        image = fold.image
        node = image.node("n1")
        assert node is not None
        left = msgspec.structs.replace(node, state=NodeState.LEFT)
        membership = MembershipImage(image.membership.nodes.set("n1", left))
        fold.image = msgspec.structs.replace(image, epoch=image.epoch + 1, membership=membership)
        bench.replicas.refusing = {"n1", "n2", "n3"}

    then(bench, 2, leave)
    await unknown(bench, "has left the cluster")
    assert stored(bench) == 1


async def test_a_write_whose_version_becomes_stale_after_one_has_it_is_unknown(
    bench: Bench,
) -> None:
    def fence() -> None:
        bench.replicas.fence = 10_000

    then(bench, 2, fence)
    await unknown(bench, "is fenced out and no newer one came in time")
    assert stored(bench) == 1


async def test_a_write_that_times_out_is_unknown(bench: Bench) -> None:
    def silence() -> None:
        bench.replicas.silent = {"n1", "n2", "n3"}

    then(bench, 2, silence)
    refused = await unknown(bench, "Too few of its replicas n1, n2, n3")
    assert [*refused.details.values()].count("did not answer in time") == 2


async def test_a_call_that_breaks_off_may_have_arrived(bench: Bench) -> None:
    def cut() -> None:
        bench.replicas.down = {"n1", "n2", "n3"}

    then(bench, 1, cut)
    await unknown(bench, "Too few of its replicas n1, n2, n3")


async def test_a_write_that_nothing_was_sent_of_is_refused_as_not_done(
    world: World, bench: Bench
) -> None:
    bench.replicas.down = {"n2", "n3"}  # not even the timestamps can be asked
    for request in (bench.write(b"v"), bench.read()):
        with pytest.raises(RequestRefused, match="do it in time: not n2, n3") as refused:
            await request
        assert (refused.value.status, refused.value.code) == (503, "unavailable")
    world.drop()
    with pytest.raises(RequestRefused) as refused:
        await bench.write(b"v")
    assert (refused.value.status, refused.value.code) == (404, "unknown_keyspace")
    assert not any(bench.replicas.cells.values())


async def test_a_write_that_every_disk_was_too_full_for_is_refused_as_not_done(
    bench: Bench,
) -> None:
    bench.replicas.full = {"n1", "n2", "n3"}
    with pytest.raises(RequestRefused, match="The disks of n1, n2, n3 are full") as refused:
        await bench.write(b"v")
    assert (refused.value.status, refused.value.code) == (503, "disk_full")
    assert not any(bench.replicas.cells.values())
    bench.replicas.full = {"n2", "n3"}
    await unknown(bench, "The disks of n2, n3 are full")
    bench.replicas.full = {"n3"}
    await bench.write(b"v")
    assert (await bench.read()) is not None


async def test_a_write_that_some_refused_and_one_may_yet_do_is_unknown(bench: Bench) -> None:
    bench.replicas.full, bench.replicas.silent = {"n1", "n2"}, {"n3"}
    with pytest.raises(OutcomeUnknown, match="may have taken effect"):
        await bench.write(b"v")


async def test_an_unknown_keyspace_is_said_to_be_unknown(bench: Bench) -> None:
    with pytest.raises(RequestRefused) as refused:
        await bench.coordination.read("nothing", place("nothing", KEY), QUORUM)
    assert (refused.value.status, refused.value.code) == (404, "unknown_keyspace")


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("nothing", "unknown_keyspace", "`stele keyspace list` shows them."),
        ("music.nothing", "unknown_table", "`stele table list` shows them."),
        ("music", "keyspace_with_tablets", "Name a table, as in 'music.TABLE'"),
    ],
)
async def test_what_serves_nothing_is_told_apart(
    world: World, bench: Bench, name: str, code: str, hint: str
) -> None:
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True))
    with pytest.raises(RequestRefused) as refused:
        await bench.coordination.read(name, place(name, KEY), QUORUM)
    assert (refused.value.status, refused.value.code) == (404, code)
    assert refused.value.hint.startswith(hint)
