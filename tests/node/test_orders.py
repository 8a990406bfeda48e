"""Orders that are repeated, late or of an older term, and work that is already running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from stele.agent.orders import OrderExecutor, OrderProgress
from stele.domain.commands import Advance, ClaimCoordinator, Move
from stele.domain.messages import Order, Report, StreamedFrom
from stele.domain.model.features import REPORT_SOURCES
from stele.domain.names import OrderKind, ReportStatus
from stele.log.codec import decode_report, encode_report
from stele.node.commits import uncancelled
from tests.domain.history import join
from tests.node.world import TERM, World
from tests.polling import until

RUNNING, SUCCESS, FAILED = ReportStatus.RUNNING, ReportStatus.SUCCESS, ReportStatus.FAILED


class ExecutorHarness:
    """An OrderExecutor whose work waits for ``go_on``."""

    executor: OrderExecutor

    def __init__(self, world: World) -> None:
        self.world = world
        self.reports: list[Report] = []
        self.runs = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def work(self, order: Order, progress: OrderProgress) -> None:
        self.runs += 1
        progress.bytes_total = 100
        progress.add(60, 6, "n2")
        progress.add_compared(7, "n3")
        await self.go_on.wait()
        if self.error is not None:
            raise self.error

    def order(self, index: int, term: int = 1, session: str = "", **more: object) -> Order:
        fields = {
            "node_id": "n1",
            "kind": OrderKind.STREAM,
            "epoch": self.world.image.epoch,
            "session": session or self.world.session,
            **more,
        }
        return Order(term=term, index=index, **fields)  # type: ignore[arg-type]

    def offer(self, order: Order) -> None:
        self.executor.offer(order)

    def work_of_all_kinds(self) -> None:
        self.executor._handlers = dict.fromkeys(OrderKind, self.work)

    async def reported(self, status: ReportStatus, index: int) -> Report:
        def found() -> list[Report]:
            return [r for r in self.reports if r.status is status and r.index == index]

        await until(found, f"{status} for order {index}; there is {self.reports}")
        return found()[-1]


@pytest.fixture
async def harness(world: World) -> AsyncIterator[ExecutorHarness]:
    world.start_join()
    world.advance()
    world.fence()
    harness = ExecutorHarness(world)
    work = {OrderKind.STREAM: harness.work}
    harness.executor = OrderExecutor("n1", await world.follower(), work, harness.reports.append)
    yield harness
    await harness.executor.close()


async def test_work_is_reported_while_it_runs_and_when_it_is_done(harness: ExecutorHarness) -> None:
    harness.offer(harness.order(1))
    harness.offer(harness.order(1, node_id="n2"))
    await until(lambda: harness.runs, "the work")
    harness.go_on.set()
    report = await harness.reported(SUCCESS, 1)
    assert (report.bytes_done, report.bytes_total, report.keys_done) == (60, 100, 6)
    assert report.work() == harness.order(1).work()
    assert harness.runs == 1


async def test_reports_have_sources_once_the_feature_is_enabled(harness: ExecutorHarness) -> None:
    harness.offer(harness.order(1))
    assert (await harness.reported(RUNNING, 1)).sources == ()
    harness.world.enable(REPORT_SOURCES)
    harness.go_on.set()
    await harness.reported(SUCCESS, 1)
    harness.offer(harness.order(2))
    await until(lambda: any(r.sources for r in harness.reports), "a report with sources")
    report = await harness.reported(SUCCESS, 2)
    assert report.sources == (
        StreamedFrom(node_id="n2", bytes_done=60, keys_done=6),
        StreamedFrom(node_id="n3", bytes_compared=7),
    )
    assert decode_report(encode_report(report)) == report
    plain = msgspec.structs.replace(report, sources=())
    assert encode_report(plain)[:10] != encode_report(report)[:10]
    readable_before = "5ddd87861093be00"
    assert encode_report(plain)[2:10].hex() == readable_before


async def test_repeated_order_joins_running_work_and_gets_its_result(
    harness: ExecutorHarness,
) -> None:
    harness.offer(harness.order(1))
    await harness.reported(RUNNING, 1)
    harness.offer(harness.order(2))
    await harness.reported(RUNNING, 2)
    harness.go_on.set()
    await harness.reported(SUCCESS, 2)
    harness.offer(harness.order(3))
    await harness.reported(SUCCESS, 3)
    assert harness.runs == 1


async def test_failed_work_is_retried_by_the_next_order(harness: ExecutorHarness) -> None:
    harness.error = RuntimeError("the disk is full")
    harness.go_on.set()
    harness.offer(harness.order(1))
    assert (await harness.reported(FAILED, 1)).error == "the disk is full"
    harness.error = None
    harness.offer(harness.order(2))
    await harness.reported(SUCCESS, 2)
    assert harness.runs == 2


async def test_running_work_is_never_forgotten(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten work would be started twice, and would not end with its session."""
    monkeypatch.setattr("stele.agent.orders.REMEMBERED", 1)
    harness.work_of_all_kinds()
    for index, kind in enumerate((OrderKind.STREAM, OrderKind.SNAPSHOT, OrderKind.STREAM), 1):
        harness.offer(harness.order(index, kind=kind))
        await harness.reported(RUNNING, index)
    assert harness.runs == 2


