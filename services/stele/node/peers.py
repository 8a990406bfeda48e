"""Calls to other nodes. Operations that arrive during a call to a node share the next call."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import aiohttp
import msgspec

from stele.agent.judging import Code
from stele.agent.pulling import nothing_at
from stele.node.wire import (
    BACKUP_PATH,
    BATCH_PATH,
    DIGESTS_PATH,
    MEASURE_PATH,
    PAGE_PATH,
    Answer,
    AnyOp,
    Compare,
    Compared,
    Fetch,
    Fetched,
    Scan,
    Scanned,
    Write,
    decode_answers,
    encode,
)
from stele.runtime.http_tls import certificate_refused
from stele.runtime.logs import get_logger
from stele.runtime.transport import FAILURES, connector

CALLS_PER_NODE: Final = 4
"""Most concurrent calls to one node. With four, a slow call does not block the others."""
BATCH_OPS: Final = 64
BATCH_BYTES: Final = 1024 * 1024
MAX_PENDING: Final = 2000
"""Most operations that wait for one node. Further ones fail at once."""
CONNECT_TIMEOUT_S: Final = 1.0
KEEP_ALIVE_S: Final = 4.0
"""Idle time of a connection, in seconds; shorter than that of servers (uvicorn 5 s, ours more).

No call then meets a connection that the server is closing.
"""
SCAN_TIMEOUT_S: Final = 15.0
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404

A = TypeVar("A", Scanned, Compared, Fetched)

log = get_logger(__name__)

_FAILURES: Final = (*FAILURES, msgspec.DecodeError)


class NothingThere(aiohttp.ClientError):
    """The node at that address runs another kind of store."""


class _Pending(NamedTuple):
    """An operation that waits for a call. ``until`` is its deadline in loop time."""

    op: AnyOp
    until: float
    answer: asyncio.Future[Answer]


class _Lane:
    """The operations and calls to one node."""

    def __init__(self, node_id: str, address: str) -> None:
        self.node_id = node_id
        self.address = address
        self.waiting = deque[_Pending]()
        self.calls = 0


class Peers:
    """Calls other nodes.

    Create it in the event loop. ``headers_for`` returns the headers that name a node by id.
    """

    def __init__(self, headers_for: Callable[[str], dict[str, str]]) -> None:
        self._headers_for = headers_for
        self._loop = asyncio.get_running_loop()
        self._http = aiohttp.ClientSession(
            connector=connector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            while lane.waiting:
                _give(lane.waiting.popleft(), _unreachable(f"{lane.address}: this node ends"))
        self._lanes.clear()
        await self._http.close()

    def send(self, node_id: str, address: str, op: AnyOp, until: float) -> asyncio.Future[Answer]:
        """Send an operation and return the future of its answer.

        ``until`` is loop time. An operation without an answer by that time is UNREACHABLE.
        """
        answer: asyncio.Future[Answer] = self._loop.create_future()
        lane = self._lanes.get((node_id, address))
        if lane is None:
            lane = self._lanes[node_id, address] = _Lane(node_id, address)
        if len(lane.waiting) >= MAX_PENDING:
            answer.set_result(_unreachable(f"{address} has too many operations waiting"))
            return answer
        lane.waiting.append(_Pending(op, until, answer))
        if lane.calls < CALLS_PER_NODE:
            lane.calls += 1
            # In the loop's next turn, so that all operations of this turn share a call.
            self._loop.call_soon(self._start, lane)
        return answer

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned:
        """Return a page of a node's rows, or their size if ``limit_bytes`` is 0."""
        path = PAGE_PATH if scan.limit_bytes else MEASURE_PATH
        return await self._ask(node_id, address, path, scan, Scanned)

    async def digests(self, node_id: str, address: str, compare: Compare) -> Compared:
        """Return digests of a node's rows."""
        return await self._ask(node_id, address, DIGESTS_PATH, compare, Compared)

    async def backup(self, node_id: str, address: str, fetch: Fetch) -> Fetched:
        """Return a piece of a file in a node's backup folder."""
        return await self._ask(node_id, address, BACKUP_PATH, fetch, Fetched)

    async def _ask(
        self, node_id: str, address: str, path: str, message: object, answer: type[A]
    ) -> A:
        """Return the answer to a message; UNREACHABLE when there is none."""
        until = self._loop.time() + SCAN_TIMEOUT_S
        try:
            body = await self._post(node_id, address + path, encode(message), until)
            return msgspec.msgpack.decode(body, type=answer)
        except _FAILURES as error:
            return answer(code=Code.UNREACHABLE, text=_why(address, error))

    def _start(self, lane: _Lane) -> None:
        task = self._loop.create_task(self._drain(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, lane: _Lane) -> None:
        try:
            while batch := _next_batch(lane, self._loop.time()):
                await self._call(lane, batch)
        finally:
            lane.calls -= 1

    async def _call(self, lane: _Lane, batch: list[_Pending]) -> None:
        until = max(pending.until for pending in batch)
        why, answers = f"{lane.address}: the call was cancelled", list[Answer]()
        try:
            body = encode([pending.op for pending in batch])
            url = lane.address + BATCH_PATH
            answers = decode_answers(await self._post(lane.node_id, url, body, until))
        except _FAILURES as error:
            why = _why(lane.address, error)
        except Exception as error:  # otherwise the operations behind it would never be sent
            why = _why(lane.address, error)
            log.exception("a call to another node ended as none does", node=lane.node_id)
        finally:
            # Every operation needs an answer, or its caller would hold a version for ever.
            if len(answers) != len(batch):
                answers = [_unreachable(why)] * len(batch)
            for pending, answer in zip(batch, answers, strict=True):
                _give(pending, answer)

    async def _post(self, node_id: str, url: str, body: bytes, until: float) -> bytes:
        left_s = max(0.001, until - self._loop.time())
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_TIMEOUT_S)
        headers = self._headers_for(node_id)
        async with self._http.post(url, data=body, headers=headers, timeout=timeout) as response:
            content = await response.read()
            if response.status == HTTP_NOT_FOUND:
                raise NothingThere(nothing_at(response.url.path, str(response.url.origin())))
            if response.status != HTTP_OK:
                raise aiohttp.ClientPayloadError(f"status {response.status}: {content[:200]!r}")
            return content


def _why(address: str, error: Exception) -> str:
    if isinstance(error, NothingThere):
        return str(error)
    if not address:
        return "the node has no known address"
    return f"{address}: {certificate_refused(error) or repr(error)}"


def _next_batch(lane: _Lane, now: float) -> list[_Pending]:
    """Remove the next operations to send. Expired ones are answered as UNREACHABLE.

    A large operation is sent alone, so that no call is larger than the largest value.
    """
    batch, size_bytes = list[_Pending](), 0
    while lane.waiting and len(batch) < BATCH_OPS:
        size_bytes += _size_bytes(lane.waiting[0].op)
        if batch and size_bytes > BATCH_BYTES:
            break
        pending = lane.waiting.popleft()
        if pending.until > now:
            batch.append(pending)
        else:
            _give(pending, _unreachable(f"{lane.address} did not answer in time"))
    return batch


def _size_bytes(op: AnyOp) -> int:
    return len(op.cell.value) if isinstance(op, Write) else 0


def _give(pending: _Pending, answer: Answer) -> None:
    """Set the answer, unless the caller has cancelled."""
    if not pending.answer.done():
        pending.answer.set_result(answer)


def _unreachable(text: str) -> Answer:
    return Answer(Code.UNREACHABLE, text=text)
