"""The replica's side of reads and writes: checks before and after each operation.

An operation with a version below the fence must not count (I6). The fence is checked before the
operation, to save work, and again after it, because it may have moved.

A waiting write holds its version, like the request that it belongs to. This node's acks report the
version as in use until the write has ended. The coordinator's barrier therefore waits for it, even
if the request's own node is dead.

A barrier may also end without waiting, when a quorum suffices. No stale row can remain in that
case. The fence is checked in the turn in which the write takes its place in the store's order, and
there are two cases:

- The write came before the fence. Cleanup is ordered only after the fence, so all its deletions are
  behind the write.
- The fence came first, and the write is refused.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from stele.agent.judging import (
    CATCH_UP_LIMIT_S,
    AgentState,
    Code,
    Judge,
    NotGiven,
    Refusal,
    Routing,
)
from stele.agent.stores import Span, parted, placed, read_partition, write_partitions
from stele.domain.base import Rejection
from stele.domain.model.schema import change_log_of
from stele.domain.ring.ranges import Range
from stele.domain.rules.cdc import CdcOptions, cdc_of, check_time, confidence_ms, is_captured
from stele.log.follower import LogFollower
from stele.node.cells import HybridClock, StoredCell, stamp_of
from stele.node.change_log import Capture
from stele.node.commits import DiskFull, StoreError
from stele.node.load import Rates
from stele.node.settings import DATA_TIMEOUT_S
from stele.node.store import SqliteStore
from stele.node.wire import (
    Answer,
    AnyOp,
    Compare,
    Compared,
    Op,
    Read,
    ReadChanges,
    ReadMode,
    Scan,
    Scanned,
    Write,
)

A = TypeVar("A", Scanned, Compared)

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
DEFAULT_WINDOW_MS: Final = confidence_ms(DATA_TIMEOUT_S)
_DONE: Final = Answer(Code.OK)


class LocalReplica:
    """This node's own data, as operations of any node access it."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        routing: Routing,
        in_use: AgentState,
        store: SqliteStore,
        clock: HybridClock,
        rates: Rates,
        catch_up_limit_s: float = CATCH_UP_LIMIT_S,
        window_ms: int = DEFAULT_WINDOW_MS,
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._in_use = in_use
        self._store = store
        self._clock = clock
        self._rates = rates
        self._window_ms = window_ms
        self.judge = Judge(node_id, follower, routing, in_use, catch_up_limit_s)

    async def serve(self, ops: Sequence[AnyOp]) -> list[Answer]:
        """Answer each operation. The writes among them share one transaction."""
        await self.judge.catch_up(ops)
        await self._learn_captured(ops)
        answers = [self._refusal(op) for op in ops]
        allowed = [index for index, refused in enumerate(answers) if refused is None]
        writes = [(index, op) for index in allowed if isinstance(op := ops[index], Write)]
        if writes:
            for (index, _), answer in zip(writes, await self._write(writes), strict=True):
                answers[index] = answer
        for index in allowed:
            op = ops[index]
            if isinstance(op, Read):
                answers[index] = await self._read(op)
            elif isinstance(op, ReadChanges):
                answers[index] = await self._read_changes(op)
        return [self._served(op, answer or _DONE) for op, answer in zip(ops, answers, strict=True)]

    def _served(self, op: AnyOp, answer: Answer) -> Answer:
        """Return the final answer of an operation, and count it unless it is refused."""
        # The fence may have moved while the operation ran: check once more before the answer (I6).
        refused = self._fenced(op) if answer.done else answer
        if refused is not None:
            return refused
        if not isinstance(op, ReadChanges):
            self._rates.count(op.data_id, op.token, written=isinstance(op, Write))
        newer = self.judge.newer_table_version(op)
        return msgspec.structs.replace(answer, table_version=newer) if newer else answer

    async def scan(self, scan: Scan) -> Scanned:
        """Return a page of rows, or their size, under the session of a topology operation."""
        return await self._in_session(scan, partial(self._scan, scan), Scanned)

    async def digests(self, compare: Compare) -> Compared:
        """Return digests of rows, under the session of a topology operation."""
        return await self._in_session(compare, partial(self._compare, compare), Compared)

    async def _in_session(
        self, asked: Scan | Compare, work: Callable[[], Awaitable[A]], refused: type[A]
    ) -> A:
        try:
            async with self.judge.giving(asked.epoch, asked.session):
                return await work()
        except NotGiven as error:
            return refused(code=error.code, text=str(error))

    async def _compare(self, compare: Compare) -> Compared:
        return Compared(
            code=Code.OK, digests=await self._store.digests(self._placed(compare.spans))
        )

    async def _scan(self, scan: Scan) -> Scanned:
        spans = self._placed(scan.spans)
        if not scan.limit_bytes:
            size = await self._store.measure(spans)
            return Scanned(code=Code.OK, keys=size.keys, size_bytes=size.size_bytes)
        limit_bytes = min(scan.limit_bytes, MAX_PAGE_BYTES)
        page = await self._store.page(spans, scan.cursor, limit_bytes)
        return Scanned(
            code=Code.OK,
            rows=[row._replace(keyspace=parted(row.keyspace)[0]) for row in page.rows]
            if spans != scan.spans
            else page.rows,
            keys=len(page.rows),
            size_bytes=page.size_bytes,
            cursor=page.cursor,
        )

    async def _write(self, writes: Sequence[tuple[int, Write]]) -> list[Answer]:
        """Write cells in one transaction, except those fenced in the turn of the write."""
        ops = [op for _, op in writes]
        rows = [StoredCell(op.data_id, op.token, op.key, *op.cell) for op in ops]
        # Hold before the write waits for the disk: a barrier must see the versions in use.
        holds = [self._in_use.hold(op.version, op.data_id, op.token) for op in ops]
        refused = dict[int, Answer]()

        def permit(place: int) -> bool:
            answer = self._fenced(ops[place]) or self._untimely(ops[place])
            if answer is not None:
                refused[place] = answer
                return False
            # A refused time must not raise the clock, or later writes would be ahead too.
            self._clock.see(ops[place].cell.timestamp)
            return True

        try:
            written = await self._store.write(
                rows,
                permit,
                lambda place: self._partitions(ops[place]),
                lambda place: self._capture(ops[place]),
            )
        except StoreError as error:
            code = Code.DISK_FULL if isinstance(error, DiskFull) else Code.FAILED
            return [Answer(code, text=f"{self._node_id}: {error}")] * len(ops)
        finally:
            for hold in holds:
                self._in_use.release(hold)
        return [_written(lost_to, refused.get(place)) for place, lost_to in enumerate(written)]

    async def _learn_captured(self, ops: Sequence[AnyOp]) -> None:
        """Read the log up to a sender that captures a table which this node does not capture yet.

        Without that, changes would be logged without their images before.
        """
        image = self._follower.image
        newer = [
            op.epoch
            for op in ops
            if isinstance(op, Write)
            and op.captured
            and op.epoch > image.epoch
            and not is_captured(image.schema, op.data_id)
        ]
        if newer:
            await self.judge.read_up_to(max(newer))

    def _options(self, op: Write) -> CdcOptions | None:
        """Return the options by which a write is logged, or None.

        It is logged if the sender's image or this node's says so, since either may be older.
        """
        schema = self._follower.image.schema
        if op.captured or is_captured(schema, op.data_id):
            return cdc_of(schema, op.data_id) or CdcOptions()
        return None

    def _capture(self, op: Write) -> Capture | None:
        options = self._options(op)
        # A cell that a read repairs may be older than the log.
        if options is None or (op.settles and self._rejection(op) is not None):
            return None
        return Capture(options.preimage)

    def _untimely(self, op: Write) -> Answer | None:
        """Refuse a change whose time readers may have passed, in the turn of the write."""
        if op.settles or self._options(op) is None:
            return None
        rejection = self._rejection(op)
        return None if rejection is None else Answer(Code.UNTIMELY, text=rejection.message)

    def _rejection(self, op: Write) -> Rejection | None:
        image, now_ms = self._follower.image, self._clock.now_us() // 1000
        write_ms = op.cell.timestamp // 1000
        return check_time(image, op.data_id, op.token, write_ms, now_ms, self._window_ms)

    async def _read_changes(self, op: ReadChanges) -> Answer:
        image = self._follower.image
        partition = read_partition(image, self._node_id, change_log_of(op.data_id), op.token)
        page = await self._store.changes(
            partition, Range(op.start, op.token), op.after_us, op.upto_us, op.limit
        )
        # ``_fenced`` judges one token. The row of this token must have all of the range.
        image = self._follower.image
        data = image.schema.of_data(op.data_id)
        row = None if data is None else image.ring.placements[data.placement].row_for(op.token)
        if row is None or row.start > op.start:
            text = f"({op.start}, {op.token}] is not in one range any more"
            return Answer(Code.STALE_VERSION, epoch=image.epoch, text=text)
        return Answer(Code.OK, changes=page)

    async def _read(self, op: Read) -> Answer:
        partition = self._partitions(op)[0]
        if op.mode is ReadMode.TIMESTAMP:
            return Answer(Code.OK, self._store.timestamp(partition, op.token, op.key))
        cell = await self._store.read(partition, op.token, op.key)
        if cell is None:
            return _DONE
        if op.mode is ReadMode.STAMP:
            return Answer(Code.OK, stamp=stamp_of(cell))
        return Answer(Code.OK, cell=cell)

    def _partitions(self, op: Op) -> tuple[str, ...]:
        return write_partitions(self._follower.image, self._node_id, op.data_id, op.token)

    def _placed(self, spans: Sequence[Span]) -> list[Span]:
        return placed(self._follower.image, self._node_id, spans)

    def _refusal(self, op: AnyOp) -> Answer | None:
        return _refused(self.judge.refusal(op))

    def _fenced(self, op: AnyOp) -> Answer | None:
        return _refused(self.judge.fenced(op))


def _refused(refusal: Refusal | None) -> Answer | None:
    return None if refusal is None else Answer(refusal.code, epoch=refusal.epoch, text=refusal.text)


def _written(lost_to: int | None, refused: Answer | None) -> Answer:
    if lost_to is None:
        return refused or Answer(Code.FAILED, text="it was refused meanwhile")
    return Answer(Code.SUPERSEDED, lost_to) if lost_to else _DONE