async def test_orders_with_seen_indices_are_ignored(harness: ExecutorHarness) -> None:
    harness.error = RuntimeError("no")
    harness.go_on.set()
    harness.offer(harness.order(5))
    await harness.reported(FAILED, 5)
    harness.offer(harness.order(5))
    harness.offer(harness.order(4))
    harness.offer(harness.order(6))
    await harness.reported(FAILED, 6)
    assert harness.runs == 2


async def test_orders_of_an_older_term_are_ignored(harness: ExecutorHarness) -> None:
    harness.world.apply(ClaimCoordinator("c2", 2))
    harness.go_on.set()
    harness.offer(harness.order(7, term=1))
    harness.offer(harness.order(1, term=2))
    await harness.reported(SUCCESS, 1)
    assert harness.runs == 1
    assert {report.term for report in harness.reports} == {2}


async def test_order_of_a_term_that_is_not_in_the_log_is_ignored(
    harness: ExecutorHarness,
) -> None:
    harness.go_on.set()
    harness.offer(harness.order(1, term=1 << 60))
    harness.offer(harness.order(2))
    await harness.reported(SUCCESS, 2)
    assert harness.runs == 1
    assert {report.term for report in harness.reports} == {1}


async def test_order_of_an_unread_term_waits_for_the_term() -> None:
    world = World()
    world.start_join()
    follower = await world.follower()
    harness = ExecutorHarness(world)
    harness.executor = OrderExecutor(
        "n1", follower, {OrderKind.STREAM: harness.work}, harness.reports.append
    )
    held_back = [*world.partition.followers]
    world.partition.followers.clear()
    world.apply(ClaimCoordinator("c2", 2))
    harness.offer(harness.order(1, term=2, epoch=follower.image.epoch, session="closed"))
    await asyncio.sleep(0)
    assert harness.reports == []
    for give in held_back:
        give(world.partition.records)
    await harness.reported(FAILED, 1)
    await harness.executor.close()


async def test_an_order_waits_for_its_epoch(harness: ExecutorHarness) -> None:
    harness.go_on.set()
    harness.offer(harness.order(1, epoch=harness.world.image.epoch + 1))
    await asyncio.sleep(0)
    assert harness.runs == 0
    harness.world.apply(ClaimCoordinator("c2", 2))
    harness.offer(harness.order(2, term=2))
    await harness.reported(SUCCESS, 2)
    assert {report.index for report in harness.reports} == {2}  # the first one's term has ended


async def test_work_stops_when_its_session_closes(harness: ExecutorHarness) -> None:
    harness.offer(harness.order(1))
    await harness.reported(RUNNING, 1)
    harness.world.advance()
    assert "session has closed" in (await harness.reported(FAILED, 1)).error


def two_joins(world: World) -> tuple[str, str]:
    """n4 and n5 join, each in a separate transition. Return their sessions."""
    world.drop()  # without a keyspace they have no range in common
    world.fence()
    for number in (4, 5):
        world.apply(join(number), f"join-n{number}")
    groups = (("join-n4",), ("join-n5",))
    world.apply(Advance(term=TERM, version=world.version, open=groups))
    world.fence()
    for _ in range(2):  # commit_cdc_generation, write_both_read_old
        topology = world.image.topology
        moves = tuple(Move(t.transition_id, t.state, t.session) for t in topology.open())
        world.apply(Advance(term=TERM, version=world.version, moves=moves))
        world.fence()
    transitions = world.image.topology.transitions
    return transitions["join-n4"].session, transitions["join-n5"].session


