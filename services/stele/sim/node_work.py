"""How a node carries out orders: read up to the order's epoch, refuse the old, join the same, work, report."""

from typing import Final

from stele.agent.partitions import parted
from stele.domain.messages import Order, Report, WorkKey
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.ring.locks import overlaps
from stele.domain.ring.ranges import Range, contains
from stele.domain.ring.transition import TransitionRow
from stele.domain.schema.facts import owner_of
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.wanted import is_foreign, is_wanted, left_behind
from stele.sim.kernel import Future
from stele.sim.messages import ONE_PAGE, Cell, Key, PullRange, range_of_key, token_of_key
from stele.sim.node_backups import BackupWorker
from stele.sim.process import Reply

PULL_TIMEOUT_S: Final = 3.0
EPOCH_TIMEOUT_S: Final = 10.0
"""How long an order waits for the log to bring its epoch; the coordinator repeats it anyway."""
OLDER_WORK_S: Final = 10.0
"""How long new work waits for older work on the same ranges, which stops at its next look."""
PAGE_S: Final = 0.05
"""Time that the disk takes for a page."""
ROW_S: Final = 0.1
"""Time to set up the streaming of a range."""

Entries = list[tuple[Key, Cell]]
Pieces = dict[str, tuple[Range, ...]]
"""By placement, in ring order."""


