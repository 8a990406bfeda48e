"""The replica's side of reads and writes: what is refused, before and after each operation.

An operation of a version below the fence must not count (I6), so the fence is checked before it, to spare
the work, and once more after it, since the fence may have moved while it ran.

A write that waits holds its version, like the request that it is part of: this node's acks say that the
version is in use until the write has ended, so the coordinator's barrier waits for it although the request's
own node may be dead. Where the barrier did not wait (a quorum is enough), no stray row can be left behind:
the fence is checked in the turn in which the write takes its place in the store's order. Either that was
before the fence came, and then every deletion of the cleanup, which is asked for only after the fence, is
behind the write; or the fence was there, and nothing is written.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Protocol, TypeVar

from stele.agent.codes import Code
from stele.agent.judging import CATCH_UP_LIMIT_S, Judge, Refusal
from stele.agent.partitions import parted, placed, write_partitions
from stele.agent.routing import Routing
from stele.agent.sourcing import NotGiven, Sourcing
from stele.agent.spans import Span
from stele.domain.fencing import Hold
from stele.domain.sessions import SessionGuard
from stele.log.follower import LogFollower
from stele.node.cells import Row, stamp_of
from stele.node.clock import HybridClock
from stele.node.commits import DiskFull, StoreError
from stele.node.rates import Rates
from stele.node.store import Store
from stele.node.wire import (
    Answer,
    AnyOp,
    Compare,
    Compared,
    Op,
    Read,
    ReadMode,
    Scan,
    Scanned,
    Write,
)

A = TypeVar("A", Scanned, Compared)

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
_DONE: Final = Answer(Code.OK)


class InUse(Protocol):
    """What this node has in use, as its acks tell: versions and sessions; see the agent."""

    def hold(self, version: int, data_id: str, token: int) -> Hold: ...
    def release(self, hold: Hold) -> None: ...
    async def wait_drained(self, version: int, timeout_s: float) -> None: ...
    def enter(self, session: str) -> AbstractContextManager[SessionGuard]: ...
    def session_is_open(self, session: str) -> bool: ...


class Replica:
    """This node's own data, as operations of any node meet it."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        routing: Routing,
        in_use: InUse,
        store: Store,
        clock: HybridClock,
        rates: Rates,
        catch_up_limit_s: float = CATCH_UP_LIMIT_S,
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._in_use = in_use
        self._store = store
        self._clock = clock
        self._rates = rates
        self.judge = Judge(node_id, follower, routing, in_use.session_is_open, catch_up_limit_s)
        self._sourcing = Sourcing(follower, in_use, self.judge)

    async def serve(self, ops: Sequence[AnyOp]) -> list[Answer]:
        """Answer each operation; the writes among them share one transaction."""
        await self.judge.catch_up(ops)
        answers = [self._refusal(op) for op in ops]
        allowed = [index for index, refused in enumerate(answers) if refused is None]
        writes = [(index, op) for index in allowed if isinstance(op := ops[index], Write)]
        if writes:
            for (index, _), answer in zip(writes, await self._write(writes), strict=True):
                answers[index] = answer
        for index in allowed:
            if isinstance(op := ops[index], Read):
                answers[index] = await self._read(op)
        return [self._served(op, answer or _DONE) for op, answer in zip(ops, answers, strict=True)]

    def _served(self, op: Op, answer: Answer) -> Answer:
        """What is answered, and counted unless it is refused."""
        refused = self._fenced(op) if answer.done else answer
        if refused is not None:
            return refused
        self._rates.count(op.data_id, op.token, written=isinstance(op, Write))
        return answer

    async def scan(self, scan: Scan) -> Scanned:
        """A page of rows, or their size, under the session of a topology operation."""
        return await self._in_session(scan, partial(self._scan, scan), Scanned)

    async def digests(self, compare: Compare) -> Compared:
        """Digests of rows, under the session of a topology operation."""
        return await self._in_session(compare, partial(self._compare, compare), Compared)

    async def _in_session(
        self, asked: Scan | Compare, work: Callable[[], Awaitable[A]], refused: type[A]
    ) -> A:
        try:
            async with self._sourcing.giving(asked.epoch, asked.session):
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
        ops = [op for _, op in writes]
        rows = [Row(op.data_id, op.token, op.key, *op.cell) for op in ops]
        for op in ops:
            self._clock.see(op.cell.timestamp)
        holds = [self._in_use.hold(op.version, op.data_id, op.token) for op in ops]
        try:
            written = await self._store.write(
                rows,
                lambda place: self._fenced(ops[place]) is None,
                lambda place: self._partitions(ops[place]),
            )
        except StoreError as error:
            code = Code.DISK_FULL if isinstance(error, DiskFull) else Code.FAILED
            return [Answer(code, text=f"{self._node_id}: {error}")] * len(ops)
        finally:
            for hold in holds:
                self._in_use.release(hold)
        return [self._written(op, lost_to) for op, lost_to in zip(ops, written, strict=True)]

    def _written(self, op: Write, lost_to: int | None) -> Answer:
        if lost_to is None:  # what was fenced out stays so
            return self._fenced(op) or Answer(Code.FAILED, text="it was fenced out meanwhile")
        return Answer(Code.SUPERSEDED, lost_to) if lost_to else _DONE

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

    def _refusal(self, op: Op) -> Answer | None:
        return _refused(self.judge.refusal(op))

    def _fenced(self, op: Op) -> Answer | None:
        return _refused(self.judge.fenced(op))


def _refused(refusal: Refusal | None) -> Answer | None:
    return None if refusal is None else Answer(refusal.code, epoch=refusal.epoch, text=refusal.text)
