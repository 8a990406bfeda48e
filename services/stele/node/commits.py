"""One writer and many who wait: what comes while a commit is being synced shares the next transaction.

A commit costs one fsync, which takes from a tenth of a millisecond to ten, whatever it holds. It runs in a
thread of its own, so the event loop never waits for the disk. Jobs are committed in the order of their
coming, and a caller goes on only after the sync: what it acknowledges then is on the disk.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from stele.log.loops import call_in

T = TypeVar("T")

GROUP_BYTES: Final = 4 * 1024 * 1024
"""A transaction takes in no more after this: a small write waits for 20 ms of large ones at most."""
GROUP_JOBS: Final = 512

Work = Callable[[sqlite3.Connection], T]
"""Runs in the writer's thread, inside a transaction; it may run twice, see ``_commit``."""


class StoreError(Exception):
    """The store could not do it; nothing of it stands unless the text says so."""


class DiskFull(StoreError):
    """There is no room for the write; reads and what was acknowledged are not touched."""


class StoreLocked(StoreError):
    """Another process holds the store; nothing of the write stands."""


class StoreFailed(StoreError):
    """The disk failed: what it holds of the last writes is not known, and nothing more is written."""


class _Job:
    def __init__(self, begin: Callable[[], Work[Any]], size_bytes: int) -> None:
        self.begin = begin
        self.size_bytes = size_bytes
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.work: Work[Any]
        self.result: Any = None
        self.error: Exception | None = None


class GroupCommit:
    """The only writer of a database. Make it inside the event loop, and close it there."""

    def __init__(
        self, connection: sqlite3.Connection, after_commit: Callable[[int], None] = lambda _: None
    ) -> None:
        """``after_commit`` gets the bytes of each group, in the writer's thread."""
        self.failure: StoreFailed | None = None
        self._connection = connection
        self._after_commit = after_commit
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "store-writes")
        self._waiting = deque[_Job]()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, begin: Callable[[], Work[T]], size_bytes: int = 0) -> T:
        """Have work done and synced. Raises what the work raises, DiskFull, or StoreFailed.

        ``begin`` is called in the event loop, in the very turn in which the work is handed to the
        thread: what it finds to be the case cannot change before the work's place in the order is taken.
        """
        if self.failure is not None:
            raise self.failure
        job = _Job(begin, size_bytes)
        self._waiting.append(job)
        if self._idle.is_set():
            self._idle.clear()
            # In the loop's next turn, so that everything that came in this turn goes together.
            self._loop.call_soon(self._hand_over)
        result: T = await uncancelled(job.answer)
        return result

    async def close(self) -> None:
        """Ends what has been asked for; nothing more is taken."""
        await self._idle.wait()
        self.failure = self.failure or StoreFailed("the store is closed")
        await asyncio.to_thread(self._thread.shutdown)

    def _hand_over(self) -> None:
        group, size_bytes = list[_Job](), 0
        while self._waiting and len(group) < GROUP_JOBS and size_bytes < GROUP_BYTES:
            job = self._waiting.popleft()
            try:
                job.work = job.begin()
            except Exception as error:
                _answer(job, None, error)
                continue
            group.append(job)
            size_bytes += job.size_bytes
        self._thread.submit(self._run_group, group, size_bytes)

    def _run_group(self, group: list[_Job], size_bytes: int) -> None:
        """In the writer's thread."""
        try:
            self._commit(group)
            self._after_commit(size_bytes)
        except Exception as error:  # the thread must go on, and those who wait must hear
            for job in group:
                job.error = job.error or error
        call_in(self._loop, self._end_group, group)

    def _commit(self, group: Sequence[_Job]) -> None:
        """All in one transaction; when that fails, each in its own, so that one does not fail others."""
        if self.failure is not None:
            raise self.failure
        try:
            with transaction(self._connection) as connection:
                for job in group:
                    job.result = job.work(connection)
            return
        except Exception as error:
            failed = _meaning(error)
            if isinstance(failed, StoreFailed):
                self.failure = failed
            if isinstance(failed, StoreFailed | StoreLocked):
                raise failed from error
            if len(group) == 1:
                group[0].error = failed
                return
        for job in group:
            self._commit([job])

    def _end_group(self, group: list[_Job]) -> None:
        for job in group:
            _answer(job, job.result, job.error)
        if self._waiting:
            self._hand_over()
        else:
            self._idle.set()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("begin immediate")
    try:
        yield connection
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


async def uncancelled(future: asyncio.Future[T]) -> T:
    """Await what cannot be stopped half way: a cancellation is raised only after it has ended."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # asked to end once more: it still cannot
                await asyncio.wait([future])
        raise


def _answer(job: _Job, result: object, error: Exception | None) -> None:
    if job.answer.done():
        return
    if error is None:
        job.answer.set_result(result)
    else:
        job.answer.set_exception(error)
        job.answer.exception()  # its caller may be gone: that is no error of its own


_PRIMARY: Final = 0xFF
"""SQLite's extended error codes hold the primary one in their lowest byte."""
_OF_THE_WORK: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
"""What the work itself did wrong; all else that SQLite raises is the disk's or the file's fault."""


def _meaning(error: Exception) -> Exception:
    """After a failed sync the system may have dropped the pages: only a restart reads what is there."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if code == sqlite3.SQLITE_FULL:
        return DiskFull("the disk is full: free some space; nothing of this write stands")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreLocked(f"another process holds the store ({error}): end it")
    if isinstance(error, sqlite3.Error) and not isinstance(error, _OF_THE_WORK):
        return StoreFailed(f"the disk failed ({error}): check it, then restart the node")
    return error
