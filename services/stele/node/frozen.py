"""The store as it is at one moment, whatever is written meanwhile: its write-ahead log keeps that as long."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from stele.agent.spans import Span
from stele.node.commits import uncancelled
from stele.node.store import LOCK_TIMEOUT_S, Cursor, Page, Store, page_in


class Frozen:
    """See ``frozen``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def page(self, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int) -> Page:
        """Rows of the spans after ``cursor``, until their size reaches the limit."""
        work = asyncio.to_thread(page_in, self._connection, spans, cursor, limit_bytes)
        return await uncancelled(asyncio.ensure_future(work))


@asynccontextmanager
async def frozen(store: Store) -> AsyncIterator[Frozen]:
    """The store at this moment, by a connection of its own."""
    connection = await asyncio.to_thread(_begin_reading, store.path)
    try:
        yield Frozen(connection)
    finally:
        await uncancelled(asyncio.ensure_future(asyncio.to_thread(connection.close)))


def _begin_reading(path: Path) -> sqlite3.Connection:
    """The state is that of the first read."""
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("begin")
    connection.execute("select 1 from cells limit 1").fetchall()
    return connection