async def test_work_of_two_sessions_runs_concurrently_and_ends_with_its_session(
    world: World,
) -> None:
    first, second = two_joins(world)
    harness = ExecutorHarness(world)
    work = {OrderKind.STREAM: harness.work}
    harness.executor = OrderExecutor("n1", await world.follower(), work, harness.reports.append)
    harness.offer(harness.order(1, session=first))
    harness.offer(harness.order(2, session=second))
    await until(lambda: harness.runs == 2, "both to run")
    transition = world.image.topology.transitions["join-n4"]
    move = Move("join-n4", transition.state, first)
    world.apply(Advance(term=TERM, version=world.version, moves=(move,)))
    assert "session has closed" in (await harness.reported(FAILED, 1)).error
    harness.go_on.set()
    await harness.reported(SUCCESS, 2)
    await harness.executor.close()


class SlowWork:
    """Work of a closed session that writes to the disk, and an order of the next session."""

    def __init__(self, world: World) -> None:
        self.world, self.harness = world, ExecutorHarness(world)
        self.written, self.begun = asyncio.Event(), list[str]()
        self.first, self.second = two_joins(world)

    async def write(self, order: Order, _: OrderProgress) -> None:
        self.begun.append(order.session)
        await uncancelled(asyncio.ensure_future(self.written.wait()))

    async def begin(self) -> OrderExecutor:
        follower, reports = await self.world.follower(), self.harness.reports
        executor = OrderExecutor("n1", follower, {OrderKind.STREAM: self.write}, reports.append)
        executor.offer(self.harness.order(1, session=self.first))
        await until(lambda: self.begun == [self.first], "the first to write")
        for _ in range(2):  # asked to end by each epoch
            transition = self.world.image.topology.transitions["join-n4"]
            move = Move("join-n4", transition.state, transition.session)
            self.world.apply(Advance(term=TERM, version=self.world.version, moves=(move,)))
            self.world.fence()
        executor.offer(self.harness.order(2, session=self.second))
        await self.harness.reported(RUNNING, 2)
        assert self.begun == [self.first]
        return executor


async def test_new_work_waits_for_work_of_a_closed_session_to_end(
    world: World,
) -> None:
    """A write that has begun cannot be stopped. Nothing may overtake it."""
    writing = SlowWork(world)
    executor = await writing.begin()
    writing.written.set()
    await until(lambda: writing.begun == [writing.first, writing.second], "the second to begin")
    await writing.harness.reported(SUCCESS, 2)
    await executor.close()


async def test_new_work_fails_if_work_of_a_closed_session_does_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.agent.orders.READ_LIMIT_S", 0.1)
    writing = SlowWork(world)
    executor = await writing.begin()
    failed = await writing.harness.reported(FAILED, 2)
    assert "does not end" in failed.error
    assert writing.begun == [writing.first]
    writing.written.set()
    await executor.close()


async def test_work_cancelled_before_its_first_step_is_reported_once(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled before its first step runs no code that could report it."""
    monkeypatch.setattr("stele.agent.orders.REPORT_INTERVAL_S", 0.01)
    monkeypatch.setattr("stele.agent.orders.REMEMBERED", 1)
    harness.offer(harness.order(1))
    asyncio.get_running_loop().call_soon(harness.world.advance)
    assert "session has closed" in (await harness.reported(FAILED, 1)).error
    assert harness.runs == 0
    count = len(harness.reports)
    for index, kind in enumerate((OrderKind.SNAPSHOT, OrderKind.RESTORE), 2):
        harness.offer(harness.order(index, kind=kind, session="closed"))
        await harness.reported(FAILED, index)
    assert all(report.index > 1 for report in harness.reports[count:])
    assert [kind for _, kind, _ in harness.executor._running] == [
        OrderKind.SNAPSHOT,
        OrderKind.RESTORE,
    ]


async def test_order_of_a_closed_session_fails(harness: ExecutorHarness) -> None:
    late = harness.order(1)
    harness.world.advance()
    harness.go_on.set()
    harness.offer(late)
    assert "not open" in (await harness.reported(FAILED, 1)).error
    assert harness.runs == 0
