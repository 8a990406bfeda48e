"""Orders: doubled, late, of a coordinator that was replaced, and work that is running already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from stele.agent.orders import OrderExecutor, OrderProgress
from stele.domain.commands import Advance, ClaimCoordinator, Move
from stele.domain.features.model import REPORT_SOURCES
from stele.domain.messages import Order, Report, StreamedFrom
from stele.domain.names import OrderKind, ReportStatus
from stele.log.codec import decode_report, encode_report
from stele.node.commits import uncancelled
from tests.domain.history import join
from tests.node.world import TERM, World, until

RUNNING, SUCCESS, FAILED = ReportStatus.RUNNING, ReportStatus.SUCCESS, ReportStatus.FAILED


class Desk:
    """An OrderExecutor whose work waits for the test."""

    desk: OrderExecutor

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
        self.desk.offer(order)

    def work_of_all_kinds(self) -> None:
        self.desk._handlers = dict.fromkeys(OrderKind, self.work)

    async def reported(self, status: ReportStatus, index: int) -> Report:
        def found() -> list[Report]:
            return [r for r in self.reports if r.status is status and r.index == index]

        await until(found, f"{status} for order {index}; there is {self.reports}")
        return found()[-1]


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    world.start_join()
    world.advance()
    world.fence()
    desk = Desk(world)
    work = {OrderKind.STREAM: desk.work}
    desk.desk = OrderExecutor("n1", await world.follower(), work, desk.reports.append)
    yield desk
    await desk.desk.close()


async def test_work_is_reported_while_it_runs_and_when_it_is_done(desk: Desk) -> None:
    desk.offer(desk.order(1))
    desk.offer(desk.order(1, node_id="n2"))
    await until(lambda: desk.runs, "the work")
    desk.go_on.set()
    report = await desk.reported(SUCCESS, 1)
    assert (report.bytes_done, report.bytes_total, report.keys_done) == (60, 100, 6)
    assert report.work() == desk.order(1).work()
    assert desk.runs == 1


async def test_sources_are_named_once_every_build_can_read_it(desk: Desk) -> None:
    desk.offer(desk.order(1))
    assert (await desk.reported(RUNNING, 1)).sources == ()
    desk.world.enable(REPORT_SOURCES)
    desk.go_on.set()
    await desk.reported(SUCCESS, 1)
    desk.offer(desk.order(2))
    await until(lambda: any(r.sources for r in desk.reports), "a report with sources")
    report = await desk.reported(SUCCESS, 2)
    assert report.sources == (
        StreamedFrom(node_id="n2", bytes_done=60, keys_done=6),
        StreamedFrom(node_id="n3", bytes_compared=7),
    )
    assert decode_report(encode_report(report)) == report
    plain = msgspec.structs.replace(report, sources=())
    assert encode_report(plain)[:10] != encode_report(report)[:10]
    readable_before = "5ddd87861093be00"
    assert encode_report(plain)[2:10].hex() == readable_before


async def test_an_identical_order_joins_work_that_runs_and_hears_its_result(desk: Desk) -> None:
    desk.offer(desk.order(1))
    await desk.reported(RUNNING, 1)
    desk.offer(desk.order(2))
    await desk.reported(RUNNING, 2)
    desk.go_on.set()
    await desk.reported(SUCCESS, 2)
    desk.offer(desk.order(3))
    await desk.reported(SUCCESS, 3)
    assert desk.runs == 1


async def test_failed_work_is_tried_again_when_it_is_ordered_again(desk: Desk) -> None:
    desk.error = RuntimeError("the disk is full")
    desk.go_on.set()
    desk.offer(desk.order(1))
    assert (await desk.reported(FAILED, 1)).error == "the disk is full"
    desk.error = None
    desk.offer(desk.order(2))
    await desk.reported(SUCCESS, 2)
    assert desk.runs == 2


async def test_work_that_runs_is_not_forgotten_however_much_there_is(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be begun once more beside itself, and nothing would end it with its session."""
    monkeypatch.setattr("stele.agent.orders.REMEMBERED", 1)
    desk.work_of_all_kinds()
    for index, kind in enumerate((OrderKind.STREAM, OrderKind.SNAPSHOT, OrderKind.STREAM), 1):
        desk.offer(desk.order(index, kind=kind))
        await desk.reported(RUNNING, index)
    assert desk.runs == 2


async def test_indices_that_were_seen_are_refused(desk: Desk) -> None:
    desk.error = RuntimeError("no")
    desk.go_on.set()
    desk.offer(desk.order(5))
    await desk.reported(FAILED, 5)
    desk.offer(desk.order(5))
    desk.offer(desk.order(4))
    desk.offer(desk.order(6))
    await desk.reported(FAILED, 6)
    assert desk.runs == 2


async def test_orders_of_an_older_term_are_refused(desk: Desk) -> None:
    desk.world.apply(ClaimCoordinator("c2", 2))
    desk.go_on.set()
    desk.offer(desk.order(7, term=1))
    desk.offer(desk.order(1, term=2))
    await desk.reported(SUCCESS, 1)
    assert desk.runs == 1
    assert {report.term for report in desk.reports} == {2}


async def test_a_new_term_counts_its_orders_anew(desk: Desk) -> None:
    desk.offer(desk.order(7))
    await desk.reported(RUNNING, 7)
    desk.world.apply(ClaimCoordinator("c-2", 2))
    desk.offer(desk.order(1, term=2))
    await desk.reported(RUNNING, 1)
    assert desk.runs == 1, "and joins work that runs"


async def test_an_order_of_a_term_that_the_log_does_not_have_is_refused_and_forgotten(
    desk: Desk,
) -> None:
    desk.go_on.set()
    desk.offer(desk.order(1, term=1 << 60))
    desk.offer(desk.order(2))
    await desk.reported(SUCCESS, 2)
    assert desk.runs == 1
    assert {report.term for report in desk.reports} == {1}


