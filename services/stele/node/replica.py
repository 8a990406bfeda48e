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

from stele.domain.fencing import Hold, check_token, takes_part
from stele.domain.names import NodeState
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.node.cells import Row, stamp_of
from stele.node.clock import HybridClock
from stele.node.commits import DiskFull, StoreError
from stele.node.partitions import parted, placed, write_partitions
from stele.node.rates import Rates
from stele.node.routing import Routing
from stele.node.spans import Span
from stele.node.store import Store
from stele.node.wire import (
    Answer,
    AnyOp,
    Code,
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

CATCH_UP_LIMIT_S: Final = 2.0
"""A replica that meets a newer version reads the log for so long before it gives up."""
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
        self._routing = routing
        self._in_use = in_use
        self._store = store
        self._clock = clock
        self._rates = rates
        self._catch_up_limit_s = catch_up_limit_s

    async def serve(self, ops: Sequence[AnyOp]) -> list[Answer]:
        """Answer each operation; the writes among them share one transaction."""
        newer = [op.epoch for op in ops if self._is_newer(op)]
        if newer:
            await self._read_up_to(max(newer))
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
        """It is served only once this node has applied the epoch that settled the session's version, and its
        own older writes on the ranges that changed are done: what is streamed then holds all that was
        acknowledged before, and whatever comes later reaches the receiver too.
        """
        if self._follower.image.epoch < asked.epoch:
            await self._read_up_to(asked.epoch)
        image = self._follower.image
        if image.epoch < asked.epoch:
            return refused(code=Code.BEHIND, text=_behind(image.epoch, asked.epoch))
        transition = image.topology.of_session(asked.session)
        if transition is None:
            return refused(code=Code.SESSION_CLOSED, text=f"session {asked.session} is not open")
        try:
            await self._in_use.wait_drained(transition.entered_version, self._catch_up_limit_s)
        except TimeoutError as error:
            return refused(code=Code.BEHIND, text=str(error))
        try:
            with self._in_use.enter(asked.session) as guard:
                found = await work()
                guard.check()
                return found
        except SessionClosedError as error:
            return refused(code=Code.SESSION_CLOSED, text=str(error))

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

    def _is_newer(self, op: Op) -> bool:
        """The sender knows something that this node must know too before it can judge."""
        image = self._follower.image
        if op.version > image.topology.version:
            return True
        return op.epoch > image.epoch and image.schema.of_data(op.data_id) is None

    async def _read_up_to(self, epoch: int) -> None:
        try:
            await self._follower.wait_for_epoch(epoch, self._catch_up_limit_s)
        except (TimeoutError, LogError):
            return  # the operation is refused as BEHIND

    def _refusal(self, op: Op) -> Answer | None:
        image = self._follower.image
        if self._is_newer(op):
            return Answer(Code.BEHIND, text=_behind(image.epoch, op.epoch))
        fenced = self._fenced(op)
        if fenced is not None:
            return fenced
        placement = self._routing.placement(op.data_id, op.version)
        if placement is None or self._node_id not in placement.row_for(op.token).writes:
            text = f"{self._node_id} is no replica of token {op.token} in version {op.version}"
            return Answer(Code.NOT_A_REPLICA, text=text, epoch=image.epoch)
        return None

    def _fenced(self, op: Op) -> Answer | None:
        image = self._follower.image
        topology = image.topology
        stale = check_token(image, op.data_id, op.token, op.version)
        if stale is not None:
            epoch = max(topology.since_epoch, topology.fence_epoch)
            return Answer(Code.STALE_VERSION, epoch=epoch, text=str(stale))
        if op.session and not self._in_use.session_is_open(op.session):
            return Answer(Code.SESSION_CLOSED, text=f"session {op.session} is not open")
        if not takes_part(image, op.coordinating):
            text = f"{op.coordinating} is no member, or not any more, so it coordinates no requests"
            return Answer(Code.STALE_VERSION, epoch=image.epoch, text=text)
        node = image.node(self._node_id)
        if node is not None and node.state is NodeState.LEFT:
            return Answer(Code.NODE_LEFT, text=f"{self._node_id} has left the cluster")
        if node is not None and node.excluded:
            return Answer(Code.NODE_LEFT, text=f"{self._node_id} was declared dead")
        return None


def _behind(own: int, wanted: int) -> str:
    return f"this node has read the log to epoch {own}, not to {wanted}"
