"""How a node carries out orders: read up to the order's epoch, refuse the old, join the same, work, report."""

from typing import Any, Final

from stele.domain.entities import Operation
from stele.domain.image import Image
from stele.domain.messages import Order, Report
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.ring.ranges import Range, contains
from stele.domain.ring.transition import TransitionRow, gained, stream_sources
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.sim.kernel import Future
from stele.sim.messages import ONE_PAGE, Cell, Key, PullRange, token_of_key
from stele.sim.process import Follower, Reply

PULL_TIMEOUT_S: Final = 3.0
EPOCH_TIMEOUT_S: Final = 10.0
"""How long an order waits for the log to bring its epoch; the coordinator repeats it anyway."""
PAGE_S: Final = 0.05
"""Time that the disk takes for a page."""
ROW_S: Final = 0.1
"""Time to set up the streaming of a range."""

Work = tuple[OrderKind, int, str]
Entries = list[tuple[Key, Cell]]


class OrderWorker(Follower):
    """The part of a node that works for topology operations."""

    sessions: Any
    serving: bool

    def forget_orders(self) -> None:
        self._seen: tuple[int, int] = (0, 0)
        self._running = set[Work]()
        self._done: dict[Work, ReportStatus] = {}
        self._epoch_waiters: list[tuple[int, Future[bool]]] = []

    def wake_orders(self) -> None:
        for epoch, future in self._epoch_waiters:
            if epoch <= self.image.epoch:
                future.set(True)
        self._epoch_waiters = [(e, f) for e, f in self._epoch_waiters if not f.done]

    def on_order(self, order: Order) -> None:
        if (order.term, order.index) <= self._seen:
            return
        self._seen = (order.term, order.index)
        self.spawn(self._carry_out(order))

    async def _carry_out(self, order: Order) -> None:
        if not await self.epoch_reached(order.epoch):
            return
        if order.term < self.image.topology.coordinator.term:
            return
        work = order.same_work()
        if work in self._running:
            return
        if self._done.get(work) is ReportStatus.SUCCESS:
            self._report(order, ReportStatus.SUCCESS)
            return
        self._running.add(work)
        run = self._stream if order.kind is OrderKind.STREAM else self._clean_up
        error = await run(order)
        self._running.discard(work)
        status = ReportStatus.FAILED if error else ReportStatus.SUCCESS
        self._done[work] = status
        self.world.failpoint(self, f"{order.kind}_done")
        self._report(order, status, error)

    async def epoch_reached(self, epoch: int) -> bool:
        if self.image.epoch < epoch or not self.serving:
            future = Future[bool]()
            self._epoch_waiters.append((epoch, future))
            self.after(EPOCH_TIMEOUT_S, future.set, False)
            await future.wait()
        return self.image.epoch >= epoch and self.serving

    def _report(self, order: Order, status: ReportStatus, error: str = "") -> None:
        report = Report(
            node_id=self.name,
            term=order.term,
            index=order.index,
            kind=order.kind,
            version=order.version,
            session=order.session,
            request_id=order.request_id,
            status=status,
            error=error,
            at_ms=self.clock.wall_ms(),
            log_id=order.log_id,
        )
        for driver in self.world.drivers:
            self.world.network.send(self, driver, driver.on_report, report)

    # --- streaming

    async def _stream(self, order: Order) -> str:
        """Pull every gained range from enough sources; returns what went wrong, or nothing."""
        operation = self.image.topology.operation
        if operation is None or operation.request_id != order.request_id:
            return "the operation is over"
        try:
            with self.sessions.enter(order.session) as guard:
                return await self._pull_all(order, operation, guard)
        except SessionClosedError as error:
            return str(error)

    async def _pull_all(self, order: Order, operation: Operation, guard: SessionGuard) -> str:
        for name, plan in sorted(operation.plans.items()):
            mine = set(gained(plan, self.name))
            for row in plan.rows:
                if Range(row.start, row.end) in mine:
                    error = await self._pull_row(order, name, row, guard)
                    if error:
                        return error
        self.world.witness.streamed(self, order)
        return ""

    async def _pull_row(
        self, order: Order, placement: str, row: TransitionRow, guard: SessionGuard
    ) -> str:
        pull = PullRange(row.start, row.end, placement, order.version, order.session, order.epoch)
        failed, answered = set[str](), set[str]()
        await self.sleep(ROW_S)
        while True:
            sources, needed = stream_sources(row, self.name, failed)
            if len(sources) < needed:
                return f"only {len(sources)} of {needed} sources of ({row.start}, {row.end}] answer"
            open_sources = [source for source in sources if source not in answered]
            if len(answered & set(sources)) >= needed:
                return ""
            source = self.world.nodes[open_sources[0]]
            entries = await self.call(
                source, source.serve_pull, pull, timeout_s=PULL_TIMEOUT_S
            ).wait()
            if entries is None:
                failed.add(source.name)
                continue
            await self._take_in(entries, guard)
            answered.add(source.name)

    async def _take_in(self, entries: Entries, guard: SessionGuard) -> None:
        for first in range(0, len(entries), ONE_PAGE):
            await self.sleep(PAGE_S)
            self.check_guard(guard)
            self.world.witness.streams_in(self, guard.session)
            for key, cell in entries[first : first + ONE_PAGE]:
                self.store(key, cell)

    def check_guard(self, guard: SessionGuard) -> None:
        guard.check()

    def store(self, key: Key, cell: Cell) -> None:
        raise NotImplementedError

    @property
    def cells(self) -> dict[Key, Cell]:
        raise NotImplementedError

    def serve_pull(self, pull: PullRange, reply: Reply) -> None:
        """A source must have applied the fence of the step: what it gave must be all there will be."""
        self.spawn(self._give(pull, reply))

    async def _give(self, pull: PullRange, reply: Reply) -> None:
        if not await self.source_ready(pull) or not self.sessions.is_open(pull.session):
            reply(None)
            return
        self.world.witness.gives(self, pull)
        keyspaces = _keyspaces_of(self.image, pull.placement)
        range_ = Range(pull.start, pull.end)
        reply(
            [
                (key, cell)
                for key, cell in sorted(self.cells.items())
                if key[0] in keyspaces and contains(range_, token_of_key(key))
            ]
        )

    async def source_ready(self, pull: PullRange) -> bool:
        return await self.epoch_reached(pull.epoch)

    # --- cleanup

    async def _clean_up(self, order: Order) -> str:
        """Drop what other nodes own now, a page at a time; stop when the topology moves on."""
        while True:
            await self.sleep(PAGE_S)
            if not self.may_clean(order):
                return "the topology has moved on"
            foreign = [key for key in sorted(self.cells) if not owns(self.image, self.name, key)]
            for key in foreign[:ONE_PAGE]:
                del self.cells[key]
            if len(foreign) <= ONE_PAGE:
                return ""

    def may_clean(self, order: Order) -> bool:
        topology = self.image.topology.topology
        return topology.version == order.version == topology.fence_version


def owns(image: Image, node_id: str, key: Key) -> bool:
    """True when the node is a replica of the key, for reads or for writes."""
    placement = image.placement_of(key[0])
    if placement is None:
        return False
    return node_id in placement.row_for(token_of_key(key)).writes


def _keyspaces_of(image: Image, placement: str) -> set[str]:
    return {k.name for k in image.schema.keyspaces.values() if k.placement == placement}
