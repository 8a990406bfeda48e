"""Orders: doubled, late, of a coordinator that was replaced, and work that is running already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stele.domain.commands import ClaimCoordinator
from stele.domain.messages import Order, Report
from stele.domain.names import OrderKind, ReportStatus
from stele.node.orders import OrderExecutor, OrderProgress
from tests.node.world import World, until

RUNNING, SUCCESS, FAILED = ReportStatus.RUNNING, ReportStatus.SUCCESS, ReportStatus.FAILED


class Desk:
    """An OrderExecutor whose work waits for the test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reports: list[Report] = []
        self.runs = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def work(self, order: Order, progress: OrderProgress) -> None:
        self.runs += 1
        progress.bytes_total = 100
        progress.add(60, 6)
        await self.go_on.wait()
        if self.error is not None:
            raise self.error

    def order(self, index: int, term: int = 1, **more: object) -> Order:
        fields = {
            "node_id": "n1",
            "kind": OrderKind.STREAM,
            "epoch": self.world.image.epoch,
            "session": self.world.session,
            **more,
        }
        return Order(term=term, index=index, **fields)  # type: ignore[arg-type]

    def offer(self, order: Order) -> None:
        self.desk.offer(order)

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


async def test_an_order_waits_for_its_epoch(desk: Desk) -> None:
    desk.go_on.set()
    desk.offer(desk.order(1, epoch=desk.world.image.epoch + 1))
    await asyncio.sleep(0)
    assert desk.runs == 0
    desk.world.apply(ClaimCoordinator("c2", 2))
    desk.offer(desk.order(2, term=2))
    await desk.reported(SUCCESS, 2)
    assert {report.index for report in desk.reports} == {2}  # the first one's term is over by then


async def test_work_stops_when_its_session_closes(desk: Desk) -> None:
    desk.offer(desk.order(1))
    await desk.reported(RUNNING, 1)
    desk.world.advance()
    assert "session has closed" in (await desk.reported(FAILED, 1)).error
