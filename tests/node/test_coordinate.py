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
from stele.domain.model.membership import MembershipImage
from stele.domain.names import NodeState
from stele.node.cells import TOMBSTONE, Cell, HybridClock, stamp_of
from stele.node.coordinate import Consistency, Coordination, OutcomeUnknown, PlaceOf, RequestRefused
from stele.node.table_rows import DataPath, place_of, write_of
from stele.node.wire import Answer, AnyOp, Read, ReadMode, Write
from tests.domain.history import join
from tests.node.world import KEYSPACE, World
from tests.polling import until

QUORUM, ONE, ALL = Consistency.QUORUM, Consistency.ONE, Consistency.ALL
KEY = b"k"


def place(name: str, key: bytes) -> PlaceOf:
    return partial(place_of, path=DataPath(name, key.decode(), key))


class Replicas:
    """n1 to n4, each a dict of cells, with their faults."""

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


class CoordinationHarness:
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
async def harness(world: World) -> CoordinationHarness:
    follower = await world.follower()
    replicas = Replicas()
    found = CoordinationHarness.__new__(CoordinationHarness)
    versions = VersionTracker()
    coordination = Coordination(
        "n1", follower, versions, replicas, HybridClock(lambda: found.now_us), timeout_s=0.3
    )
    found.__init__(coordination, replicas)  # type: ignore[misc]
    found.versions = versions
    return found


async def test_writes_and_deletions_are_read_back(harness: CoordinationHarness) -> None:
    timestamp, acks = await harness.write(b"v")
    assert len(acks) >= 2
    assert await harness.read() == Cell(timestamp, False, b"v")
    await harness.write(None)
    found = await harness.read()
    assert found is not None and found.kind == TOMBSTONE
    assert await harness.read(key=b"never") is None


async def test_quorum_requests_succeed_with_one_dead_replica_and_fail_with_two(
    harness: CoordinationHarness,
) -> None:
    harness.replicas.down = {"n2"}
    await harness.write(b"v")
    assert (await harness.read()) is not None
    harness.replicas.down = {"n2", "n3"}
    for request in (harness.write(b"w"), harness.read()):
        with pytest.raises(RequestRefused) as refused:
            await request
        assert (refused.value.status, refused.value.code) == (503, "unavailable")
        assert refused.value.details["n2"] == "unreachable: refused"
    _, acks = await harness.write(b"one", ONE)
    assert acks == {"n1"}


async def test_consistency_all_needs_every_replica(harness: CoordinationHarness) -> None:
    harness.replicas.down = {"n3"}
    with pytest.raises(RequestRefused, match="Too few of the replicas n1, n2, n3"):
        await harness.write(b"v", ALL)
    with pytest.raises(RequestRefused, match="Too few of the replicas n1, n2, n3"):
        await harness.read(ALL)


async def test_later_write_wins_despite_a_slow_clock(harness: CoordinationHarness) -> None:
    """An acknowledged write of another node has a timestamp from the future."""
    harness.replicas.put("n2 n3", Cell(9_000_000, False, b"from a fast clock"))
    timestamp, _ = await harness.write(b"later")
    assert timestamp > 9_000_000
    assert (await harness.read()) == Cell(timestamp, False, b"later")


async def test_write_overtaken_by_a_newer_concurrent_write_succeeds(
    harness: CoordinationHarness,
) -> None:
    """It arrives after the timestamps were read, so the two writes are concurrent."""

    def overtake(node_id: str, op: AnyOp) -> None:
        if isinstance(op, Write):
            harness.replicas.put("n1 n2 n3", Cell(op.cell.timestamp + 1, False, b"other"))

    harness.replicas.on_op = overtake
    _, acks = await harness.write(b"mine")
    assert len(acks) >= 2


async def test_read_repairs_replicas_before_it_answers(harness: CoordinationHarness) -> None:
    old, new = Cell(1, False, b"old"), Cell(2, False, b"new")
    harness.replicas.put("n1 n2 n3", old)
    harness.replicas.put("n3", new)
    harness.replicas.down = {"n2"}
    assert await harness.read() == new
    assert harness.replicas.having(new) == {"n1", "n3"}
    harness.replicas.down = {"n3"}
    assert await harness.read() == new  # monotonic: n1 and n2 alone give no less
    assert harness.coordination.repairs == 2


async def test_read_fails_if_it_cannot_repair_a_quorum(harness: CoordinationHarness) -> None:
    harness.replicas.put("n3", Cell(2, False, b"seen by nobody else"))
    harness.replicas.down = {"n2"}

    def refuse_writes(node_id: str, op: AnyOp) -> None:
        if isinstance(op, Write):
            harness.replicas.down = {"n1", "n2"}

    harness.replicas.on_op = refuse_writes
    with pytest.raises(RequestRefused, match="Too few of the replicas n1, n2, n3"):
        await harness.read()