class OrderWorker(BackupWorker):
    """The part of a node that works for topology operations."""

    serving: bool

    def forget_orders(self) -> None:
        self._seen: tuple[int, int] = (0, 0)
        self._running = set[WorkKey]()
        self._done: dict[WorkKey, ReportStatus] = {}
        self._pulling: dict[str, Pieces] = {}
        self._epoch_waiters: list[tuple[int, Future[bool]]] = []
        self._run = {
            OrderKind.STREAM: self._stream,
            OrderKind.CLEANUP: self._clean_up,
            OrderKind.TRUNCATE: self._truncate,
            OrderKind.SNAPSHOT: self.snapshot,
            OrderKind.RESTORE: self.restore,
        }

    def wake_orders(self) -> None:
        for epoch, future in self._epoch_waiters:
            if epoch <= self.image.epoch and self.serving:
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
        work = order.work()
        if work in self._running:
            return
        if self._done.get(work) is ReportStatus.SUCCESS:
            self._report(order, ReportStatus.SUCCESS)
            return
        self._running.add(work)
        error = await self._run[order.kind](order)
        self._running.discard(work)
        status = ReportStatus.FAILED if error else ReportStatus.SUCCESS
        self._done[work] = status
        self.world.failpoint(self, f"{order.kind}_done")
        self._report(order, status, error)

    async def epoch_reached(self, epoch: int, limit_s: float = EPOCH_TIMEOUT_S) -> bool:
        if self.image.epoch < epoch or not self.serving:
            future = Future[bool]()
            self._epoch_waiters.append((epoch, future))
            self.after(limit_s, future.set, False)
            await future.wait()
        return self.image.epoch >= epoch and self.serving

    def _report(self, order: Order, status: ReportStatus, error: str = "") -> None:
        report = Report(
            node_id=self.name,
            term=order.term,
            index=order.index,
            kind=order.kind,
            session=order.session,
            request_id=order.request_id,
            status=status,
            error=error,
            at_ms=self.clock.wall_ms(),
            log_id=order.log_id,
            manifest=self.manifest_of(order) if order.kind is OrderKind.SNAPSHOT else "",
        )
        for driver in self.world.drivers:
            self.world.network.send(self, driver, driver.on_report, report)

    # --- streaming

    async def _stream(self, order: Order) -> str:
        """Pull every gained range from enough sources; returns what went wrong, or nothing."""
        transition = self.image.topology.of_session(order.session)
        if transition is None:
            return f"session {order.session} is not open"
        mine = {
            name: tuple(Range(row.start, row.end) for row in rows)
            for name, rows in self._rows_to_pull(transition).items()
        }
        if not await self.ranges_are_free(mine):
            return "older work on the same ranges does not end"
        try:
            with self.sessions.enter(order.session) as guard:
                self._pulling[order.session] = mine
                return await self._pull_all(order, transition, guard)
        except SessionClosedError as error:
            return str(error)
        finally:
            self._pulling.pop(order.session, None)

    async def ranges_are_free(self, mine: Pieces) -> bool:
        """Wait until no work under an older session is on these ranges any more."""
        for _ in range(round(OLDER_WORK_S / PAGE_S)):
            if not any(_meet(mine, other) for other in self._pulling.values()):
                return True
            await self.sleep(PAGE_S)
        return False

    async def _pull_all(self, order: Order, transition: Transition, guard: SessionGuard) -> str:
        for name, rows in sorted(self._rows_to_pull(transition).items()):
            for row in rows:
                error = await self._pull_row(order, name, row, transition, guard)
                if error:
                    return error
        self.world.witness.nodes.streamed(self, order)
        return ""

    def _rows_to_pull(self, transition: Transition) -> dict[str, list[TransitionRow]]:
        sources_of = OPERATIONS[transition.kind].sources
        return {
            name: [r for r in plan.rows if sources_of(self.image, transition, r, self.name, set())]
            for name, plan in transition.plans.items()
        }

    async def _pull_row(
        self,
        order: Order,
        placement: str,
        row: TransitionRow,
        transition: Transition,
        guard: SessionGuard,
    ) -> str:
        known = tuple(
            k.data_id for k in self.image.schema.using(placement) if not k.dropped_version
        )
        pull = PullRange(row.start, row.end, placement, known, order.session, order.epoch)
        sources_of, image = OPERATIONS[transition.kind].sources, self.image
        failed, answered = {*self.image.membership.excluded()}, set[str]()
        await self.sleep(ROW_S)
        while True:
            asked = sources_of(image, transition, row, self.name, failed)
            assert asked is not None, "it is one of the rows to pull"
            sources, needed = asked
            if len(sources) < needed:
                return f"only {len(sources)} of {needed} sources of ({row.start}, {row.end}] answer"
            if len(answered & set(sources)) >= needed:
                return ""
            open_sources = [source for source in sources if source not in answered]
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
            self.world.witness.nodes.streams_in(self, guard.session)
            for key, cell in entries[first : first + ONE_PAGE]:
                if self.may_keep(key):
                    self.store(key, cell)

    def may_keep(self, key: Key) -> bool:
        """Not what was dropped or truncated away meanwhile: that is gone for good."""
        return self.image.schema.of_data(key[0]) is not None

    def check_guard(self, guard: SessionGuard) -> None:
        guard.check()

    def is_excluded(self) -> bool:
        raise NotImplementedError

    def flushes_older(self, range_: Range, version: int) -> bool:
        raise NotImplementedError

    def serve_pull(self, pull: PullRange, reply: Reply) -> None:
        """A source must know the fence of the step: what it gave must be all that there will be."""
        self.spawn(self._give(pull, reply))

    async def _give(self, pull: PullRange, reply: Reply) -> None:
        if not await self.source_ready(pull) or not self.sessions.is_open(pull.session):
            reply(None)
            return
        self.world.witness.nodes.gives(self.name, self.image, pull)
        range_ = Range(pull.start, pull.end)
        reply(
            [
                (key, cell)
                for key, cell in sorted(self.read_cells().items())
                if key[0] in pull.data_ids and contains(range_, token_of_key(key))
            ]
        )

    async def source_ready(self, pull: PullRange) -> bool:
        """The order's epoch is applied, and the writes that were routed before the step are on the disk."""
        if not await self.epoch_reached(pull.epoch) or self.is_excluded():
            return False
        range_ = Range(pull.start, pull.end)
        while True:
            transition = self.image.topology.of_session(pull.session)
            if transition is None:
                return False
            if not self.flushes_older(range_, transition.entered_version):
                return True
            await self.sleep(PAGE_S)

    # --- cleanup

    async def _clean_up(self, order: Order) -> str:
        """Drop what is not this node's by the present image, looked at before each page: of a transition's
        ranges alone, or of all.
        """
        while True:
            await self.sleep(PAGE_S)
            if not self.may_clean(order):
                return "it was asked to clean up anew"
            foreign = [key for key in sorted(self.cells) if self.may_delete(order, key)]
            for key in foreign[:ONE_PAGE]:
                self.delete(order, key)
            if len(foreign) <= ONE_PAGE:
                return ""

    def is_foreign(self, key: Key) -> bool:
        """True for data of a keyspace that is gone, or of a range that is not this node's."""
        data_id, shard = parted(key[0])
        return is_foreign(self.image, self.name, data_id, range_of_key(key), shard)

    def may_delete(self, order: Order, key: Key) -> bool:
        if self.image.topology.of_session(order.session) is None:
            return self.is_foreign(key)
        data_id, shard = parted(key[0])
        return left_behind(self.image, order, data_id, range_of_key(key), shard)

    def delete(self, order: Order, key: Key) -> None:
        self.world.witness.tablets.deletes(self.name, self.image, order, key)
        del self.cells[key]

    async def _truncate(self, order: Order) -> str:
        """Drop what the data held before it was truncated."""
        while True:
            await self.sleep(PAGE_S)
            transition = self.image.topology.of_session(order.session)
            if transition is None:
                return f"session {order.session} is not open"
            gone = [
                key
                for key in sorted(self.cells)
                if owner_of(parted(key[0])[0]) == (transition.table_id or transition.keyspace_id)
                and self.image.schema.of_data(parted(key[0])[0]) is None
            ]
            for key in gone[:ONE_PAGE]:
                del self.cells[key]
            if len(gone) <= ONE_PAGE:
                return ""

    def may_clean(self, order: Order) -> bool:
        return is_wanted(self.image, order)


def _meet(mine: Pieces, theirs: Pieces) -> bool:
    return any(
        overlaps([(r.start, r.end) for r in ranges], [(r.start, r.end) for r in theirs[name]])
        for name, ranges in mine.items()
        if name in theirs
    )
