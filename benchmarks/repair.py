"""What a repair of a tablet moves: `python -m benchmarks.repair`. Two stores of 100,000 rows, and no network.

``wire`` is all that would go over it: digests and what asks for them, and rows.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from stele.agent.judging import Code
from stele.agent.stores import Span
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MIN_TOKEN
from stele.node.cells import StoredCell
from stele.node.digests import Digest, differing
from stele.node.store import SqliteStore
from stele.node.wire import Compare, Compared, Scan, Scanned, encode

ROWS: Final = 100_000
VALUE_BYTES: Final = 100
DIFFERING: Final = (0, 1, 100, 10_000, ROWS)
DATA: Final = "data"
BATCH: Final = 5000
PAGE_BYTES: Final = 2 * 1024 * 1024


class Cost(NamedTuple):
    """Of one replica that compares with another one."""

    differ: int
    calls: int
    rows: int
    row_bytes: int
    wire_bytes: int
    seconds: float
    """Of the processor, for both stores together."""


async def main() -> None:
    shown = Table(
        "rows that differ",
        "calls",
        "rows streamed",
        "streamed",
        "wire",
        "processor s",
        title=f"{ROWS:,} rows of {VALUE_BYTES} bytes; streaming all: {_size(ROWS * 110)}",
    )
    for differ in DIFFERING:
        with tempfile.TemporaryDirectory() as folder:
            cost = await _repaired(Path(folder), differ)
        shown.add_row(
            f"{cost.differ:,}",
            f"{cost.calls:,}",
            f"{cost.rows:,}",
            _size(cost.row_bytes),
            _size(cost.wire_bytes),
            f"{cost.seconds:.2f}",
        )
    Console().print(shown)


async def _repaired(folder: Path, differ: int) -> Cost:
    mine, theirs = SqliteStore(folder / "mine.sqlite"), SqliteStore(folder / "theirs.sqlite")
    try:
        keys = [f"key-{number}".encode() for number in range(ROWS)]
        newer = {*random.Random(differ).sample(keys, differ)}
        await _fill(mine, [_row(key, 1) for key in keys])
        await _fill(theirs, [_row(key, 2 if key in newer else 1) for key in keys])
        return await _compare(mine, theirs, differ)
    finally:
        await mine.close()
        await theirs.close()


async def _compare(mine: SqliteStore, theirs: SqliteStore, differ: int) -> Cost:
    calls = wire = rows = row_bytes = 0

    async def ask(spans: Sequence[Span]) -> list[Digest | None]:
        nonlocal calls, wire
        found = await theirs.digests(spans)
        calls += 1
        wire += len(encode(Compare(epoch=1, session="s" * 36, spans=[*spans])))
        wire += len(encode(Compared(code=Code.OK, digests=found)))
        return found

    began_s = time.process_time()
    whole = [Span(DATA, MIN_TOKEN, MIN_TOKEN)]
    async for spans in differing(whole, mine.digests, ask, lambda _: None):
        cursor = None
        while True:
            page = await theirs.page(spans, cursor, PAGE_BYTES)
            await mine.write(page.rows)
            calls, rows, row_bytes = calls + 1, rows + len(page.rows), row_bytes + page.size_bytes
            scan = Scan(epoch=1, session="s" * 36, spans=spans, cursor=cursor)
            wire += len(encode(scan)) + len(encode(Scanned(code=Code.OK, rows=page.rows)))
            cursor = page.cursor
            if cursor is None:
                break
    return Cost(differ, calls, rows, row_bytes, wire, time.process_time() - began_s)


async def _fill(store: SqliteStore, rows: list[StoredCell]) -> None:
    for at in range(0, len(rows), BATCH):
        await store.write(rows[at : at + BATCH])


def _row(key: bytes, timestamp: int) -> StoredCell:
    return StoredCell(DATA, token_of(key), key, timestamp, False, b"v" * VALUE_BYTES)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1000:,.1f} kB"


if __name__ == "__main__":
    asyncio.run(main())