async def test_equal_timestamps_are_ordered_by_value_on_every_replica(
    harness: CoordinationHarness,
) -> None:
    small, great = Cell(5, False, b"a"), Cell(5, False, b"b")
    harness.replicas.put("n1", small)
    harness.replicas.put("n2 n3", great)
    harness.replicas.silent = {"n3"}
    assert await harness.read() == great
    assert harness.replicas.cells["n1"][KEY] == great


async def test_only_one_replica_is_asked_for_the_value(harness: CoordinationHarness) -> None:
    await harness.write(b"v")
    harness.replicas.sent.clear()
    await harness.read()
    modes = {node_id: op.mode for node_id, op in harness.replicas.sent if isinstance(op, Read)}
    assert harness.coordination.repairs == 0
    assert modes == {"n1": ReadMode.CELL, "n2": ReadMode.STAMP, "n3": ReadMode.STAMP}


@pytest.mark.parametrize("what", ["down", "silent"])
async def test_value_is_read_from_another_replica_if_the_first_does_not_answer(
    harness: CoordinationHarness, what: str
) -> None:
    """The others agree on a stamp. A stamp without a cell is not a missing value."""
    timestamp, _ = await harness.write(b"v")
    setattr(harness.replicas, what, {"n1"})
    assert await harness.read() == Cell(timestamp, False, b"v")


async def test_write_to_a_moving_range_needs_a_quorum_of_both_replica_sets(
    world: World, harness: CoordinationHarness
) -> None:
    world.start_join()
    world.advance()
    key = world.key(lambda row: len(row.writes) == 4)
    row = world.row(key)
    harness.replicas.silent = {next(n for n in row.reads if n not in row.other)}
    _, acks = await harness.write(b"v", key=key)
    assert len(acks & {*row.reads}) >= 2
    assert len(acks & {*row.other}) >= 2
    harness.replicas.silent = set()
    await harness.write(b"v", key=key)
    assert {n for n, cells in harness.replicas.cells.items() if key in cells} == {
        "n1",
        "n2",
        "n3",
        "n4",
    }
    harness.replicas.down = {"n2", "n3"}
    with pytest.raises(RequestRefused):
        await harness.write(b"w", key=key)


async def test_read_of_a_moving_range_repairs_both_replica_sets(
    world: World, harness: CoordinationHarness
) -> None:
    """Otherwise a reader of the next version could find an older value."""
    world.start_join()
    world.advance()
    key = world.key(lambda row: len(row.writes) == 4 and "n3" in row.other)
    cell = Cell(3, False, b"acknowledged by nobody")
    harness.replicas.put("n1 n2 n3", cell, key)
    harness.replicas.silent = {"n3"}
    assert await harness.read(key=key) == cell
    assert harness.replicas.cells["n4"][key] == cell


async def test_request_with_a_stale_version_reads_the_log_and_retries(
    world: World, harness: CoordinationHarness
) -> None:
    world.start_join()
    before = harness.coordination._follower.image
    harness.replicas.fence, harness.replicas.fence_epoch = world.version + 1, world.image.epoch + 1

    def advance(node_id: str, op: AnyOp) -> None:
        harness.replicas.on_op = lambda node_id, op: None
        asyncio.get_running_loop().call_later(0.02, world.advance)

    harness.replicas.on_op = advance
    path = DataPath(KEYSPACE, KEY.decode(), KEY)
    write = partial(write_of, path=path, body=b"v")
    written = await harness.coordination.write(KEYSPACE, write, QUORUM)
    assert written.version == before.topology.version + 1
    assert harness.coordination.retries >= 1


async def test_request_whose_version_stays_stale_returns_503(harness: CoordinationHarness) -> None:
    harness.replicas.fence = 10_000
    with pytest.raises(RequestRefused) as refused:
        await harness.write(b"v")
    assert (refused.value.status, refused.value.code) == (503, "stale_version")


async def test_the_version_is_held_until_the_last_replica_has_answered(
    world: World, harness: CoordinationHarness
) -> None:
    held = world.version
    harness.replicas.silent = {"n3"}
    await harness.write(b"v")
    world.start_join()
    assert harness.versions.oldest_in_use(world.version) == held
    for future in harness.replicas.unanswered:
        future.set_result(Answer(Code.UNREACHABLE))
    await until(lambda: not harness.versions.in_use(), "the release of the version")


async def test_node_that_is_not_a_member_coordinates_no_requests(world: World) -> None:
    world.start_join()
    world.apply(join(5), "join-n5")
    follower = await world.follower()
    for node_id in ("unknown", "n5"):
        coordination = Coordination(
            node_id, follower, VersionTracker(), Replicas(), HybridClock(lambda: 1), 0.2
        )
        with pytest.raises(RequestRefused, match="not a member"):
            await coordination.read(KEYSPACE, place(KEYSPACE, KEY), QUORUM)


