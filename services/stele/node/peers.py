"""Calls to other nodes. Operations for one node that come while a call to it is on its way share the next."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import aiohttp
import msgspec

from stele.agent.codes import Code
from stele.agent.pulling import nothing_at
from stele.node.wire import (
    BACKUP_PATH,
    BATCH_PATH,
    DIGESTS_PATH,
    LOG_HEADER,
    MEASURE_PATH,
    PAGE_PATH,
    REPLICA_HEADER,
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
    decode_compared,
    decode_fetched,
    decode_scanned,
    encode,
)
from stele.runtime.http_client import connector
from stele.runtime.http_tls import certificate_refused
from stele.runtime.logs import get_logger
from stele.runtime.transport import FAILURES

CALLS_PER_NODE: Final = 4
"""Calls on their way to one node: enough that a slow one does not hold the others up."""
BATCH_OPS: Final = 64
BATCH_BYTES: Final = 1024 * 1024
MAX_PENDING: Final = 2000
"""Operations that wait for one node; what comes on top is refused at once."""
CONNECT_TIMEOUT_S: Final = 1.0
KEEP_ALIVE_S: Final = 4.0
"""Shorter than servers do (uvicorn 5 s, ours more): no call meets a connection that is just being closed."""
SCAN_TIMEOUT_S: Final = 15.0
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404

log = get_logger(__name__)

_FAILURES: Final = (*FAILURES, msgspec.DecodeError)


class NothingThere(aiohttp.ClientError):
    """The node there is of another kind."""


class _Pending(NamedTuple):
    op: AnyOp
    until: float
    answer: asyncio.Future[Answer]


class _Lane:
    """What goes to one node."""

    def __init__(self, node_id: str, address: str) -> None:
        self.node_id = node_id
        self.address = address
        self.waiting = deque[_Pending]()
        self.calls = 0


class Peers:
    """Make it inside the event loop. ``log_id`` tells the log that this node follows."""

    def __init__(self, log_id: Callable[[], bytes]) -> None:
        self._log_id = log_id
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
        """The node's answer. ``until`` is loop time; what is not answered by then is UNREACHABLE."""
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
            # In the loop's next turn, so that everything that came in this turn goes together.
            self._loop.call_soon(self._start, lane)
        return answer

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned:
        """A page of a node's rows, or with ``limit_bytes`` 0 their size."""
        path = PAGE_PATH if scan.limit_bytes else MEASURE_PATH
        until = self._loop.time() + SCAN_TIMEOUT_S
        try:
            return decode_scanned(await self._post(node_id, address + path, encode(scan), until))
        except _FAILURES as error:
            return Scanned(code=Code.UNREACHABLE, text=_why(address, error))

    async def digests(self, node_id: str, address: str, compare: Compare) -> Compared:
        """Digests of a node's rows."""
        until = self._loop.time() + SCAN_TIMEOUT_S
        try:
            body = encode(compare)
            return decode_compared(await self._post(node_id, address + DIGESTS_PATH, body, until))
        except _FAILURES as error:
            return Compared(code=Code.UNREACHABLE, text=_why(address, error))

    async def backup(self, node_id: str, address: str, fetch: Fetch) -> Fetched:
        """A piece of a file in a node's backup folder."""
        until = self._loop.time() + SCAN_TIMEOUT_S
        try:
            url = address + BACKUP_PATH
            return decode_fetched(await self._post(node_id, url, encode(fetch), until))
        except _FAILURES as error:
            return Fetched(code=Code.UNREACHABLE, text=_why(address, error))

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
        except Exception as error:  # nobody else would call for those that wait behind it
            why = _why(lane.address, error)
            log.exception("a call to another node ended as none does", node=lane.node_id)
        finally:
            if len(answers) != len(batch):
                answers = [_unreachable(why)] * len(batch)
            for pending, answer in zip(batch, answers, strict=True):
                _give(pending, answer)

    async def _post(self, node_id: str, url: str, body: bytes, until: float) -> bytes:
        left_s = max(0.001, until - self._loop.time())
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_TIMEOUT_S)
        headers = {REPLICA_HEADER: node_id, LOG_HEADER: self._log_id().hex()}
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
    return f"{address}: {certificate_refused(error) or repr(error)}"


def _next_batch(lane: _Lane, now: float) -> list[_Pending]:
    """A large operation goes alone, so that no call is larger than the largest value."""
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
    """Who no longer waits has cancelled it."""
    if not pending.answer.done():
        pending.answer.set_result(answer)


def _unreachable(text: str) -> Answer:
    return Answer(Code.UNREACHABLE, text=text)