async def test_an_order_of_a_term_that_was_not_read_yet_waits_for_it() -> None:
    world = World()
    world.start_join()
    follower = await world.follower()
    desk = Desk(world)
    desk.desk = OrderExecutor("n1", follower, {OrderKind.STREAM: desk.work}, desk.reports.append)
    held_back = [*world.partition.followers]
    world.partition.followers.clear()
    world.apply(ClaimCoordinator("c2", 2))
    desk.offer(desk.order(1, term=2, epoch=follower.image.epoch, session="closed"))
    await asyncio.sleep(0)
    assert desk.reports == []
    for give in held_back:
        give(world.partition.records)
    await desk.reported(FAILED, 1)
    await desk.desk.close()


async def test_an_order_waits_for_its_epoch(desk: Desk) -> None:
    desk.go_on.set()
    desk.offer(desk.order(1, epoch=desk.world.image.epoch + 1))
    await asyncio.sleep(0)
    assert desk.runs == 0
    desk.world.apply(ClaimCoordinator("c2", 2))
    desk.offer(desk.order(2, term=2))
    await desk.reported(SUCCESS, 2)
    assert {report.index for report in desk.reports} == {2}  # the first one's term has ended


async def test_work_stops_when_its_session_closes(desk: Desk) -> None:
    desk.offer(desk.order(1))
    await desk.reported(RUNNING, 1)
    desk.world.advance()
    assert "session has closed" in (await desk.reported(FAILED, 1)).error


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


async def test_work_of_several_sessions_runs_side_by_side_and_each_ends_with_its_own(
    world: World,
) -> None:
    first, second = two_joins(world)
    desk = Desk(world)
    work = {OrderKind.STREAM: desk.work}
    desk.desk = OrderExecutor("n1", await world.follower(), work, desk.reports.append)
    desk.offer(desk.order(1, session=first))
    desk.offer(desk.order(2, session=second))
    await until(lambda: desk.runs == 2, "both to run")
    transition = world.image.topology.transitions["join-n4"]
    move = Move("join-n4", transition.state, first)
    world.apply(Advance(term=TERM, version=world.version, moves=(move,)))
    assert "session has closed" in (await desk.reported(FAILED, 1)).error
    desk.go_on.set()
    await desk.reported(SUCCESS, 2)
    await desk.desk.close()


class Writing:
    """Work of a session that has closed is on its way to the disk, and there is an order of the next one."""

    def __init__(self, world: World) -> None:
        self.world, self.desk = world, Desk(world)
        self.written, self.begun = asyncio.Event(), list[str]()
        self.first, self.second = two_joins(world)

    async def write(self, order: Order, _: OrderProgress) -> None:
        self.begun.append(order.session)
        await uncancelled(asyncio.ensure_future(self.written.wait()))

    async def begin(self) -> OrderExecutor:
        follower, reports = await self.world.follower(), self.desk.reports
        executor = OrderExecutor("n1", follower, {OrderKind.STREAM: self.write}, reports.append)
        executor.offer(self.desk.order(1, session=self.first))
        await until(lambda: self.begun == [self.first], "the first to write")
        for _ in range(2):  # asked to end by each epoch
            transition = self.world.image.topology.transitions["join-n4"]
            move = Move("join-n4", transition.state, transition.session)
            self.world.apply(Advance(term=TERM, version=self.world.version, moves=(move,)))
            self.world.fence()
        executor.offer(self.desk.order(2, session=self.second))
        await self.desk.reported(RUNNING, 2)
        assert self.begun == [self.first]
        return executor


async def test_work_waits_for_the_end_of_what_ran_under_a_session_that_has_closed(
    world: World,
) -> None:
    """A write that is on its way to the disk cannot be stopped: nothing may overtake it."""
    writing = Writing(world)
    executor = await writing.begin()
    writing.written.set()
    await until(lambda: writing.begun == [writing.first, writing.second], "the second to begin")
    await writing.desk.reported(SUCCESS, 2)
    await executor.close()


async def test_work_is_given_up_where_what_ran_under_a_closed_session_does_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.agent.orders.READ_LIMIT_S", 0.1)
    writing = Writing(world)
    executor = await writing.begin()
    failed = await writing.desk.reported(FAILED, 2)
    assert "does not end" in failed.error
    assert writing.begun == [writing.first]
    writing.written.set()
    await executor.close()


async def test_work_whose_session_closes_before_its_first_step_is_reported_once_and_forgotten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled before it has begun runs no line: nothing within the work can report it."""
    monkeypatch.setattr("stele.agent.orders.REPORT_INTERVAL_S", 0.01)
    monkeypatch.setattr("stele.agent.orders.REMEMBERED", 1)
    desk.offer(desk.order(1))
    asyncio.get_running_loop().call_soon(desk.world.advance)
    assert "session has closed" in (await desk.reported(FAILED, 1)).error
    assert desk.runs == 0
    count = len(desk.reports)
    for index, kind in enumerate((OrderKind.SNAPSHOT, OrderKind.RESTORE), 2):
        desk.offer(desk.order(index, kind=kind, session="closed"))
        await desk.reported(FAILED, index)
    assert all(report.index > 1 for report in desk.reports[count:])
    assert [kind for _, kind, _ in desk.desk._running] == [OrderKind.SNAPSHOT, OrderKind.RESTORE]


async def test_an_order_of_a_session_that_has_closed_is_refused(desk: Desk) -> None:
    late = desk.order(1)
    desk.world.advance()
    desk.go_on.set()
    desk.offer(late)
    assert "not open" in (await desk.reported(FAILED, 1)).error
    assert desk.runs == 0