def after_replicas(harness: CoordinationHarness, place: int, happens: Callable[[], object]) -> None:
    """Call ``happens`` when ``place`` replicas have received the write, before the last of them answers."""
    asked = 0

    def on_op(_: str, op: AnyOp) -> None:
        nonlocal asked
        asked += isinstance(op, Write)
        if asked == place:
            harness.replicas.on_op = lambda node_id, op: None
            happens()

    harness.replicas.on_op = on_op


def stored(harness: CoordinationHarness) -> int:
    return sum(KEY in cells for cells in harness.replicas.cells.values())


async def write_with_unknown_outcome(harness: CoordinationHarness, said: str) -> None:
    with pytest.raises(OutcomeUnknown, match="may have taken effect") as raised:
        await harness.write(b"v")
    assert (raised.value.status, raised.value.code) == (503, "outcome_unknown")
    assert said in raised.value.message


EVERY = {"n1", "n2", "n3"}


@pytest.mark.parametrize(
    ("after", "fault", "value", "said"),
    [
        (2, "fence", 10_000, "is fenced out and no newer one came in time"),
        (2, "silent", EVERY, "Too few of the replicas n1, n2, n3"),
        (1, "down", EVERY, "Too few of the replicas n1, n2, n3"),
        (2, "dropped", EVERY, "There is no keyspace"),
    ],
)
async def test_outcome_is_unknown_after_a_fault_during_a_write(
    world: World, harness: CoordinationHarness, after: int, fault: str, value: object, said: str
) -> None:
    """One replica may have stored the write. A 404 would promise that nothing was stored."""

    def happen() -> None:
        if fault == "dropped":
            world.drop()
        setattr(harness.replicas, "refusing" if fault == "dropped" else fault, value)

    after_replicas(harness, after, happen)
    await write_with_unknown_outcome(harness, said)
    assert stored(harness) == after - 1


async def test_outcome_is_unknown_if_the_coordinating_node_leaves_during_a_write(
    harness: CoordinationHarness,
) -> None:
    fold = harness.coordination._follower.fold

    def leave() -> None:
        image = fold.image
        node = image.node("n1")
        assert node is not None
        left = msgspec.structs.replace(node, state=NodeState.LEFT)
        membership = MembershipImage(image.membership.nodes.set("n1", left))
        fold.image = msgspec.structs.replace(image, epoch=image.epoch + 1, membership=membership)
        harness.replicas.refusing = {"n1", "n2", "n3"}

    after_replicas(harness, 2, leave)
    await write_with_unknown_outcome(harness, "has left the cluster")
    assert stored(harness) == 1


async def test_write_that_reached_no_replica_is_refused_as_not_done(
    world: World, harness: CoordinationHarness
) -> None:
    harness.replicas.down = {"n2", "n3"}  # the timestamps cannot be read either
    for request in (harness.write(b"v"), harness.read()):
        with pytest.raises(RequestRefused, match="in time: n2, n3 did not") as refused:
            await request
        assert (refused.value.status, refused.value.code) == (503, "unavailable")
    world.drop()
    with pytest.raises(RequestRefused) as refused:
        await harness.write(b"v")
    assert (refused.value.status, refused.value.code) == (404, "unknown_keyspace")
    assert not any(harness.replicas.cells.values())


async def test_write_is_refused_as_not_done_only_if_all_disks_are_full(
    harness: CoordinationHarness,
) -> None:
    harness.replicas.full = {"n1", "n2", "n3"}
    with pytest.raises(RequestRefused, match="The disks of n1, n2, n3 are full") as refused:
        await harness.write(b"v")
    assert (refused.value.status, refused.value.code) == (503, "disk_full")
    assert not any(harness.replicas.cells.values())
    harness.replicas.full = {"n2", "n3"}
    await write_with_unknown_outcome(harness, "The disks of n2, n3 are full")
    harness.replicas.full = {"n3"}
    await harness.write(b"v")
    assert (await harness.read()) is not None


async def test_outcome_is_unknown_if_a_silent_replica_may_still_apply_the_write(
    harness: CoordinationHarness,
) -> None:
    harness.replicas.full, harness.replicas.silent = {"n1", "n2"}, {"n3"}
    with pytest.raises(OutcomeUnknown, match="may have taken effect"):
        await harness.write(b"v")


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("nothing", "unknown_keyspace", "`stele keyspace list` shows them."),
        ("music.nothing", "unknown_table", "`stele table list` shows them."),
        ("music", "keyspace_with_tablets", "Name a table, as in 'music.TABLE'"),
    ],
)
async def test_invalid_names_are_rejected_with_separate_codes(
    world: World, harness: CoordinationHarness, name: str, code: str, hint: str
) -> None:
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True))
    with pytest.raises(RequestRefused) as refused:
        await harness.coordination.read(name, place(name, KEY), QUORUM)
    assert (refused.value.status, refused.value.code) == (404, code)
    assert refused.value.hint.startswith(hint)
