"""Group commit: writes that arrive during a sync share the next transaction.

A commit costs one fsync, which takes from 0.1 to 10 ms for any content. It runs in its own thread,
so the event loop never waits for the disk. Jobs are committed in the order of arrival. A caller
continues only after the sync, so that everything it acknowledges is on the disk.
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
"""A transaction accepts no more jobs above this size.

A small write waits at most 20 ms for large ones.
"""
GROUP_JOBS: Final = 512

Work = Callable[[sqlite3.Connection], T]
"""Runs in the writer's thread, inside a transaction. It may run twice; see ``_commit``."""


class StoreError(Exception):
    """The store failed to do the work.

    No part of it was written, unless the text says otherwise.
    """


class DiskFull(StoreError):
    """There is no space for the write. Reads and acknowledged writes are not affected."""


class StoreLocked(StoreError):
    """Another process has locked the store. No part of the write was written."""


class StoreFailed(StoreError):
    """The disk failed. The fate of the last writes is unknown, and no more are accepted."""


class _Job:
    """Work that waits for its transaction, and the future of its result."""

    def __init__(self, begin: Callable[[], Work[Any]], size_bytes: int) -> None:
        self.begin = begin
        self.size_bytes = size_bytes
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.work: Work[Any]
        self.result: Any = None
        self.error: Exception | None = None


class GroupCommit:
    """The only writer of a database. Create it in the event loop, and close it there."""

    def __init__(
        self, connection: sqlite3.Connection, after_commit: Callable[[int], None] = lambda _: None
    ) -> None:
        """Start the writer.

        ``after_commit`` receives the bytes of each group, in the writer's thread.
        """
        self.failure: StoreFailed | None = None
        self._connection = connection
        self._after_commit = after_commit
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "store-writes")
        self._waiting = deque[_Job]()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, begin: Callable[[], Work[T]], size_bytes: int = 0) -> T:
        """Execute work in a transaction, and return its result after the sync.

        ``begin`` is called in the event loop, in the turn in which the work is passed to the
        thread. Conditions that it checks cannot change before the work has its place in the order.

        Raises errors of the work, DiskFull, StoreLocked or StoreFailed.
        """
        if self.failure is not None:
            raise self.failure
        job = _Job(begin, size_bytes)
        self._waiting.append(job)
        if self._idle.is_set():
            self._idle.clear()
            # In the loop's next turn, so that all writes of this turn share a transaction.
            self._loop.call_soon(self._hand_over)
        result: T = await uncancelled(job.answer)
        return result

    async def close(self) -> None:
        """Finish the work that was accepted, and reject more."""
        await self._idle.wait()
        self.failure = self.failure or StoreFailed("the store is closed")
        await asyncio.to_thread(self._thread.shutdown)

    def _hand_over(self) -> None:
        group, size_bytes = list[_Job](), 0
        while self._waiting and len(group) < GROUP_JOBS and size_bytes < GROUP_BYTES:
            job = self._waiting.popleft()
            try:
                # No ``await`` until the group is submitted: the conditions that ``begin`` checked
                # still hold.
                job.work = job.begin()
            except Exception as error:
                _answer(job, None, error)
                continue
            group.append(job)
            size_bytes += job.size_bytes
        self._thread.submit(self._run_group, group, size_bytes)

    def _run_group(self, group: list[_Job], size_bytes: int) -> None:
        """Commit a group, in the writer's thread."""
        try:
            self._commit(group)
            self._after_commit(size_bytes)
        except Exception as error:  # the thread must survive, and callers must receive the error
            for job in group:
                job.error = job.error or error
        call_in(self._loop, self._end_group, group)

    def _commit(self, group: Sequence[_Job]) -> None:
        """Commit all jobs in one transaction.

        If that fails, commit each alone, so that one does not fail others.
        """
        if self.failure is not None:
            raise self.failure
        try:
            with transaction(self._connection) as connection:
                for job in group:
                    job.result = job.work(connection)
            return
        except Exception as error:
            failed = _meaning(error)
            # Set before any job is answered: no later write may succeed on a disk in an unknown
            # state.
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
    """Await work that cannot be interrupted. A cancellation is raised after the work has ended."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # cancelled again: the work still cannot stop
                await asyncio.wait([future])
        raise


def _answer(job: _Job, result: object, error: Exception | None) -> None:
    if job.answer.done():
        return
    if error is None:
        job.answer.set_result(result)
    else:
        job.answer.set_exception(error)
        job.answer.exception()  # marks the error as retrieved: the caller may be gone


_PRIMARY: Final = 0xFF
"""Mask of SQLite's primary error code in its extended error codes."""
_OF_THE_WORK: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
"""Errors of the work itself. All other errors of SQLite are faults of the disk or the file."""


def _meaning(error: Exception) -> Exception:
    """Return the error to raise for an error of a commit.

    After a failed sync the system may have dropped the pages. Only a restart reads the real
    content.
    """
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if code == sqlite3.SQLITE_FULL:
        return DiskFull("the disk is full: free some space; nothing of this write stands")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreLocked(f"another process holds the store ({error}): end it")
    if isinstance(error, sqlite3.Error) and not isinstance(error, _OF_THE_WORK):
        return StoreFailed(f"the disk failed ({error}): check it, then restart the node")
    return error
