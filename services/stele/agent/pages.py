"""Pages of an embedded store's rows, bounded in rows and in bytes.

A page has to be read, sent and taken in within the time that its receiver waits for it, whatever values a store
keeps: so rows are read a few at a time, and no page is larger than its bound but one of a single row.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from stele.agent.spans import Span
from stele.agent.stores import Row

PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 2 * 1024 * 1024
PAGE_S: Final = 0.5
"""Under a low limit a page is what may come in this time: else nothing would be seen to move for seconds."""
SCAN_ROWS: Final = 64
"""Read at once. What turns out to be beyond the page's bound is read again for the next page."""

Cursor = tuple[int, int, bytes]
"""The span's place among those asked for, and the token and key of the last row that was given."""

_NO_KEY: Final[tuple[int, bytes] | None] = None


class Scans(Protocol):
    """Of a ``stores.Store``, what gives rows."""

    def scan(self, span: Span, after: tuple[int, bytes] | None, limit: int) -> Sequence[Row]: ...


class Page(NamedTuple):
    """Rows with the place of their span; with a ``cursor`` there may be more."""

    rows: list[tuple[int, Row]]
    size_bytes: int
    cursor: Cursor | None


def page_bytes(limit_bytes_per_s: float) -> int:
    """The bound of a page under a limit of what a node takes in."""
    return min(PAGE_BYTES, int(PAGE_S * limit_bytes_per_s))


def page_of(store: Scans, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int) -> Page:
    """Rows of the spans behind the cursor, as many as ``limit_bytes`` of keys and values hold; at least one."""
    at, after = 0, _NO_KEY
    if cursor is not None:
        at, after = cursor[0], cursor[1:]
    rows, size_bytes = list[tuple[int, Row]](), 0
    while at < len(spans):
        found = store.scan(spans[at], after, _rows_to_scan(len(rows), size_bytes, limit_bytes))
        if not found:
            at, after = at + 1, _NO_KEY
            continue
        for each in found:
            row = Row(*each)
            row_bytes = len(row.key) + len(row.value)
            if rows and (len(rows) >= PAGE_ROWS or size_bytes + row_bytes > limit_bytes):
                return _ended(rows, size_bytes)
            rows.append((at, row))
            size_bytes += row_bytes
            after = row.token, row.key
    return Page(rows, size_bytes, None)


def _rows_to_scan(rows: int, size_bytes: int, limit_bytes: int) -> int:
    """So many as fit if all are as large as those so far; no more than these, which may be no measure."""
    fit = (limit_bytes - size_bytes) * rows // max(1, size_bytes)
    return max(1, min(fit, rows, SCAN_ROWS, PAGE_ROWS - rows))


def _ended(rows: list[tuple[int, Row]], size_bytes: int) -> Page:
    at, last = rows[-1]
    return Page(rows, size_bytes, (at, last.token, last.key))
